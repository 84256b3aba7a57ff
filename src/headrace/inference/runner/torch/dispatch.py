"""
The choice between plain torch and Triton kernels.

Only `headrace.inference.runner.torch.kernels` imports triton, and its modules are imported only if `uses_triton`
returns True: a CPU needs no triton. Tests run the kernels on CPU tensors within `interpreted`, in Triton's interpreter,
which TRITON_INTERPRET=1 must have selected before triton is imported. The interpreter verifies indices, masks and
order, not that a kernel compiles.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

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
