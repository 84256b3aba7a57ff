"""
The requested model and configuration of an engine (`ModelSource`, `EngineConfig`), and its limits (`EngineLimits`).

The server derives both from its settings, which have the defaults; `loading.plan.resolve_limits` resolves
it against the model, and `fit_to_runner` against what the loaded runner can hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.generation import RequestLimits
from headrace.inference.models.sources import Located
from headrace.inference.runner.step import RunnerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The model to serve, and the settings by which its files are loaded; `ServerSettings` describes them."""

    model: str | Located
    """Alias, Hub id, folder or `.gguf` file; or the place where it has been found."""
    revision: str | None = None
    served_model_name: str | None = None
    adapter: tuple[str, ...] = ()
    """Adapters to load at the start, each `name=folder`."""
    max_model_len: int | None = None
    chat_template: str | None = None
    generation_config: str = "auto"
    rope: Mapping[str, object] | None = None
    task: str = "auto"
    pooling: str = "auto"
    trust_remote_code: bool = False
    smoothquant_alpha: float | None = None
    cache_dir: Path | None = None
    """Downloads and packed weights; None: the home folder of Headrace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """
    The requested formats, sizes and limits of one engine. None and "auto" are resolved once the model is known.

    Fields are settings of the same names, which `ServerSettings` describes; the rest is described here.
    """

    backend: str = "auto"
    """auto, native, torch, transformers or vllm; never auto once `backends.loading` has chosen."""
    backend_reason: str = ""
    """Why the backend was chosen, in one line; set by `backends.loading`."""
    rolling_batch: str = "auto"
    strict_backend: bool = False
    device: str = "auto"
    """auto, cpu or cuda; never auto once the backend has been chosen."""
    tensor_parallel_size: int | None = None
    """Devices that the network is split over; 0: all GPUs. Never None or 0 once the backend has been chosen."""
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    step_timeout_s: float = 300.0
    batch_invariant: bool | None = None
    """None: the default of the backend."""
    vllm_args: Mapping[str, object] | None = None
    """Arguments of vLLM's engine, which win over the other fields."""
    dtype: str
    """
    bf16, w8a16, w8a8, w4a16, w4a8, smoothquant (w8a8, smoothed at load), or fp16, fp32, fp8 with other backends than
    native; auto: see `formats.choose_formats`.
    """
    kv_dtype: str
    max_prompt_tokens: int | None = None
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_bytes: int | None = None
    """None: enough for `max_num_seqs` whole contexts, if so much memory is free."""
    max_kv_cache_tokens: int | None = None
    max_memory_bytes: int | None = None
    enable_prefix_caching: bool
    prefix_cache_dir: Path | None = None
    """Where prefixes outlive the server; None: in memory only."""
    prefix_cache_disk_bytes: int = 0
    max_draft_tokens: int
    max_itl_ms: float
    max_loras: int = 0
    """Adapters that may be loaded at the same time; 0: none."""
    max_lora_rank: int = 16
    max_waiting_seqs: int
    """Sequences that may wait in addition to the running ones; more are refused with `Busy`."""
    request_limits: RequestLimits
    threads: int | None = None
    isa: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits that an engine checks requests against and plans steps by, all resolved."""

    request: RequestLimits
    max_model_len: int
    """Prompt + answer in tokens."""
    max_prompt_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_waiting_seqs: int
    max_draft_tokens: int
    """Draft tokens of one sequence in one step."""
    max_step_s: float | None
    """Steps with decoding sequences are kept under this; None: no limit."""
    enable_prefix_caching: bool

    @property
    def max_pooled_tokens(self) -> int:
        """Longest input that is pooled: it needs no room for an answer, but `max_prompt_tokens` holds if it is set."""
        return self.max_model_len if self.max_prompt_tokens == self.max_model_len - 1 else self.max_prompt_tokens


def fit_to_runner(limits: EngineLimits, runner: RunnerLimits) -> EngineLimits:
    """Return the limits with each one at most what the runner can hold."""
    capacity_tokens = min(runner.num_blocks * runner.block_tokens, runner.max_context_tokens)
    max_model_len = min(limits.max_model_len, capacity_tokens)
    return replace(
        limits,
        max_model_len=max_model_len,
        max_prompt_tokens=min(limits.max_prompt_tokens, max_model_len - 1),
        max_num_seqs=min(limits.max_num_seqs, runner.max_step_sequences, runner.max_step_rows, runner.max_step_tokens),
        max_num_batched_tokens=min(limits.max_num_batched_tokens, runner.max_step_tokens),
        max_draft_tokens=min(limits.max_draft_tokens, runner.max_draft_tokens)
        if runner.num_state_slots
        else limits.max_draft_tokens,
    )
