"""Memory, limits and descriptions of the backends that run networks of transformers."""

import time
from dataclasses import replace
from typing import Final, Protocol

from headrace.core.generation import ModelInfo
from headrace.core.sampling_defaults import recommended_sampling
from headrace.inference.engine.config import EngineConfig, EngineLimits, ModelSource, fit_to_runner
from headrace.inference.engine.loading.plan import host_budget
from headrace.inference.models.model import HfModel
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.step import Runner

MAX_STEP_ROWS: Final = 1024
"""Logits computed at a time: more prompt logprobs take more steps, and the vocabulary may be large."""


class HfRunner(Runner, Protocol):
    """A runner that knows the size of its network."""

    num_parameters: int


def device_budget(config: EngineConfig) -> MemoryBudget:
    """Return the memory of the device to plan with; the platform's share of host memory does not bound a GPU."""
    budget = host_budget(config)
    if config.device != "cuda":
        return budget
    return replace(budget, available_bytes=_gpu_bytes(config.gpu_memory_utilization), max_memory_bytes=None)


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
        answer_format=None if model.chat_template is None else model.chat_template.answer_format,
        tool_support=None if model.chat_template is None else model.chat_template.tool_support,
        created_s=int(time.time()),
        format_reason=f"{runner.info.dtype} {'as requested' if config.dtype != 'auto' else 'as in the checkpoint'}",
        sampling_defaults=model.defaults.sampling,
        recommended=recommended_sampling(model.defaults.sampling, num_parameters=runner.num_parameters),
        max_batch_tokens=fitted.max_num_batched_tokens,
        backend="transformers",
        backend_reason=config.backend_reason,
        is_batch_invariant=runner.info.is_batch_invariant,
    )
