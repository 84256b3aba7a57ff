"""Memory, limits and descriptions of the backends that run networks of transformers."""

import time
from typing import Protocol

from headrace.core.generation import ModelInfo
from headrace.engine.config import EngineConfig, EngineLimits, ModelSource, fit_to_runner
from headrace.engine.loading.assembly import recommended_sampling
from headrace.engine.loading.plan import BLOCK_TOKENS
from headrace.models.model import HfModel
from headrace.runner.memory import MemoryBudget, available_memory_bytes
from headrace.runner.step import Runner, RunnerLimits

_MAX_STEP_ROWS = 1024
"""Logits computed at a time: more prompt logprobs take more steps, and the vocabulary may be large."""


class HfRunner(Runner, Protocol):
    """A runner that knows the size of its network."""

    num_parameters: int


def runner_limits(limits: EngineLimits, config: EngineConfig) -> RunnerLimits:
    """Return the largest step, with a number of blocks that is still to be planned."""
    return RunnerLimits(
        num_blocks=1,
        block_tokens=BLOCK_TOKENS,
        max_step_tokens=limits.max_num_batched_tokens,
        max_step_sequences=limits.max_num_seqs,
        max_step_rows=max(limits.max_num_seqs, min(limits.max_num_batched_tokens, _MAX_STEP_ROWS)),
        max_context_tokens=limits.max_model_len,
        max_adapters=config.max_loras,
        max_adapter_rank=config.max_lora_rank,
    )


def memory_budget(config: EngineConfig) -> MemoryBudget:
    return MemoryBudget(
        available_bytes=_gpu_bytes(config.gpu_memory_utilization)
        if config.device == "cuda"
        else available_memory_bytes(),
        max_memory_bytes=None if config.device == "cuda" else config.max_memory_bytes,
        kv_cache_bytes=config.kv_cache_bytes,
        max_kv_cache_tokens=config.max_kv_cache_tokens,
    )


def _gpu_bytes(utilization: float) -> int:
    """Return the free memory of the GPU without the share that is not to be used."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return max(0, int(free - total * (1 - utilization)))


def model_info(
    source: ModelSource, model: HfModel, limits: EngineLimits, runner: HfRunner, config: EngineConfig
) -> ModelInfo:
    fitted = fit_to_runner(limits, runner.limits)
    return ModelInfo(
        name=source.served_model_name or model.name,
        revision=model.revision,
        family=model.model_type,
        dtype=runner.info.dtype,
        kv_dtype=runner.info.kv_dtype,
        device=runner.info.device,
        max_model_len=limits.max_model_len,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_num_seqs=limits.max_num_seqs,
        vocab_size=model.vocab_size,
        num_parameters=runner.num_parameters,
        has_chat_template=model.chat_template is not None,
        created_s=int(time.time()),
        format_reason=f"{runner.info.dtype} {'as requested' if config.dtype != 'auto' else 'as in the checkpoint'}",
        recommended=recommended_sampling(model.defaults),
        max_batch_tokens=fitted.max_num_batched_tokens,
        backend="transformers",
        backend_reason=config.backend_reason,
        is_batch_invariant=runner.info.is_batch_invariant,
    )
