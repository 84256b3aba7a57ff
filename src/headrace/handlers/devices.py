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
    """Return the number of the GPU that fewest children use; of equals the first."""
    counts = Counter(taken)
    return min(range(num_gpus), key=lambda gpu: (counts[gpu], gpu), default=0)


def on_gpu(spec: HandlerSpec, gpu: int) -> HandlerSpec:
    """
    Return the spec of a child on the GPU of this number, among those that the model server sees.

    Code for TorchServe and DJL sees all and is told the number, as there. Other code sees no other GPU.
    """
    if spec.load.device is None or spec.num_gpus < 2:
        return spec
    if spec.contract not in _CODE_TAKES_THE_FIRST:
        return replace(spec, load=replace(spec.load, device=gpu))
    visible = spec.environment.get(VISIBLE_VARIABLE)
    names = visible.split(",") if visible else list(map(str, range(spec.num_gpus)))
    return replace(spec, environment={**spec.environment, VISIBLE_VARIABLE: names[gpu].strip()})
