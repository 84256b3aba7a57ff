"""Recognise panics of libraries written in Rust, which reach Python as exceptions outside of `Exception`."""

from typing import Final

_NAME: Final = "PanicException"
"""The name of pyo3's class. Each library has a class of its own, which cannot be imported."""


def is_panic(error: BaseException) -> bool:
    """Return whether an exception is a panic of a Rust library."""
    return type(error).__name__ == _NAME
