"""Decorators that mark functions of a `model.py` for a built-in handler or engine."""

from collections.abc import Callable
from typing import Any, TypeVar

SAGEMAKER_ADAPTER_IDENTIFIER_HEADER = "X-Amzn-SageMaker-Adapter-Identifier"

F = TypeVar("F", bound=Callable[..., Any])


def input_formatter(function: F) -> F:
    """Mark a function that changes each request before the model gets it."""
    return _marked(function, "is_input_formatter")


def prediction_handler(function: F) -> F:
    """Mark a function that predicts in place of the model's own method."""
    return _marked(function, "is_prediction_handler")


def init_handler(function: F) -> F:
    """Mark a function that loads the model."""
    return _marked(function, "is_init_handler")


def _marked(function: F, attribute: str) -> F:
    setattr(function, attribute, True)
    return function
