"""Charts of a simulation: sparklines in a terminal, or a self-contained HTML file."""

import math
from collections.abc import Sequence
from html import escape

from headrace.platform.autoscaling.simulation.fleet import STEP_S
from headrace.platform.autoscaling.simulation.simulator import SimulationResult
from headrace.tools.cli.simulate_files import thinned

BARS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT, LEFT, GAP = 960, 130, 70, 44
COLORS = ("#4c78a8", "#f58518")
"""Colours of the first run and of the run to compare it with."""

_WHOLE_FROM = 1000
"""Numbers from here on are printed without decimals."""

Runs = Sequence[tuple[str, SimulationResult]]
"""One or two runs: name and result."""

Panel = tuple[str, str, Sequence[Sequence[float]]]
"""Name, unit, and the values of each run by step."""


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
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.4g}"


def html_page(runs: Runs, *, title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """
    Return the whole page.

    Args:
        runs: the runs to plot.
        title: the title of the page.
        rows: a table, head first.
    """
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
