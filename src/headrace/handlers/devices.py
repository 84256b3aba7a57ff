"""The GPUs of children: round-robin over those that the model server sees. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headrace.core.gpus import VISIBLE_VARIABLE
from headrace.handlers.spec import HandlerSpec

_CODE_TAKES_THE_FIRST: Final = frozenset({"sagemaker"})
"""Contracts whose code takes the first GPU that it sees: code for the toolkits says `cuda` and knows no index."""


def least_used(taken: Iterable[int], num_gpus: int) -> int:
    """Return the index of the GPU with the fewest children; the lowest one on a tie."""
    counts = Counter(taken)
    return min(range(num_gpus), key=lambda gpu: (counts[gpu], gpu), default=0)


def on_gpu(spec: HandlerSpec, gpu: int) -> HandlerSpec:
    """
    Return the spec of a child on the GPU with this index, of those that the model server sees.

    As in the original servers, code for TorchServe and DJL sees all GPUs and is told its index. Other code sees only
    its own GPU.
    """
    if spec.load.device is None or spec.num_gpus < 2:
        return spec
    if spec.contract not in _CODE_TAKES_THE_FIRST:
        return replace(spec, load=replace(spec.load, device=gpu))
    visible = spec.environment.get(VISIBLE_VARIABLE)
    names = visible.split(",") if visible else list(map(str, range(spec.num_gpus)))
    return replace(spec, environment={**spec.environment, VISIBLE_VARIABLE: names[gpu].strip()})
