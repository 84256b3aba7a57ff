"""
Merge the results of runs into one file, and write their table.

    python -m benchmarks.chaos.run --seed 11 --faults 100 --kinds kills --output /tmp/seed-11.json
    python -m benchmarks.chaos.report /tmp/seed-11.json /tmp/seed-2.json

Writes `benchmarks/results/chaos.json` and `chaos.md`.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import results as files

RESULT = files.RESULTS / "chaos.json"
_HIDDEN_OPTIONS = {"--output": 2, "--keep": 1}
"""Option of a run → the number of arguments that it takes up; they do not change what the run does."""
_COLUMNS: Mapping[str, str] = {
    "faults": "faults",
    "of them kills": "kills",
    "requests": "requests",
    "answered right": "requests_answered_right",
    "attempts refused": "refused",
    "connections broken": "broken",
    "lost": "requests_lost",
    "wrong": "answers_wrong",
    "asynchronous": "asynchronous",
    "orphans": "orphans",
    "endpoints": "endpoints",
    "violations": "violations",
    "minutes": "minutes",
}


def without_places(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a run without the options that only say where its result goes."""
    kept, rest = [], list(arguments)
    while rest:
        length = _HIDDEN_OPTIONS.get(rest[0], 0)
        kept += rest[:1] if not length else []
        del rest[: max(1, length)]
    return kept


def row(result: Mapping[str, Any]) -> dict[str, object]:
    """Return the figures of a run that the table shows."""
    attempts, faults = result["attempts"], result["faults"]
    return {
        **result,
        "faults": sum(faults.values()),
        "kills": sum(number for kind, number in faults.items() if kind.endswith("-kill")),
        "refused": sum(number for outcome, number in attempts.items() if outcome not in {"right", "wrong", "broken"}),
        "broken": attempts.get("broken", 0),
        "asynchronous": sum(result["asynchronous"].values()),
        "minutes": round(result["duration_s"] / 60, 1),
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in results:
        figures = row(result)
        made_by = f"`{shlex.join(without_places(result['arguments']))}`"
        rows.append([made_by, *(figures[key] for key in _COLUMNS.values())])
    return files.table(["arguments", *_COLUMNS], rows)


def main() -> None:
    parser = files.make_parser(__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="files that `benchmarks.chaos.run --output` wrote")
    options = parser.parse_args()
    read = [json.loads(path.read_text()) for path in options.results]
    results = [{**result, "arguments": without_places(result["arguments"])} for result in read]
    RESULT.write_text(json.dumps(results, separators=(",", ":")) + "\n")
    page = f"# Kills and other faults under load, by seed\n\n{table(results)}\n"
    RESULT.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
