"""Prompts in the commands that are printed to be copied: those that the smallest model answers well."""

from collections.abc import Iterable, Mapping
from typing import Any

QUESTION = "How does rain form?"
"""Short, for narrow terminals; benchmarks/first_answer measures it."""
BEGINNING = "The sea is"
"""Begins a text, for base models."""


def prompt_for(models: Iterable[Mapping[str, Any]]) -> str:
    """Return the prompt to suggest for a server, by the models that it lists."""
    is_base = any(model.get("has_chat_template") is False for model in models)
    return BEGINNING if is_base else QUESTION
