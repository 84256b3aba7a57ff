"""Counts of runs by hand, by target: docs/verification.md sums up `benchmarks/results/fuzz.json`."""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.campaign import Report
from tests.fuzz.libfuzzer import Growth


def record(path: Path, target: str, report: Report, *, is_finding: bool = False) -> None:
    """Add a run of a target to a file that other processes may write too; a finding resets `inputs_since_finding`."""
    _update(path, target, lambda before: _added(before, report, is_finding=is_finding))


def record_growth(path: Path, target: str, growth: Growth) -> None:
    """Add a coverage-guided run of a target to the file."""
    _update(path, target, lambda before: before | {"guided": _grown(before.get("guided", {}), growth)})


def _update(path: Path, target: str, change: Callable[[dict], dict]) -> None:
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        records = json.loads(file.read() or "{}")
        records[target] = change(records.get(target, {}))
        file.truncate(0)
        file.write(json.dumps(dict(sorted(records.items())), indent=1) + "\n")


def _grown(before: dict[str, float], growth: Growth) -> dict[str, float]:
    return {
        "inputs": before.get("inputs", 0) + growth.num_runs,
        "cpu_s": round(before.get("cpu_s", 0.0) + growth.cpu_s, 1),
        "findings": before.get("findings", 0) + (growth.status != 0),
        "seed_edges": growth.num_seed_edges,
        "edges": growth.num_edges,
    }


def _added(before: dict, report: Report, *, is_finding: bool) -> dict:
    return before | {
        "inputs": before.get("inputs", 0) + report.num_cases,
        "accepted": before.get("accepted", 0) + report.num_accepted,
        "inputs_since_finding": 0 if is_finding else before.get("inputs_since_finding", 0) + report.num_cases,
        "findings": before.get("findings", 0) + is_finding,
        "cpu_s": round(before.get("cpu_s", 0.0) + report.cpu_s, 1),
        "slowest_ms": max(before.get("slowest_ms", 0), round(report.slowest_s * 1e3)),
    }
