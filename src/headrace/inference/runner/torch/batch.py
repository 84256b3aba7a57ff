"""
A step's index arrays on the device of the model, the rules of its attention, and whether Triton kernels compute it.

Only `headrace.inference.runner.torch.kernels` imports triton, and its modules are imported only if `uses_triton`
returns True: a CPU needs no triton. Tests run the kernels on CPU tensors within `interpreted`, in Triton's interpreter,
which TRITON_INTERPRET=1 must have selected before triton is imported. The interpreter verifies indices, masks and
order, not that a kernel compiles.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.inference.runner.step import StepInput

_interpreted: ContextVar[bool] = ContextVar("interpreted", default=False)


def uses_triton(tensor: Tensor) -> bool:
    """Return whether operations on this tensor are done by Triton kernels rather than by plain torch."""
    return tensor.is_cuda or _interpreted.get()


@contextmanager
def interpreted(is_on: bool = True) -> Iterator[None]:
    """Enable the kernels for CPU tensors within the block, or disable them again."""
    token = _interpreted.set(is_on)
    try:
        yield
    finally:
        _interpreted.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTensors:
    """
    The arrays of a `StepInput` that networks and kernels read, int32, and the positions and slots that follow from it.

    Letters are those of `StepInput`. A padded batch has tokens that belong to no sequence (beyond `query_starts[-1]`)
    or sequences without tokens: their results are not defined.
    """

    token_ids: Tensor
    """(T,)"""
    positions: Tensor
    """(T,) position of each token in its sequence."""
    slots: Tensor
    """(T,) slot of each token in the KV cache; -1: its key and value are not stored."""
    query_starts: Tensor
    """(S + 1,)"""
    context_lens: Tensor
    """(S,)"""
    block_tables: Tensor
    """(S, N)"""
    rows: Tensor
    """(R,)"""
    hidden_rows: Tensor
    """(P,)"""
    max_query: int
    """Tokens of the largest chunk."""
    max_context: int
    """Tokens of the longest sequence, its chunk included."""


class Scoring(NamedTuple):
    """The rules by which scores become weights."""

    scale: float
    """Factor of the scores."""
    window: int
    """Tokens that a query sees, itself included; 0: all of them."""
    softcap: float
    """Scores s become `cap * tanh(s / cap)`; 0: they stay as they are."""
    sinks: Tensor | None
    """(H,) a score for each head that takes part in the softmax, without a value."""
    is_causal: bool
    """A query sees the tokens before it. False: all of its sequence."""


def to_device(step: StepInput, *, block_tokens: int, device: torch.device | str) -> StepTensors:
    """Copy a step to a device, in one transfer that does not wait for the device."""
    chunk_lens = np.diff(step.query_starts)
    sequences = np.repeat(np.arange(len(chunk_lens)), chunk_lens)
    offsets = np.arange(len(step.token_ids)) - step.query_starts[sequences]
    positions = step.context_lens[sequences] + offsets
    blocks = step.block_tables[sequences, positions // block_tokens]
    arrays = {
        "token_ids": step.token_ids,
        "positions": positions,
        "slots": blocks * block_tokens + positions % block_tokens,
        "query_starts": step.query_starts,
        "context_lens": step.context_lens,
        "block_tables": step.block_tables.reshape(-1),
        "rows": step.rows,
        "hidden_rows": step.hidden_rows,
    }
    packed = upload(np.concatenate(list(arrays.values()), dtype=np.int32, casting="same_kind"), device)
    pieces = torch.split(packed, [len(array) for array in arrays.values()])
    tensors = dict(zip(arrays, pieces, strict=True))
    tensors["block_tables"] = tensors["block_tables"].view(step.block_tables.shape)
    return StepTensors(
        **tensors,
        max_query=int(chunk_lens.max()),
        max_context=int((step.context_lens + chunk_lens).max()),
    )


def upload(array: npt.NDArray[np.generic], device: torch.device | str) -> Tensor:
    """Copy an array to a device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()  # other memory is copied while the host waits
    return tensor.to(device, non_blocking=True)
