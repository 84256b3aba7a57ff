"""Counts of runs by hand, by target: docs/verification.md sums up `benchmarks/results/fuzz.json`."""

import fcntl
import json
from pathlib import Path

from tests.fuzz.campaign import Report


def record(path: Path, target: str, report: Report, *, is_finding: bool = False) -> None:
    """Add a run of a target to a file that other processes may write too; a finding resets `inputs_since_finding`."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        records = json.loads(file.read() or "{}")
        records[target] = _added(records.get(target, {}), report, is_finding=is_finding)
        file.truncate(0)
        file.write(json.dumps(dict(sorted(records.items())), indent=1) + "\n")


def _added(before: dict[str, float], report: Report, *, is_finding: bool) -> dict[str, float]:
    return {
        "inputs": before.get("inputs", 0) + report.num_cases,
        "accepted": before.get("accepted", 0) + report.num_accepted,
        "inputs_since_finding": 0 if is_finding else before.get("inputs_since_finding", 0) + report.num_cases,
        "findings": before.get("findings", 0) + is_finding,
        "cpu_s": round(before.get("cpu_s", 0.0) + report.cpu_s, 1),
        "slowest_ms": max(before.get("slowest_ms", 0), round(report.slowest_s * 1e3)),
    }
