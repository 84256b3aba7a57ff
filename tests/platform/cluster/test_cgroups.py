"""Control groups of workers, in a folder that has the kernel's files."""

from pathlib import Path

import pytest

from headrace.platform.cluster.cgroups import WorkerCgroups, delegated_group, limit_files
from headrace.platform.cluster.launcher import Limits

GIB = 1 << 30


def unit(root: Path, *, controllers: str = "cpu io memory pids", processes: str = "") -> Path:
    """Make a delegated group with the platform's group in it; return it."""
    delegated = root / "cgroup" / "system.slice" / "headrace.service"
    (delegated / "platform").mkdir(parents=True)
    (delegated / "cgroup.controllers").write_text(controllers)
    (delegated / "cgroup.procs").write_text(processes)
    (delegated / "cgroup.subtree_control").write_text("memory")
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text("0::/system.slice/headrace.service/platform\n")
    return delegated


def found_in(root: Path) -> Path | None:
    return delegated_group(root / "proc", root / "cgroup")


def test_a_process_is_moved_into_a_group_with_its_limits(tmp_path: Path) -> None:
    delegated = unit(tmp_path)
    assert found_in(tmp_path) == delegated
    WorkerCgroups(delegated).bound("w", 42, Limits(num_cpus=1.5, memory_bytes=GIB))
    group = delegated / "worker-w"
    files = {path.name: path.read_text() for path in group.iterdir()}
    assert files == {"cpu.max": "150000 100000", "memory.max": str(GIB), "cgroup.procs": "42"}
    assert (delegated / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_group_without_processes_is_removed(tmp_path: Path) -> None:
    delegated = unit(tmp_path)
    (delegated / "worker-w").mkdir()
    groups = WorkerCgroups(delegated)
    groups.remove("w")
    groups.remove("w")
    assert not (delegated / "worker-w").exists()


def test_a_worker_without_limits_stays_where_it_is(tmp_path: Path) -> None:
    delegated = unit(tmp_path)
    WorkerCgroups(delegated).bound("w", 42, Limits())
    assert not (delegated / "worker-w").exists()


def test_a_group_that_cannot_be_made_is_no_obstacle(tmp_path: Path) -> None:
    WorkerCgroups(tmp_path / "missing").bound("w", 42, Limits(num_cpus=1))


@pytest.mark.parametrize(
    ("limits", "files"),
    [
        (Limits(num_cpus=0.25), {"cpu.max": "25000 100000", "memory.max": "max"}),
        (Limits(num_cpus=0.001), {"cpu.max": "1000 100000", "memory.max": "max"}),
        (Limits(memory_bytes=GIB), {"cpu.max": "max", "memory.max": str(GIB)}),
    ],
)
def test_what_is_not_limited_is_said_to_be_unlimited(limits: Limits, files: dict[str, str]) -> None:
    """The group of an earlier worker of that name may have had limits."""
    assert limit_files(limits) == files


def test_groups_are_made_only_in_an_empty_parent_with_both_controllers(tmp_path: Path) -> None:
    unit(tmp_path / "busy", processes="7\n")
    unit(tmp_path / "few", controllers="memory pids")
    assert found_in(tmp_path / "busy") is None
    assert found_in(tmp_path / "few") is None
    assert found_in(tmp_path / "nothing") is None


def test_v1_and_the_root_group_have_no_place_for_groups(tmp_path: Path) -> None:
    unit(tmp_path)
    own = tmp_path / "proc" / "self" / "cgroup"
    for text in ("4:memory:/system.slice/headrace.service\n", "0::/\n"):
        own.write_text(text)
        assert found_in(tmp_path) is None
