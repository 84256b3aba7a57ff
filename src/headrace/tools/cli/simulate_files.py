"""The traces that `headrace simulate` reads, and its output: CSV, sparklines in a terminal, a page with charts."""

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from itertools import pairwise
from pathlib import Path

from headrace.core.errors import InvalidRequest
from headrace.platform.autoscaling.planning.schedule import utc_s
from headrace.platform.autoscaling.simulation.fleet import STEP_S
from headrace.platform.autoscaling.simulation.simulator import SimulationResult

MAX_STEPS = 32 * 86_400 // STEP_S
"""A month: longer traces are mistakes in the unit of time."""
_MAX_TIME_S = 1e11
"""The year 5138: later times are in milliseconds."""
BARS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT, LEFT, GAP = 960, 130, 70, 44
COLORS = ("#4c78a8", "#f58518")
"""Colours of the first run and of the run to compare it with."""
Runs = Sequence[tuple[str, SimulationResult]]
"""One or two runs: name and result."""
Panel = tuple[str, str, Sequence[Sequence[float]]]
"""Name, unit, and the values of each run by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The number of requests in each step of 10 s."""

    start_s: float
    """Seconds since 1970, a multiple of 10."""
    requests: tuple[float, ...]


def read_trace(path: Path) -> Trace:
    """
    Read a CSV file with the columns `time` (seconds, or ISO) and, if a row is not one request, `requests`.

    With `requests`, a row covers the time until the next row, and its requests are spread evenly over it.

    Raises:
        InvalidRequest: the file is invalid; the message names the line.
    """
    columns, rows = _rows(path)
    start_s, last_s = rows[0][0] // STEP_S * STEP_S, rows[-1][0]
    if last_s - start_s > MAX_STEPS * STEP_S:
        hint = " Its times look like milliseconds; expected seconds." if start_s > _MAX_TIME_S else ""
        raise InvalidRequest(f"{path} spans {(last_s - start_s) / 86_400:,.0f} days; expected at most 32.{hint}")
    times = ends = [time_s for time_s, _ in rows]
    if "requests" in columns:
        ends = [*times[1:], last_s + (last_s - times[-2] if len(times) > 1 else STEP_S)]
    spans = [(time_s, end_s, count) for (time_s, count), end_s in zip(rows, ends, strict=True)]
    return Trace(start_s=start_s, requests=_spread(spans, start_s))


