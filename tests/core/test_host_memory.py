"""Memory of this machine and its cgroups."""

from headrace.core.host_memory import available_memory_bytes, total_memory_bytes


def machine(tmp_path, available_kib=1000, cgroup="", files=()):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {available_kib} kB\n")
    (proc / "self/cgroup").write_text(cgroup)
    for path, text in files:
        (groups / path).parent.mkdir(parents=True, exist_ok=True)
        (groups / path).write_text(text)
    return available_memory_bytes(proc, groups)


def test_without_cgroups_the_memory_is_what_the_kernel_reports(tmp_path):
    assert machine(tmp_path) == 1000 * 1024


def test_cgroup_v2_limits_and_droppable_cache_count(tmp_path):
    files = [
        ("a/b/memory.max", "500000\n"),
        ("a/b/memory.current", "300000\n"),
        ("a/b/memory.stat", "anon 1\ninactive_file 100000\n"),
        ("a/memory.max", "max\n"),
        ("a/memory.current", "300000\n"),
    ]
    assert machine(tmp_path, cgroup="0::/a/b\n", files=files) == 300000


def test_the_tightest_parent_decides(tmp_path):
    files = [
        ("a/b/memory.max", "max"),
        ("a/b/memory.current", "1"),
        ("a/memory.max", "5000"),
        ("a/memory.current", "4000"),
    ]
    assert machine(tmp_path, cgroup="0::/a/b\n", files=files) == 1000


def test_cgroup_v1_limits_count(tmp_path):
    files = [
        ("memory/x/memory.limit_in_bytes", "70000"),
        ("memory/x/memory.usage_in_bytes", "50000"),
        ("memory/x/memory.stat", "total_inactive_file 7\n"),
    ]
    assert machine(tmp_path, cgroup="5:cpu:/x\n4:memory,hugetlb:/x\n", files=files) == 20007


def test_the_total_is_the_machines_or_the_tightest_limit(tmp_path):
    machine(tmp_path, cgroup="0::/a\n", files=[("a/memory.max", "5000"), ("a/memory.current", "4000")])
    assert total_memory_bytes(tmp_path / "proc", tmp_path / "cgroup") == 5000
    assert total_memory_bytes(tmp_path / "proc", tmp_path / "none") == 9999999 * 1024


def test_this_machine_has_some_memory():
    assert 1 << 20 < available_memory_bytes() <= total_memory_bytes()
