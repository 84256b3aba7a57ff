"""
Small random checkpoints of every family, and the logits that `transformers` computes from them.

Neither needs torch: a file of `references/networks` holds the files and the tensor names that `transformers` writes for
a network, and a sample of its logits; `tests/parity/references.py` makes it. The weights are random numbers by name.
"""

import json
import re
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from headrace.inference.runner.step import Float32
from tests.inference.models.model_files import byte_level_tokenizer
from tests.inference.runner.native_models import LIMITS
from tests.parity.networks import VOCAB_SIZE

REFERENCES = Path(__file__).with_name("references")
NUM_TOKENS = 100
TOKENS = np.random.default_rng(5).integers(0, VOCAB_SIZE, NUM_TOKENS).tolist()
LONG_TOKENS = np.random.default_rng(6).integers(0, VOCAB_SIZE, 200).tolist()
"""More than the 128 positions that most networks are made for."""
CONTEXT = replace(LIMITS, max_context_tokens=NUM_TOKENS)
"""transformers scales dynamic ropes for the length of the prompt, Headrace for the context."""
SEED = 1
SAMPLE_STRIDE = 40


class TensorKind(msgspec.Struct, frozen=True, array_like=True):
    """The recipe of a stored tensor's random values."""

    shape: tuple[int, ...]
    center: float = 0.0
    """Mean of a vector: norms begin as ones and biases as zeros, which would hide mistakes."""
    is_transposed: bool = False
    """Whether the inputs of a matrix are its rows."""


@dataclass(frozen=True)
class Network:
    """A network as `transformers` saves it."""

    files: dict[str, dict[str, Any]]
    """The JSON files of the folder."""
    tensors: dict[str, TensorKind]
    logits: Float32
    """The sample of its logits for `TOKENS`, in float32."""


@cache
def stored_network(name: str) -> Network:
    """Read a network; the error for an unknown name says how to add it."""
    path = network_path(name)
    if not path.exists():
        raise KeyError(f"{name} is not stored. Run python -m tests.parity.references '{name}'.")
    with np.load(path) as archive:
        tensors = msgspec.json.decode(archive["tensors"].tobytes(), type=dict[str, TensorKind])
        return Network(json.loads(archive["files"].tobytes()), tensors, archive["logits"])


def network_path(name: str) -> Path:
    """Return the file of a network's references."""
    return REFERENCES / "networks" / (re.sub(r"[^a-z0-9.+]+", "-", name.lower()) + ".npz")


def config_of(name: str) -> dict[str, Any]:
    """Return the `config.json` of a network."""
    return stored_network(name).files["config.json"]


def write_checkpoint(name: str, folder: Path) -> None:
    """Write a network as `transformers` saves it, with a small tokenizer beside it."""
    write_files(stored_network(name), folder)


def write_files(network: Network, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, values in network.files.items():
        (folder / file).write_text(json.dumps(values))
    tensors = {tensor: random_values(tensor, kind) for tensor, kind in network.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer_file(folder / "tokenizer.json")


def random_values(name: str, kind: TensorKind) -> Float32:
    """Return multiples of 1/32, which bfloat16 and 4-bit weights in groups of 32 inputs hold exactly; noisy vectors."""
    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    if not kind.shape:
        return np.array(kind.center, np.float32)
    if len(kind.shape) == 1 or name.endswith("A_log"):
        return (kind.center + 0.1 * rng.standard_normal(kind.shape)).astype(np.float32)
    steps = rng.integers(-8, 8, kind.shape).astype(np.float32)
    by_input = steps.swapaxes(-1, -2) if kind.is_transposed else steps
    by_input[..., 0::32], by_input[..., 1::32] = -8, 7
    return steps / 32


def sample(logits: Float32) -> Float32:
    """Return the part of (T, V) logits that is stored: every 40th of a row, of other columns in the next."""
    rows, columns = np.indices(logits.shape)
    return logits[(rows + columns) % SAMPLE_STRIDE == 0]


@cache
def _tokenizer_text() -> str:
    text: str = byte_level_tokenizer(VOCAB_SIZE).to_str()
    return text


def _tokenizer_file(path: Path) -> None:
    path.write_text(_tokenizer_text())
