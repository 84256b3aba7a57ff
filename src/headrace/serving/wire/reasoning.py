"""The budget of a reasoning, which each dialect names differently: in tokens, or as an effort."""

from typing import Literal

import msgspec

from headrace.core.generation import ModelInfo

EFFORT_TOKENS = {"minimal": 512, "low": 1024, "medium": 4096}
"""Budgets of efforts for models that know no levels; higher efforts have none."""


class Thinking(msgspec.Struct):
    """The value of `thinking` as Anthropic defines it, and DeepSeek and others in chat completions."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = None
    """The budget of the reasoning."""
    display: str | None = None


def reasoning_budget(model: ModelInfo, *, tokens: int | None, effort: object = None) -> int | None:
    """
    Return the most tokens of a request's reasoning, or None.

    A negative number is no budget, as in vLLM. The budget of an effort is left out where the template tells the model
    its effort, and with vLLM, which cannot end a reasoning.
    """
    if tokens is not None:
        return None if tokens < 0 else tokens
    if model.has_effort_levels or model.backend == "vllm" or not isinstance(effort, str):
        return None
    return EFFORT_TOKENS.get(effort)
