"""Kinds of models: the tasks of a pooled model, and the ways in which a model learns of tools."""

from typing import Literal

PoolingTask = Literal["embed", "embed_tokens", "score"]
"""One vector per input, one vector per token, or the outputs of the model's classification head."""

ToolSupport = Literal["native", "generic"]
"""The chat template shows tools to the model, or the prompt describes them as text."""
