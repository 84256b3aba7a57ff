"""
Load a network with transformers and make a runner of it: the way to run it, its memory, and the proof that it works.

Nothing is downloaded, and code of the checkpoint runs only if `trust_remote_code` is set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)
from transformers.utils import logging as transformers_logging

from headrace.core.errors import BrokenModel, InsufficientMemory, SettingsError, UnsupportedModel
from headrace.core.sizes import format_size
from headrace.core.telemetry import get_logger
from headrace.inference.runner.memory import MemoryBudget, MemoryPlan, RunnerSizes, plan_sizes
from headrace.inference.runner.step import RunnerInfo, RunnerLimits
from headrace.inference.runner.torch.kv_cache import KvCache, block_bytes
from headrace.inference.runner.transformers.adapters import AdapterHooks
from headrace.inference.runner.transformers.by_sequence import SequenceNetwork, cached_shapes
from headrace.inference.runner.transformers.paged import PagedNetwork, attach
from headrace.inference.runner.transformers.runner import Network, TransformersRunner, check_logits, own_logits
from headrace.inference.runner.transformers.seq2seq import SeqToSeqRunner, state_bytes
from headrace.inference.runner.transformers.support import Tier, choose_tier, network_facts
from headrace_handler.stray_files import listed

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")
_FORMATS: Final = "a smaller dtype (bf16)"
_CONVERTED: Final = frozenset({"fp8", "mxfp8"})
"""Methods of quantization whose weights transformers converts to floats without a GPU."""
_HIDDEN_COPIES: Final = 16
"""Activations of a layer in a step, in multiples of the hidden size; generous, because each architecture differs."""
_NUM_NAMES: Final = 3
"""Names of tensors in an error."""
_LOGIT_BYTES: Final = 16
"""A logit in the network's format, in float32, and as it is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSource:
    """A checkpoint, and the settings to load it with."""

    path: Path
    config: Any
    dtype: torch.dtype
    device: torch.device
    trust_remote_code: bool

    @property
    def is_encoder_decoder(self) -> bool:
        """The network reads the prompt by an encoder, as T5 and BART do."""
        return bool(getattr(self.config, "is_encoder_decoder", False))

    @property
    def quantization(self) -> str:
        """The method by which the weights are quantized; empty for plain ones."""
        settings = getattr(self.config, "quantization_config", None) or {}
        method = (
            settings.get("quant_method", "") if isinstance(settings, dict) else getattr(settings, "quant_method", "")
        )
        return str(getattr(method, "value", method))


def read_source(path: Path, *, dtype: str, device: str, trust_remote_code: bool) -> NetworkSource:
    """
    Read a checkpoint's config and choose the format of its weights.

    Raises:
        SettingsError: the checkpoint needs its own code, which is not trusted, or the dtype is unknown.
        UnsupportedModel: transformers does not know the architecture.
    """
    transformers_logging.disable_progress_bar()
    config = _translate(
        path, lambda: AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    )
    torch_device = torch.device(device)
    return NetworkSource(
        path=path,
        config=config,
        dtype=_choose_dtype(dtype, config, torch_device),
        device=torch_device,
        trust_remote_code=trust_remote_code,
    )


def load_network(source: NetworkSource, budget: MemoryBudget) -> Any:
    """
    Load a network with transformers.

    Raises:
        SettingsError: a package for quantized weights is missing.
        UnsupportedModel: transformers cannot load it for generation.
        BrokenModel: its files are missing or malformed.
        InsufficientMemory: its weights do not fit.
    """
    _check_weights(source, budget)
    placement = {} if source.device.type == "cpu" and not source.quantization else {"device_map": {"": source.device}}
    model, report = _translate(
        source.path,
        lambda: _class_of(source).from_pretrained(
            source.path,
            config=source.config,
            dtype=source.dtype,
            trust_remote_code=source.trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
            **placement,
        ),
    )
    _check_report(source, report)
    if source.device.type == "cpu" and source.quantization in _CONVERTED:
        model.to(source.dtype)  # the other weights are still as the checkpoint stores them
    model.eval()
    return model


def make_runner(
    model: Any, source: NetworkSource, limits: RunnerLimits, budget: MemoryBudget, *, vocab_size: int
) -> TransformersRunner:
    """
    Create a runner for a loaded network; `num_blocks` of `limits` is ignored.

    Raises:
        UnsupportedModel: the network cannot run on our KV cache, or computes other logits with it than on its own.
        InsufficientMemory: the KV cache does not fit.
    """
    tier = choose_tier(network_facts(model, max_model_len=limits.max_context_tokens))
    expected = _own_logits(model, limits, vocab_size)
    own_attention = model.config._attn_implementation  # noqa: SLF001 - it has no other name
    make = partial(_make, model, source, limits, budget, vocab_size, expected, AdapterHooks(model, limits.max_adapters))
    if tier is Tier.PAGED:
        try:
            return make(tier)
        except InsufficientMemory:
            raise
        except Exception as exc:  # noqa: BLE001 - modeling code may raise anything
            get_logger().warning(
                "transformers.not_paged",
                message=f"{type(model).__name__} cannot use paged attention ({exc}): "
                "it is called once for each sequence, which is slower.",
            )
            model.set_attn_implementation(own_attention)
    try:
        return make(Tier.BY_SEQUENCE)
    except InsufficientMemory:
        raise
    except Exception as exc:
        raise UnsupportedModel(
            f"{type(model).__name__} does not run on a paged KV cache: {exc}. Serve it with --backend vllm.",
            architecture=type(model).__name__,
        ) from exc


