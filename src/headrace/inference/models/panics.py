"""Errors of libraries written in Rust, whose panics reach Python as exceptions outside of `Exception`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace.core.errors import BrokenModel, HeadraceError

_NAME: Final = "PanicException"
"""The name of pyo3's class. Each library has a class of its own, which cannot be imported."""


def is_panic(error: BaseException) -> bool:
    return type(error).__name__ == _NAME


@contextmanager
def broken_if_refused(problem: str, advice: str = "", **facts: object) -> Iterator[None]:
    """Turn the errors and panics of `tokenizers`, which has no classes of its own, into `BrokenModel`."""
    try:
        yield
    except HeadraceError:
        raise
    except BaseException as exc:
        if not isinstance(exc, Exception) and not is_panic(exc):
            raise
        raise BrokenModel(f"{problem}: {exc}.{advice}", **facts) from exc
