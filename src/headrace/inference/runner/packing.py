"""
Packed weights: the checkpoint in the layout of the native kernels, packed once and cached.

A packed file is one page with a JSON header, followed by the weights as they are in memory. It is written under a
temporary name and renamed, so servers that start concurrently never see half a file, and one that has a file mapped
keeps it when it is replaced. A file that is truncated, damaged or of another version is rebuilt: weights that are
copied are compared with a checksum of all bytes, those that are mapped with one of pages across the file, which finds
what a crash left unwritten. The cache is optional: where it cannot be written, weights are packed at every start.

The weights of small models are copied out of the file. Those that fill much of the memory are packed into the file and
mapped, so that they are in memory once, and experts that no token chooses are never read.
"""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.core.errors import BrokenModel, SettingsError
from headrace.core.progress import Progress, no_progress
from headrace.core.sizes import format_size
from headrace.inference.models.decoding import cut_numbers, decode
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import Encoding, WeightSource
from headrace.inference.runner.packed_parts import PANEL, Part, matrices_of, parts_of

PACKING_VERSION: Final = 6
"""Increased when the layout of packed weights or their quantization changes."""
Mapping = Literal["none", "preferred", "required"]
"""Weights are copied into memory, mapped from their file if it can be written, or mapped in any case."""
_MAGIC: Final = b"HEADRACE"
_HEADER_BYTES: Final = 4096
_SAMPLED_PAGES: Final = 64
_PAGE_BYTES: Final = 4096
_W4_BITS: Final = 4
_UNIFORM: Final = {
    Encoding.Q4_0: "w4_symmetric",
    Encoding.FP4: "fp4",
    Encoding.TERNARY: "ternary",
    Encoding.Q2_K: "w2",
    Encoding.Q3_K: "w3",
}
"""The formats of matrices that consist of one encoding."""
LOW_BITS: Final = frozenset({"ternary", "w2", "w3"})
"""Formats of matrices of less than 4 bits."""
_TURNED: Final = (".mix_conv", ".mix_dt_b", ".mix_z_b")
"""Vectors with a matrix, or one for each head, whose rows and columns are exchanged."""
_TASK: Final = "Packing weights"
_Fill = Callable[[_native.Arena], None]
"""Packs a checkpoint into an arena."""


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Weights in memory, and their origin: "cached", "mapped", "packed and cached", "packed, not cached: ..." etc."""

    arena: _native.Arena
    origin: str
    checksum: int
    """Of all of their bytes: what identifies the weights wherever their files lie."""


def load_packed(
    spec: ModelSpec,
    weights: WeightSource,
    config: _native.ModelConfig,
    *,
    cache_dir: Path,
    threads: int,
    progress: Progress = no_progress,
    mapping: Mapping = "none",
) -> PackedWeights:
    """
    Return the packed weights of a checkpoint, from the cache if possible.

    Raises:
        BrokenModel: a tensor is missing, truncated or of the wrong shape.
        SettingsError: the weights must be mapped, but the cache cannot be written.
    """
    key = packing_key(weights.fingerprint, config)
    path = cache_dir / "packed" / f"{key}.weights"
    fill = partial(pack, spec, weights, config, threads=threads, progress=progress)
    if mapping != "none":
        try:
            return _map_weights(config, fill, path=path, key=key, threads=threads)
        except OSError as exc:
            if mapping == "required":
                raise SettingsError(
                    f"The weights do not fit into memory beside everything else, and the file to map them from cannot "
                    f"be written: {exc}. It takes {format_size(_native.layout_bytes(config))}; free that much disk "
                    "space or set cache_dir to another disk.",
                    name="cache_dir",
                ) from exc
    cached = read_packed(path, key, _native.layout_bytes(config), threads=threads)
    if cached is not None:
        return cached
    arena = _native.Arena(_native.layout_bytes(config))
    fill(arena)
    checksum = arena.checksum(threads)
    try:
        write_packed(path, key, arena, checksum)
    except OSError as exc:
        return PackedWeights(arena, f"packed, not cached: {exc}", checksum)
    return PackedWeights(arena, "packed and cached", checksum)


def packing_key(fingerprint: str, config: _native.ModelConfig) -> str:
    """Return the cache key: a hash of the checkpoint's content, the format, the layout and the packing version."""
    slots = [
        (slot.name, slot.is_vector, slot.num_rows, slot.num_columns, slot.num_bytes) for slot in _native.layout(config)
    ]
    weight_format = config.dtype.partition("a")[0]  # w4a8 and w4a16 read the same panels
    identity = json.dumps([PACKING_VERSION, fingerprint, weight_format, slots])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def pack(
    spec: ModelSpec,
    weights: WeightSource,
    config: _native.ModelConfig,
    arena: _native.Arena,
    *,
    threads: int,
    progress: Progress = no_progress,
) -> None:
    """Pack every tensor of a checkpoint into an arena of zeros."""
    total = _native.layout_bytes(config)
    done = 0
    for slot in _native.layout(config):
        if slot.is_vector:
            _copy_vector(spec, weights, arena, slot)
        else:
            _pack_matrix(spec, weights, arena, slot, threads)
        done += slot.num_bytes
        progress(_TASK, done, total)
    progress(_TASK, total, total)


