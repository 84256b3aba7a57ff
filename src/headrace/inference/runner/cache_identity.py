"""The identity of a KV cache: equal for two runners whose blocks and states have the same bytes for the same tokens."""

import hashlib
import json
import platform
import zlib
from pathlib import Path
from typing import Final

from headrace import __version__, _native
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource

IDENTITY_BYTES: Final = 16


def cache_identity(
    spec: ModelSpec,
    weights: WeightSource,
    config: _native.ModelConfig,
    *,
    weights_checksum: int,
    isa: str,
    max_draft_tokens: int,
) -> bytes:
    """
    Return a hash of what decides the bytes of a KV cache besides tokens and adapters.

    That is the content of the weights wherever they lie, the network and its formats, and the code that computes: two
    builds of the native module do not share blocks. The tokenizer is not a part: blocks are found by token ids.
    """
    slots = [(slot.name, slot.num_rows, slot.num_columns, slot.num_bytes) for slot in _native.layout(config)]
    facts = (
        __version__,
        zlib.crc32(Path(_native.__file__).read_bytes()),
        platform.libc_ver(),  # sines and cosines of the rotary tables
        isa,
        repr(spec),
        (config.dtype, config.kv_dtype, config.rope_frequencies, config.rope_factors),
        slots,
        max_draft_tokens,  # a state slot has room for their inputs
        weights_checksum,
        weights.fingerprint if spec.layer_input_size else None,  # a table of inputs that is not packed
    )
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=IDENTITY_BYTES).digest()
