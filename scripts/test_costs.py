"""
Measure the CPU and wall seconds of every test and fixture, children included, and print the most expensive ones.

  python scripts/test_costs.py                     of all tests, in three processes; takes as long as scripts/test --all
  python scripts/test_costs.py tests/inference/engine        of some; arguments go to pytest
  python scripts/test_costs.py --write [...]       also update tests/costs.json, from which the tiers are made
  python scripts/test_costs.py --from FILE [...]   of an earlier `pytest --costs FILE`, also one that was cut off

CPU seconds depend little on what else the machine does, wall seconds much: write on an idle one.
"""

import argparse
import json
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "costs.json"
MOST = 50
WRITTEN_CPU_S, WRITTEN_WALL_S = 0.5, 2.0
"""Less is not written: the table would change with each measurement."""
Costs = dict[str, list[float]]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update tests/costs.json")
    parser.add_argument("--from", dest="source", type=Path, help="costs that `pytest --costs` wrote")
    given, rest = parser.parse_known_args()
    measured = read(given.source or measure(rest))
    measured["files"] = by_file(measured)
    for kind in ("files", "tests", "fixtures"):
        print_most_expensive(kind, measured[kind])
    imports = sum(cpu_s for cpu_s, _ in measured["imports"].values())
    print(f"\nCollection took {imports:.1f} s of CPU, of all processes together.")
    if given.write:
        write(measured)


def measure(arguments: list[str]) -> Path:
    """Run tests; return the file with their costs."""
    target = Path(tempfile.mkdtemp(prefix="headrace-costs-")) / "costs.json"
    several = [] if arguments else ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--tier", "all"]
    python = ROOT / ".venv" / "bin" / "python"
    subprocess.run([python, "-P", "-m", "pytest", "--costs", target, *several, *arguments], cwd=ROOT, check=False)
    return target


def read(target: Path) -> dict[str, Costs]:
    """Return the sum of what the processes of pytest wrote."""
    sums: dict[str, Costs] = {}
    for part in sorted(target.parent.glob(f"{target.stem}.*.json")):
        for kind, costs in json.loads(part.read_text()).items():
            for name, cost in costs.items():
                earlier = sums.setdefault(kind, {}).get(name, [0.0, 0.0])
                sums[kind][name] = [earlier[at] + cost[at] for at in (0, 1)]
    return sums


def by_file(measured: dict[str, Costs]) -> Costs:
    """Return the sum of the tests and fixtures of each file."""
    files: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kind in ("tests", "fixtures"):
        for name, (cpu_s, wall_s) in measured[kind].items():
            sums = files[name.split("::")[0]]
            sums[0], sums[1] = sums[0] + cpu_s, sums[1] + wall_s
    return dict(files)


def print_most_expensive(kind: str, costs: Costs) -> None:
    """Print a table of the most expensive ones, and what all took."""
    total_cpu_s, total_wall_s = (sum(cost[at] for cost in costs.values()) for at in (0, 1))
    print(f"\n{len(costs)} {kind}: {total_cpu_s:.0f} s of CPU, {total_wall_s:.0f} s of wall time\n   CPU s   wall s")
    for name, (cpu_s, wall_s) in sorted(costs.items(), key=lambda entry: -entry[1][0])[:MOST]:
        print(f"{cpu_s:8.1f} {wall_s:8.1f}  {name}")


def write(measured: dict[str, Costs]) -> None:
    """Replace the entries of all files that were measured, and those of files that are gone."""
    stored = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    table = {}
    for kind in ("files", "tests", "fixtures"):
        kept = {name: cost for name, cost in stored.get(kind, {}).items() if is_kept(name, measured["files"])}
        costs = {name: cost for name, cost in measured[kind].items() if name.startswith("tests/") and is_worth(*cost)}
        entries = sorted({**kept, **costs}.items())
        table[kind] = {name: [round(seconds, 1) for seconds in cost] for name, cost in entries}
    lines = json.dumps(table, indent=1).replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]")
    TABLE.write_text(f"{lines}\n")


def is_kept(name: str, measured: Costs) -> bool:
    path = name.split("::", maxsplit=1)[0]
    return path not in measured and (ROOT / path).exists()


def is_worth(cpu_s: float, wall_s: float) -> bool:
    return cpu_s >= WRITTEN_CPU_S or wall_s >= WRITTEN_WALL_S


if __name__ == "__main__":
    main()
