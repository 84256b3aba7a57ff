"""The NVIDIA GPUs of this machine, found without torch or CUDA: importing them takes seconds."""

import csv
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_QUERY_TIMEOUT_S = 20
"""Without its persistence mode the driver takes some seconds to initialize each GPU."""
_NODE = re.compile(r"nvidia([0-9]+)")
_COLUMNS = 4
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the driver names it."""

    index: int
    """Its index in the driver, which `CUDA_VISIBLE_DEVICES` takes."""
    uuid: str = ""
    name: str = "NVIDIA GPU"
    memory_bytes: int | None = None
    """None: the driver does not say."""


def visible_gpus(environment: Mapping[str, str], *, devices: Path = Path("/dev")) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA shows to a process with this environment, in its order; none without a driver."""
    # The device files save the wait for nvidia-smi on machines without any GPU; WSL has one file for all.
    numbers = sorted(int(match[1]) for path in devices.glob("nvidia*") if (match := _NODE.fullmatch(path.name)))
    if not numbers and not (devices / "dxg").exists():
        return ()
    gpus = _query() or tuple(Gpu(index=number) for number in numbers)
    return select_visible(gpus, environment.get(VISIBLE_VARIABLE))


def select_visible(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """
    Apply a value of `CUDA_VISIBLE_DEVICES` as CUDA does: the first entry that names no GPU ends the list.

    Args:
        gpus: all GPUs of the machine.
        visible: indices, or UUIDs or their beginnings, separated by commas; None: the variable is not set.
    """
    if visible is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        is_uuid = entry.startswith("GPU-")
        found = [gpu for gpu in gpus if entry == str(gpu.index) or (is_uuid and gpu.uuid.startswith(entry))]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return tuple(chosen)


def parse_query(text: str) -> tuple[Gpu, ...]:
    """Read the lines of nvidia-smi's query: index, UUID, name and MiB of memory; skip any other line."""
    rows = ([cell.strip() for cell in row] for row in csv.reader(text.splitlines()))
    return tuple(
        Gpu(
            index=int(row[0]),
            uuid=row[1],
            name=row[2],
            memory_bytes=int(row[3]) * _MIB if row[3].isdecimal() else None,
        )
        for row in rows
        if len(row) == _COLUMNS and row[0].isdecimal()
    )


def _query() -> tuple[Gpu, ...]:
    try:
        asked = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_query(asked.stdout)
