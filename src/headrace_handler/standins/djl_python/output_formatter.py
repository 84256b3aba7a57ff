"""Decorators that mark functions of a `model.py`: for requests, predictions and responses."""

from collections.abc import Callable
from typing import Any, TypeVar

from .request_io import TextGenerationOutput

__all__ = ["TextGenerationOutput", "init_handler", "input_formatter", "output_formatter", "prediction_handler"]

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


def output_formatter(function: F) -> F:
    """Mark a function that changes each response, or each part of a stream."""
    return _marked(function, "is_output_formatter")


def _marked(function: F, mark: str) -> F:
    setattr(function, mark, True)
    return function
