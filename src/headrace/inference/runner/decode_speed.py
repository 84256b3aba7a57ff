"""The bytes that a token reads and the memory bandwidth of this machine, whose ratio bounds the speed of decoding."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace import _native
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.cpu import default_threads
from headrace.inference.runner.memory import active_weight_bytes
from headrace.inference.runner.native_config import NO_FORMATS, native_config

_PIECE_BYTES: Final = 32 << 20
"""Read in about a millisecond: on a busy machine some reads are then not interrupted."""
_NUM_PIECES: Final = 8
"""Read in turn: together they are several times the caches of common CPUs."""
_MEASURE_S: Final = 0.4
"""At a load of 15 on 2 CPUs ten measurements gave 62 to 66 GB/s; with reads of 256 MiB three gave 8 to 17."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBytes:
    """The bytes that decoding one token of one sequence reads."""

    weights: int
    """Weights; of a mixture of experts, only the experts that a token chooses."""
    state: int
    """State of the sequence, read and written."""
    kv_at_max_model_len: int
    """KV cache of a sequence that fills its context; of layers with a window only that."""

    def tokens_per_s(self, bandwidth: float, *, is_full: bool = False) -> float:
        """Return the tokens per second that a memory bandwidth (bytes per second) allows at most."""
        return bandwidth / (self.weights + self.state + self.kv_at_max_model_len * is_full)


def decode_bytes(
    spec: ModelSpec, *, dtype: str, kv_dtype: str, max_model_len: int, layer_formats: Mapping[str, str] = NO_FORMATS
) -> DecodeBytes:
    config = native_config(
        spec, dtype=dtype, kv_dtype=kv_dtype, max_context_tokens=max_model_len, layer_formats=layer_formats
    )
    layers = [layer for layer in range(spec.num_layers) if spec.mixer(layer) == "attention"]
    layer_bytes = _native.kv_block_bytes(config) / _native.BLOCK_TOKENS / max(1, len(layers))
    read = sum(min(spec.window(layer) or max_model_len, max_model_len) for layer in layers)
    # A token reads one row of a table.
    tables = {"positions"} if spec.tie_embeddings else {"positions", "embed"}
    slots = [slot for slot in _native.layout(config) if slot.name in tables]
    unread = sum(slot.num_bytes - slot.num_bytes // slot.num_rows for slot in slots)
    return DecodeBytes(
        weights=active_weight_bytes(config) - unread,
        state=2 * _native.state_slot_bytes(config, 0),
        kv_at_max_model_len=round(read * layer_bytes),
    )


def measure_bandwidth() -> float:
    """Return the bytes per second that the threads of a step read from memory: the best of many short reads."""
    pieces = [_native.Arena(_PIECE_BYTES) for _ in range(_NUM_PIECES)]
    for piece in pieces:
        piece.view()[:] = 1  # the kernel maps untouched pages to one page of zeros
    isa, num_threads = _native.available_isas()[0], default_threads()
    best, deadline_s = 0.0, time.monotonic() + _MEASURE_S
    while time.monotonic() < deadline_s:
        best = max(best, *(_native.read_bandwidth(piece, isa=isa, num_threads=num_threads) for piece in pieces))
    return best