def _rows(path: Path) -> tuple[Sequence[str], list[tuple[float, float]]]:
    """
    Return the column names, and the time and number of requests of each row, sorted by time.

    A byte order mark, which Excel writes, is skipped.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            columns = reader.fieldnames or ()
            if not columns:
                raise InvalidRequest(
                    f"{path} is empty; expected a line with the columns time and, optionally, requests."
                )
            if "time" not in columns:
                raise InvalidRequest(
                    f"{path} has the columns {', '.join(map(repr, columns))}; "
                    "expected time and, optionally, requests, separated by commas."
                )
            rows = sorted(_row(row, f"{path}, line {reader.line_num}") for row in reader)
        except csv.Error as exc:
            raise InvalidRequest(f"{path}, line {reader.line_num}: {exc}.") from exc
        except UnicodeDecodeError as exc:
            raise InvalidRequest(f"{path} is not UTF-8 text ({exc.reason}); expected a CSV file.") from exc
    if not rows:
        raise InvalidRequest(f"{path} has no requests.")
    return columns, rows


def _spread(spans: Sequence[tuple[float, float, float]], start_s: float) -> tuple[float, ...]:
    """Distribute spans of (from, until, number of requests) over the steps."""
    end_s = max(end_s for _, end_s, _ in spans)
    requests = [0.0] * (int((end_s - start_s) // STEP_S) + 1)
    for low_s, high_s, count in spans:
        first, last = int((low_s - start_s) // STEP_S), int((high_s - start_s) // STEP_S)
        if first == last:
            requests[first] += count
            continue
        for index in range(first, last + 1):
            step_s = start_s + index * STEP_S
            overlap_s = min(high_s, step_s + STEP_S) - max(low_s, step_s)
            requests[index] += count * overlap_s / (high_s - low_s)
    if len(requests) > 1 and requests[-1] == 0.0:
        requests.pop()
    return tuple(requests)


def _row(row: dict[str, str], where: str) -> tuple[float, float]:
    try:
        text = row["time"].strip()
        time_s = float(text) if text.replace(".", "", 1).isdigit() else utc_s(text)
        count = float(row["requests"]) if "requests" in row else 1.0
    except (ValueError, AttributeError, TypeError):
        fields = ", ".join(f"{name} {value!r}" for name, value in row.items() if name in {"time", "requests"})
        raise InvalidRequest(f"{where} has {fields}; expected a time, in seconds or ISO, and a number.") from None
    if not (math.isfinite(count) and count >= 0):
        raise InvalidRequest(f"{where}: requests is {count}; expected 0 or more.")
    return time_s, count


def example_trace(seed: int = 0) -> str:
    """Return a working day, one row per minute: quiet nights, a noon peak, an evening burst, two idle hours."""
    chance = random.Random(seed)
    lines = ["time,requests"]
    for minute in range(1440):
        hour = minute / 60
        rate = 240 * max(0.0, math.sin((hour - 6) / 14 * math.pi)) + (300 if 18.5 <= hour < 18.75 else 0)
        rate = 0 if 3 <= hour < 5 else rate + 4
        lines.append(f"{minute * 60},{max(0, round(chance.gauss(rate, math.sqrt(rate))))}")
    return "\n".join(lines) + "\n"


def result_csv(result: SimulationResult) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time_s", "requests", "desired", "serving", "queue", "latency_s", "lost"])
    for tick in result.ticks:
        latency = "" if math.isnan(tick.latency_s) else f"{tick.latency_s:.3f}"
        requests, queue, lost = map(_number, (tick.requests, tick.queue, tick.lost))
        writer.writerow([f"{tick.time_s:.0f}", requests, tick.desired, tick.serving, queue, latency, lost])
    return out.getvalue()


def _number(value: float) -> str:
    """Format a number with six digits and no exponent."""
    return f"{value:.0f}" if value >= 1e5 else f"{value:.6g}"


def thinned(values: Sequence[float], num: int) -> list[float]:
    """Downsample to at most `num` values, each the maximum of its bin: a chart must not hide a peak."""
    known = [0.0 if math.isnan(value) else value for value in values]
    if len(known) <= num:
        return known
    edges = [round(i * len(known) / num) for i in range(num + 1)]
    return [max(known[low:high]) for low, high in pairwise(edges)]


def panels(runs: Runs) -> list[Panel]:
    """Return the panels; all runs share the panel of requests."""
    ticks = [result.ticks for _, result in runs]
    return [
        ("requests", "/s", [[tick.requests / STEP_S for tick in ticks[0]]]),
        ("copies", "", [[float(tick.serving) for tick in run] for run in ticks]),
        ("queue", "", [[tick.queue for tick in run] for run in ticks]),
        ("latency", "s", [[tick.latency_s for tick in run] for run in ticks]),
    ]


def terminal_chart(runs: Runs, *, width: int) -> str:
    """Return a line for each panel and run, with the largest value at the end."""
    columns = max(10, width - 24)
    lines = []
    for name, unit, all_values in panels(runs):
        series = [thinned(values, columns) for values in all_values]
        top = max((max(heights, default=0.0) for heights in series), default=0.0) or 1.0
        for number, heights in enumerate(series):
            label = name if len(series) == 1 else f"{name} {number + 1}"
            bars = "".join(BARS[math.ceil(height / top * (len(BARS) - 1))] for height in heights)
            lines.append(f"{label:<10}{bars} max {amount(max(heights, default=0.0))}{unit}")
    lines.append(f"{'':<10}in steps of {STEP_S} s; the autoscaler decides once per step")
    return "\n".join(lines)


def amount(value: float) -> str:
    """Format a number for people: four digits, no exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def html_page(runs: Runs, *, title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """Return a whole page with the title, a table (`rows`, head first), charts of the runs and their activities."""
    plots = [_plot(panel, index) for index, panel in enumerate(panels(runs))]
    height = len(plots) * (HEIGHT + GAP) + GAP
    first = runs[0][1]
    legend = "".join(
        f'<b style="color:{color}">{escape(name)}</b> ' for (name, _), color in zip(runs, COLORS, strict=False)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:14px system-ui;margin:2em;max-width:1000px}td,th{padding:2px 12px;text-align:left}"
        "svg text{font:12px system-ui}</style>"
        f"<h1>{escape(title)}</h1>{_table(rows)}<p>{legend}in steps of {STEP_S} s</p>"
        f'<svg viewBox="0 0 {LEFT + WIDTH + 20} {height}" role="img" aria-label="Requests, copies, queue, latency">'
        f"{''.join(plots)}{_axis(first, height)}</svg>"
        f"{''.join(_activities(name, result) for name, result in runs)}</html>\n"
    )


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows[1:])
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _activities(name: str, result: SimulationResult) -> str:
    begin_s = result.ticks[0].time_s
    rows = [
        (_clock(activity.time_s - begin_s), str(activity.capacity), activity.cause) for activity in result.activities
    ]
    return f"<h2>Scaling activities: {escape(name)}</h2>{_table([('after', 'capacity', 'cause'), *rows])}"


def _plot(panel: Panel, index: int) -> str:
    name, unit, all_values = panel
    series = [thinned(values, WIDTH) for values in all_values]
    top = max((max(heights, default=0.0) for heights in series), default=0.0) or 1.0
    base = index * (HEIGHT + GAP) + GAP + HEIGHT
    lines = "".join(_line(heights, top, base, color) for heights, color in zip(series, COLORS, strict=False))
    return (
        f'<text x="{LEFT}" y="{base - HEIGHT - 8}">{name}{f" ({unit})" if unit else ""}</text>'
        f'<text x="{LEFT - 8}" y="{base - HEIGHT + 10}" text-anchor="end">{amount(top)}</text>'
        f'<text x="{LEFT - 8}" y="{base}" text-anchor="end">0</text>{lines}'
    )


def _line(heights: Sequence[float], top: float, base: int, color: str) -> str:
    scale = WIDTH / max(1, len(heights))
    points = " ".join(f"{LEFT + i * scale:.1f},{base - value / top * HEIGHT:.1f}" for i, value in enumerate(heights))
    area = f"{LEFT},{base} {points} {LEFT + (len(heights) - 1) * scale:.1f},{base}"
    return (
        f'<polygon points="{area}" fill="{color}" fill-opacity="0.12"/>'
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    )


def _axis(result: SimulationResult, height: int) -> str:
    length_s = len(result.ticks) * STEP_S
    return "".join(
        f'<text x="{LEFT + WIDTH * i / 6:.0f}" y="{height - 12}" text-anchor="middle">{_clock(length_s * i / 6)}</text>'
        for i in range(7)
    )


def _clock(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