def _own_logits(model: Any, limits: RunnerLimits, vocab_size: int) -> torch.Tensor:
    name = type(model).__name__
    try:
        logits = own_logits(model, limits, vocab_size)
    except Exception as exc:
        raise UnsupportedModel(
            f"{name} does not run with transformers on this device: {_summary(exc)}", architecture=name
        ) from exc
    if not torch.isfinite(logits).all():
        raise BrokenModel(f"{name} computes logits that are not finite: its weights are damaged, or were not all read.")
    return logits


def make_seq_to_seq_runner(
    model: Any, source: NetworkSource, limits: RunnerLimits, budget: MemoryBudget, *, vocab_size: int
) -> SeqToSeqRunner:
    """
    Create a runner for a loaded encoder-decoder; as many sequences of `limits` run as fit into the memory.

    Raises:
        UnsupportedModel: the checkpoint names no first token.
        InsufficientMemory: not even one sequence fits.
    """
    sizes = _runner_sizes(model, limits, vocab_size, state_bytes(model) * limits.block_tokens)
    plan = plan_sizes(sizes, limits, budget, formats=_FORMATS)
    blocks_per_context = -(-limits.max_context_tokens // limits.block_tokens)
    limits = replace(
        limits,
        # Enough blocks for all: a preempted sequence would have to be encoded again, together with its answer.
        num_blocks=2 * blocks_per_context * limits.max_step_sequences,
        max_step_sequences=min(limits.max_step_sequences, plan.num_blocks // blocks_per_context),
    )
    info = _runner_info(model, source, plan, "encoder-decoder")
    return SeqToSeqRunner(model, vocab_size=vocab_size, limits=limits, info=info)


def _make(
    model: Any,
    source: NetworkSource,
    limits: RunnerLimits,
    budget: MemoryBudget,
    vocab_size: int,
    expected: torch.Tensor,
    adapters: AdapterHooks,
    tier: Tier,
) -> TransformersRunner:
    """Return a runner that was checked against the network's own logits."""
    context = attach(model) if tier is Tier.PAGED else None
    shapes = cached_shapes(model) if context is None else context.shapes
    bytes_of_block = block_bytes(shapes, block_tokens=limits.block_tokens, dtype=model.dtype)
    sizes = _runner_sizes(model, limits, vocab_size, bytes_of_block)
    sizes = replace(sizes, adapter_bytes=limits.max_adapters * adapters.slot_bytes(limits.max_adapter_rank))
    plan = plan_sizes(sizes, limits, budget, formats=_FORMATS)
    limits = replace(limits, num_blocks=plan.num_blocks)
    cache = KvCache(
        shapes,
        num_blocks=plan.num_blocks,
        block_tokens=limits.block_tokens,
        dtype=model.dtype,
        device=source.device,
    )
    network: Network = (
        SequenceNetwork(model, cache, adapters) if context is None else PagedNetwork(model, context, cache, adapters)
    )
    is_rounded = model.dtype is not torch.float32 or bool(source.quantization)
    check_logits(network, expected, limits, vocab_size, is_rounded=is_rounded)
    return TransformersRunner(
        network,
        adapters,
        vocab_size=vocab_size,
        limits=limits,
        info=_runner_info(model, source, plan, tier.value),
        num_parameters=model.num_parameters(),
    )


def _runner_sizes(model: Any, limits: RunnerLimits, vocab_size: int, bytes_of_block: int) -> RunnerSizes:
    config = model.config.get_text_config(decoder=True)
    weights_bytes = model.get_memory_footprint()
    width = getattr(config, "hidden_size", 0) * _HIDDEN_COPIES + 3 * (getattr(config, "intermediate_size", 0) or 0)
    workspace_bytes = limits.max_step_tokens * width * model.dtype.itemsize
    workspace_bytes += limits.max_step_rows * vocab_size * _LOGIT_BYTES
    return RunnerSizes(
        weights_bytes=weights_bytes,
        active_weights_bytes=weights_bytes,
        workspace_bytes=workspace_bytes,
        adapter_bytes=0,
        block_bytes=bytes_of_block,
        vocab_size=vocab_size,
    )


def _runner_info(model: Any, source: NetworkSource, plan: MemoryPlan, method: str) -> RunnerInfo:
    name, device = dtype_name(model.dtype), source.device.type
    if device != "cpu":
        device = f"{device} {torch.cuda.get_device_name(source.device)}"
    return RunnerInfo(
        dtype=source.quantization or name,
        kv_dtype=name,
        device=f"{device} ({method})",
        weights_bytes=plan.weights_bytes,
        kv_cache_bytes=plan.kv_cache_bytes,
        workspace_bytes=plan.workspace_bytes,
        adapter_bytes=plan.adapter_bytes,
        is_batch_invariant=False,
        facts={"attention": method, "threads": str(torch.get_num_threads())},
    )


def dtype_name(dtype: torch.dtype) -> str:
    return next((name for name, known in DTYPES.items() if known is dtype), str(dtype).removeprefix("torch."))


def _choose_dtype(requested: str, config: Any, device: torch.device) -> torch.dtype:
    if requested != "auto":
        if requested not in DTYPES:
            raise SettingsError(
                f"dtype is {requested!r}; expected one of auto, {', '.join(DTYPES)} with the transformers backend.",
                name="dtype",
            )
        return DTYPES[requested]
    stored = getattr(config.get_text_config(decoder=True), "dtype", None) or getattr(config, "dtype", None)
    if not isinstance(stored, torch.dtype) or (stored is torch.float16 and device.type == "cpu"):
        return torch.bfloat16  # many CPUs have no fp16 arithmetic
    return stored


def _class_of(source: NetworkSource) -> Any:
    kind = type(source.config)
    if source.is_encoder_decoder and kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return AutoModelForSeq2SeqLM
    remote = getattr(source.config, "auto_map", None) or {}
    if (kind in MODEL_FOR_CAUSAL_LM_MAPPING and not source.is_encoder_decoder) or "AutoModelForCausalLM" in remote:
        return AutoModelForCausalLM
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    raise UnsupportedModel(
        f"{source.path}: transformers has no model of type {source.config.model_type!r} that generates text token by "
        "token.",
        model_type=source.config.model_type,
    )


def _check_weights(source: NetworkSource, budget: MemoryBudget) -> None:
    files = next((found for pattern in _WEIGHTS if (found := listed(source.path, [pattern]))), [])
    if not files:
        raise BrokenModel(f"{source.path} has no weights; expected {' or '.join(_WEIGHTS)}.", path=str(source.path))
    num_bytes = sum(file.stat().st_size for file in files)
    stored = getattr(source.config, "dtype", None)
    if isinstance(stored, torch.dtype) and not source.quantization:
        num_bytes = num_bytes * source.dtype.itemsize // stored.itemsize
    if num_bytes > budget.usable_bytes:
        raise InsufficientMemory(
            f"The weights take {format_size(num_bytes)}, but {format_size(budget.usable_bytes)} are available. "
            f"Take {_FORMATS} or a quantized checkpoint.",
            weights_bytes=num_bytes,
            available_bytes=budget.usable_bytes,
        )


def _check_report(source: NetworkSource, report: Mapping[str, Any]) -> None:
    """Refuse what transformers only warns about: weights that it initialised itself, and quantized ones left unused."""
    if missing := sorted(report.get("missing_keys", ())):
        raise BrokenModel(
            f"{source.path} lacks weights of its network ({len(missing)}): {_first_names(missing)}.",
            path=str(source.path),
        )
    unused = sorted(report.get("unexpected_keys", ()))
    if source.quantization and unused:
        raise UnsupportedModel(
            f"{source.path}: transformers did not use {len(unused)} tensors of weights quantized with "
            f"{source.quantization}: {_first_names(unused)}. Serve it with --backend native or --backend vllm.",
            path=str(source.path),
        )


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_NAMES]) + (", ..." if len(names) > _NUM_NAMES else "")


def _translate(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ImportError as exc:
        raise SettingsError(f"{path} needs a package that is not installed: {_summary(exc)}") from exc
    except (OSError, SafetensorError) as exc:
        raise BrokenModel(f"{path} cannot be read by transformers: {_summary(exc)}", path=str(path)) from exc
    except (KeyError, ValueError, RuntimeError, AttributeError, TypeError) as exc:
        text = _summary(exc)
        if "trust_remote_code" in text:
            raise SettingsError(
                f"{path} has a network of its own in Python, which would run here. Read its code, then set "
                "trust_remote_code to allow it.",
                name="trust_remote_code",
            ) from exc
        raise UnsupportedModel(f"transformers cannot load {path}: {text}", path=str(path)) from exc


def _summary(exc: Exception) -> str:
    """Return the first paragraph of an error of transformers, which may span a page."""
    return " ".join(str(exc).strip().partition("\n\n")[0].split())[:600]
