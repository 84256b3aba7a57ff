"""DJL Serving's contract: a `model.py` whose `handle(inputs)` returns an `Output`."""

from headrace_handler.contracts.djl.contract import make

__all__ = ["make"]