def layer_formats_of(spec: ModelSpec, weights: WeightSource) -> dict[str, str]:
    """
    Return the formats of packed matrices that are not plain w4 in w4a8 and w4a16.

    "w8" are those that a mixed file stores with more than 4 bits; if a file stores no matrix in 4 bits, these formats
    mean 4 bits for all of them. "w4_symmetric" are those of which all tensors are Q4_0: without minima a layer takes
    4.5 bits a weight instead of 5. "fp4" are those in MXFP4, whose numbers are not evenly spaced. "ternary", "w2" and
    "w3" keep the numbers of ternary weights, Q2_K and Q3_K. Beside q and k in these, v has a matrix of its own.
    """
    matrices = [f"layers.{layer}.{name}" for layer in range(spec.num_layers) for name in matrices_of(spec, layer)]
    tensors = {matrix: list(parts_of(spec, matrix)) for matrix in matrices}
    bits = {matrix: max(weights.stored_bits(part.name) for part in parts) for matrix, parts in tensors.items()}
    if min(bits.values()) > _W4_BITS:
        return {}
    formats = {matrix: "w8" for matrix in matrices if bits[matrix] > _W4_BITS}
    for matrix, parts in tensors.items():
        if format_ := _format_of(weights, parts):
            formats[matrix] = format_
        elif matrix.endswith(".qkv") and bits[matrix] <= _W4_BITS:
            formats |= _formats_apart(spec, weights, matrix, parts)
    return formats


def _format_of(weights: WeightSource, parts: Sequence[Part]) -> str | None:
    """Return the format that keeps the numbers of a matrix of one encoding, None for w4."""
    encodings = {weights.encoding(part.name) for part in parts}
    format_ = _UNIFORM.get(encodings.pop()) if len(encodings) == 1 else None
    is_cut = any(part.columns is not None for part in parts)  # perhaps inside a block of 128 or 256 inputs
    return None if is_cut and format_ in LOW_BITS else format_


def _formats_apart(spec: ModelSpec, weights: WeightSource, matrix: str, parts: Sequence[Part]) -> dict[str, str]:
    """Return the formats of q with k and of v, if those of q and k have less than 4 bits and v does not share them."""
    names = [part.name.rpartition(".")[2] for part in parts]
    if names != ["q", "k", "v"] or spec.mla is not None or parts[2].first_row % PANEL:
        return {}
    first = _format_of(weights, parts[:2])
    if first not in LOW_BITS:
        return {}
    return {matrix: first, parts[2].name: _format_of(weights, parts[2:]) or "w4"}


def read_packed(path: Path, key: str, num_bytes: int, *, threads: int) -> PackedWeights | None:
    """
    Return the weights of a packed file, or None if there is no intact file with that key.

    They are copied out of the page cache: huge pages recover the cost within the first steps.
    """
    header = _read_header(path, key, num_bytes)
    if header is None:
        return None
    file = np.memmap(path, np.uint8, "r", offset=_HEADER_BYTES)
    arena = _native.Arena(num_bytes)
    checksum = arena.fill(np.asarray(file), threads)
    return PackedWeights(arena, "cached", checksum) if header.get("checksum") == checksum else None


def _read_header(path: Path, key: str, num_bytes: int) -> dict[str, object] | None:
    try:
        if path.stat().st_size != _HEADER_BYTES + num_bytes:
            return None
        with path.open("rb") as file:
            page = file.read(_HEADER_BYTES)
        header = json.loads(page.removeprefix(_MAGIC).rstrip(b"\0")) if page.startswith(_MAGIC) else None
    except (OSError, ValueError):
        return None
    return header if isinstance(header, dict) and header.get("key") == key else None


def _map_weights(config: _native.ModelConfig, fill: _Fill, *, path: Path, key: str, threads: int) -> PackedWeights:
    """
    Return the weights mapped from their file, which is written first if need be. Raises OSError.

    Only a sample of it is verified, since the whole checksum would read every expert.
    """
    num_bytes = _native.layout_bytes(config)
    origin = "mapped"
    header = _read_header(path, key, num_bytes)
    if header is None or header.get("sample") != _sample(np.memmap(path, np.uint8, "r", offset=_HEADER_BYTES)):
        checksum = _pack_into_file(num_bytes, fill, path=path, key=key, threads=threads)
        origin = "packed and mapped"
    else:
        checksum = int(str(header["checksum"]))
    arena = _native.Arena.map(str(path), _HEADER_BYTES, num_bytes, writable=False)
    if config.num_experts == 0:
        arena.populate(threads)
    return PackedWeights(arena, origin, checksum)


