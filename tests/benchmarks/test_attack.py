"""The attack benchmark: how long an attack held the event loop, and results of several runs in one file."""

import json
from pathlib import Path

from benchmarks.attack.run import Measured, store
from benchmarks.attack.watched import holds_ms


def test_the_wait_for_a_cpu_does_not_count_as_held(tmp_path: Path) -> None:
    stalls = tmp_path / "stalls.txt"
    stalls.write_text(
        "=== 9.500 stalled for 80 ms: 70 worked, 0 waited for a CPU, 10 waited for the GIL or events; 0 of it garbage\n"
        "  File === 10.500 stalled for 60 ms: 2 worked, 25 waited for a CPU, 33 waited for the GIL or events; 0 of it\n"
        "Thread 0x1 (most recent call first):\n"
    )
    assert holds_ms(stalls, 10.0) == [35.0]


def test_a_run_replaces_the_results_of_its_attacks_only(tmp_path: Path) -> None:
    results = tmp_path / "attack.json"
    store([Measured(name="nothing", num_attacks=1), Measured(name="malformed heads", num_attacks=2)], results)
    store([Measured(name="nothing", num_attacks=3)], results)
    counts = {row["name"]: row["num_attacks"] for row in json.loads(results.read_text())["attacks"]}
    assert counts == {"nothing": 3, "malformed heads": 2}
