"""
Growing a corpus with libFuzzer, whichever code it drives: a run, then the smallest inputs that reach all edges.

The working corpus lies in build/fuzz; `grown/NAME.zip` keeps the minimised part of it in the repository.
"""

import hashlib
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import grown_file, read_grown

WORK = Path("build/fuzz")
_MAX_INPUT_BYTES = 16 << 10
_MAX_GROWN_BYTES = 64 << 10
"""Of the kept inputs of a target, uncompressed."""
_TIMEOUT_S = 60
_CRASHES = ("crash-*", "timeout-*", "oom-*", "leak-*")

Launch = Callable[[Sequence[str], Path], int]
"""Run libFuzzer with flags in a process that writes to a log; return its exit status."""


@dataclass(frozen=True)
class Growth:
    """Results of a guided run: `status` is that of libFuzzer, 0 without a finding."""

    status: int
    num_runs: int
    cpu_s: float
    num_seed_edges: int
    num_edges: int
    crashes: Mapping[str, bytes]
    """Inputs that ended the process, by the name that libFuzzer gave them."""


def grow(name: str, seeds: Iterable[bytes], launch: Launch, *, seconds: int, words: Iterable[bytes] = ()) -> Growth:
    """Run libFuzzer for some seconds from all that is known, and keep the inputs that reach new edges."""
    folder = WORK / name
    corpus, seed_folder, crashes = folder / "corpus", folder / "seeds", folder / "crashes"
    for place in (seed_folder, crashes):
        shutil.rmtree(place, ignore_errors=True)
    for place in (corpus, seed_folder, crashes):
        place.mkdir(parents=True, exist_ok=True)
    _write(seed_folder, seeds)
    _write(corpus, read_grown(name).values())
    largest = max((file.stat().st_size for file in seed_folder.iterdir()), default=0)
    flags = [f"-max_total_time={seconds}", f"-max_len={max(4096, 2 * largest)}", f"-timeout={_TIMEOUT_S}"]
    flags += [f"-artifact_prefix={crashes}/", "-rss_limit_mb=4096", "-print_final_stats=1", "-reload=0"]
    if words:
        (folder / "words").write_text("".join(f'"{_quoted(word)}"\n' for word in words if 0 < len(word) < 64))
        flags.append(f"-dict={folder / 'words'}")
    log = folder / "log"
    before_s = _children_cpu_s()
    status = launch([*flags, str(corpus), str(seed_folder)], log)
    cpu_s = _children_cpu_s() - before_s
    edges = _edges(launch, folder, [seed_folder, corpus])
    kept = [file for file, count in edges.items() if count and file.parent == corpus]
    _store(name, kept)
    return Growth(
        status,
        _num_runs(log),
        cpu_s,
        sum(count for file, count in edges.items() if file.parent == seed_folder),
        sum(edges.values()),
        {file.name: file.read_bytes() for pattern in _CRASHES for file in crashes.glob(pattern)},
    )


def _write(folder: Path, inputs: Iterable[bytes]) -> None:
    for data in inputs:
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


def _quoted(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _edges(launch: Launch, folder: Path, places: Sequence[Path]) -> dict[Path, int]:
    """Return how many edges each input reaches that none before it does: seeds first, then the smallest ones."""
    files = [
        file for place in places for file in sorted(place.iterdir(), key=lambda file: (file.stat().st_size, file.name))
    ]
    control = folder / "control"
    control.write_text(f"{len(files)}\n0\n" + "".join(f"{file}\n" for file in files))
    launch(["-merge_inner=1", f"-merge_control_file={control}", "-rss_limit_mb=4096"], folder / "merge.log")
    found = dict.fromkeys(files, 0)
    for line in control.read_text().splitlines():
        if line.startswith("COV "):
            _, index, *edges = line.split()
            found[files[int(index)]] = len(edges)
    return found


def _store(name: str, files: Iterable[Path]) -> None:
    """Write the smallest inputs into one file, the same bytes for the same inputs."""
    target, total = grown_file(name), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as packed:
        for file in files:
            size = file.stat().st_size
            total += size
            if size > _MAX_INPUT_BYTES or total > _MAX_GROWN_BYTES:
                continue
            packed.writestr(zipfile.ZipInfo(file.name[:12]), file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def _num_runs(log: Path) -> int:
    lines = log.read_text(errors="replace").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("stat::number_of_executed_units:")), 0)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