def _pack_into_file(num_bytes: int, fill: _Fill, *, path: Path, key: str, threads: int) -> int:
    """
    Pack into a file without holding all of the weights in memory, and give it its name when it is on disk.

    Return the checksum.
    """
    with replaced_file(path) as (handle, temporary):
        os.posix_fallocate(handle, 0, _HEADER_BYTES + num_bytes)  # else a full disk is a SIGBUS while pages are written
        arena = _native.Arena.map(str(temporary), _HEADER_BYTES, num_bytes, writable=True)
        fill(arena)
        os.fsync(handle)  # the header must not reach the disk before the weights
        checksum = arena.checksum(threads)
        os.pwrite(handle, _header(key, arena, checksum), 0)
        os.fsync(handle)
    return checksum


def _sample(weights: npt.NDArray[np.uint8]) -> str:
    """Return a hash of pages that are spread over the weights, the first and the last among them."""
    digest = hashlib.blake2b(digest_size=16)
    last = max(weights.size - _PAGE_BYTES, 0)
    for index in range(_SAMPLED_PAGES):
        start = last * index // (_SAMPLED_PAGES - 1)
        digest.update(weights[start : start + _PAGE_BYTES].tobytes())
    return digest.hexdigest()


def _header(key: str, arena: _native.Arena, checksum: int) -> bytes:
    values = {"key": key, "checksum": checksum, "sample": _sample(arena.view())}
    return (_MAGIC + json.dumps(values).encode()).ljust(_HEADER_BYTES, b"\0")


def write_packed(path: Path, key: str, arena: _native.Arena, checksum: int) -> None:
    """Write a packed file atomically. Raises OSError."""
    with replaced_file(path) as (handle, _), os.fdopen(handle, "wb", closefd=False) as file:
        file.write(_header(key, arena, checksum))
        file.write(arena.view().data)


def _pack_matrix(
    spec: ModelSpec, weights: WeightSource, arena: _native.Arena, slot: _native.Slot, threads: int
) -> None:
    parts = [part for part in parts_of(spec, slot.name) if part.first_row < slot.num_rows]
    rows_per_expert = slot.num_rows // (parts[-1].expert + 1)
    for part in parts:
        tensor = cut_numbers(weights.load(part.name), part.rows, part.columns)
        try:
            _native.pack_tensor(
                arena,
                slot,
                tensor.encoding,
                np.ascontiguousarray(tensor.data),
                tensor.num_rows,
                tensor.num_columns,
                first_row=part.expert * rows_per_expert + part.first_row,
                interleaved=part.interleaved,
                num_threads=threads,
            )
        except ValueError as exc:
            raise BrokenModel(
                f"Weight {part.name} is {tensor.num_rows} x {tensor.num_columns} ({tensor.encoding}), "
                "which does not match the config of this checkpoint.",
                name=part.name,
            ) from exc


def _copy_vector(spec: ModelSpec, weights: WeightSource, arena: _native.Arena, slot: _native.Slot) -> None:
    out = arena.view()[slot.offset : slot.offset + slot.num_bytes].view(np.float32)
    is_table = slot.num_rows > 1 and not slot.name.endswith("_bias")
    table = out.reshape(slot.num_rows, slot.num_columns)
    for part in parts_of(spec, slot.name):
        values = decode(weights.load(part.name))
        if slot.name.endswith(_TURNED):
            size = min(len(values), slot.num_columns)
            values = values.reshape(-1, size, values.shape[1]).swapaxes(1, 2).reshape(-1, size)
        out, values = (table, values) if is_table else (table[part.expert], values.ravel())
        rows = np.arange(len(values), dtype=np.int32)
        rows = part.first_row + (rows // 16 * 32 + rows % 16 if part.interleaved else rows)
        if rows[-1] >= len(out) or (out.ndim > 1 and values.shape[1] > out.shape[1]):
            raise BrokenModel(f"Weight {part.name} has {values.size} numbers, which is too many.", name=part.name)
        out[(rows,) if out.ndim == 1 else (rows, slice(values.shape[1]))] = values


@contextmanager
def replaced_file(path: Path) -> Iterator[tuple[int, Path]]:
    """
    Yield a new file (its descriptor and its temporary name), which takes the place of `path` at the end of the block.

    First remove the temporary files of writers of any file with this suffix that were killed: a writer holds a lock on
    its file. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"*{path.suffix}.*"):
        with suppress(OSError), leftover.open("rb") as file:  # a file that is locked, or not ours, stays
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()
    handle, temporary = _locked_temporary(path)
    try:
        yield handle, temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _locked_temporary(path: Path) -> tuple[int, Path]:
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if Path(name).exists():  # else another process removed it before it was locked
                return handle, Path(name)
        except OSError:
            os.close(handle)
            Path(name).unlink(missing_ok=True)
            raise
        os.close(handle)
