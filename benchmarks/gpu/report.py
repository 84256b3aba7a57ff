"""The table of a measurement, complete or not."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import results

Record = Mapping[str, Any]


def table(records: Sequence[Record]) -> str:
    lines = [f"# The torch runner on {next((r['device'] for r in records if r['kind'] == 'machine'), 'a GPU')}", ""]
    for record in _of(records, "limits")[:1]:
        copy, product = record["copy_bytes_per_s"] / 1e12, record["flops_per_s"] / 1e12
        lines += [f"Copy {copy:.2f} TB/s, matrix products {product:.0f} TFLOP/s.", ""]
    for record in _of(records, "first_token"):
        lines += [f"First token {record['seconds']:.1f} s after the start of the process ({record['what']}).", ""]
    if cells := _of(records, "cell"):
        header = ("stage", "step", "sequences", "ms", "tokens/s", "share of the copy bandwidth", "of the matrix peak")
        lines += [results.table(header, map(_cell_row, cells), text_columns=2), ""]
    if counts := _of(records, "rows_that_differ"):
        rows = ([record["stage"], record["sequences"], record["rows"]] for record in counts)
        lines += [results.table(("stage", "sequences", "rows with other bits than alone"), rows), ""]
    failures = [f"- {record['stage']}, {record['what']}: {record['message']}" for record in _of(records, "error")]
    return "\n".join([*lines, *(["Not measured:", "", *failures, ""] if failures else [])])


def _of(records: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def _cell_row(cell: Record) -> list[object]:
    rates = (f"{cell['step_s'] * 1e3:.2f}", f"{cell['tokens_per_s']:,.0f}")
    shares = (f"{cell[f'{name}_share']:.0%}" for name in ("bandwidth", "compute"))
    return [cell["stage"], cell["step"], cell["sequences"], *rates, *shares]
