"""A simulation as a picture: a few lines of a terminal, or one HTML file that needs nothing else."""

import math
from collections.abc import Sequence
from html import escape

from headrace.cli.simulate_files import thinned
from headrace.scaling.simulation import STEP_S, Result

BARS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT, LEFT, GAP = 960, 130, 70, 44
COLORS = ("#4c78a8", "#54a24b", "#f58518", "#e45756")

Panel = tuple[str, str, Sequence[float]]
"""Name, unit, one value for each step."""


def panels(result: Result) -> list[Panel]:
    """What is plotted."""
    ticks = result.ticks
    return [
        ("requests", "/s", [tick.requests / STEP_S for tick in ticks]),
        ("copies", "", [float(tick.serving) for tick in ticks]),
        ("queue", "", [tick.queue for tick in ticks]),
        ("latency", "s", [tick.latency_s for tick in ticks]),
    ]


def terminal_chart(result: Result, *, width: int) -> str:
    """One line for each panel, its largest value at the end."""
    room = max(10, width - 24)
    lines = []
    for name, unit, values in panels(result):
        heights = thinned(values, room)
        top = max(heights, default=0.0) or 1.0
        bars = "".join(BARS[math.ceil(height / top * (len(BARS) - 1))] for height in heights)
        lines.append(f"{name:<9}{bars} max {max(heights, default=0.0):,.4g}{unit}")
    return "\n".join(lines)


def html_page(result: Result, *, title: str, summary: str) -> str:
    """The whole page."""
    plots = [
        _plot(panel, color, index) for index, (panel, color) in enumerate(zip(panels(result), COLORS, strict=True))
    ]
    height = len(plots) * (HEIGHT + GAP) + GAP
    rows = "".join(
        f"<tr><td>{_clock(activity.time_s - result.ticks[0].time_s)}</td><td>{activity.capacity}</td>"
        f"<td>{escape(activity.cause)}</td></tr>"
        for activity in result.activities
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:14px system-ui;margin:2em;max-width:1000px}td,th{padding:2px 12px;text-align:left}"
        "pre{white-space:pre-wrap}svg text{font:12px system-ui}</style>"
        f"<h1>{escape(title)}</h1><pre>{escape(summary)}</pre>"
        f'<svg viewBox="0 0 {LEFT + WIDTH + 20} {height}" role="img" aria-label="Requests, copies, queue, latency">'
        f"{''.join(plots)}{_axis(result, height)}</svg>"
        f"<h2>Scaling activities</h2>"
        f"<table><tr><th>after</th><th>capacity</th><th>cause</th></tr>{rows}</table></html>\n"
    )


def _plot(panel: Panel, color: str, index: int) -> str:
    name, unit, values = panel
    heights = thinned(values, WIDTH)
    top, base = max(heights, default=0.0) or 1.0, index * (HEIGHT + GAP) + GAP + HEIGHT
    scale = WIDTH / max(1, len(heights))
    points = " ".join(f"{LEFT + i * scale:.1f},{base - value / top * HEIGHT:.1f}" for i, value in enumerate(heights))
    area = f"{LEFT},{base} {points} {LEFT + (len(heights) - 1) * scale:.1f},{base}"
    return (
        f'<text x="{LEFT}" y="{base - HEIGHT - 8}">{name}{f" ({unit})" if unit else ""}</text>'
        f'<text x="{LEFT - 8}" y="{base - HEIGHT + 10}" text-anchor="end">{top:,.4g}</text>'
        f'<text x="{LEFT - 8}" y="{base}" text-anchor="end">0</text>'
        f'<polygon points="{area}" fill="{color}" fill-opacity="0.15"/>'
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    )


def _axis(result: Result, height: int) -> str:
    length_s = len(result.ticks) * STEP_S
    return "".join(
        f'<text x="{LEFT + WIDTH * i / 6:.0f}" y="{height - 12}" text-anchor="middle">{_clock(length_s * i / 6)}</text>'
        for i in range(7)
    )


def _clock(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
