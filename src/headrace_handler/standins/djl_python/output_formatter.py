"""The decorator that marks the function of a `model.py` which changes responses."""

from collections.abc import Callable
from typing import Any, TypeVar

from .request_io import TextGenerationOutput

__all__ = ["TextGenerationOutput", "output_formatter"]

F = TypeVar("F", bound=Callable[..., Any])


def output_formatter(function: F) -> F:
    """Mark a function that changes each response, or each part of a stream."""
    function.is_output_formatter = True  # type: ignore[attr-defined]
    return function
