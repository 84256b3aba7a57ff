"""The picture of a soak: a small chart for each series. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.soak.drift import Point
from benchmarks.soak.series import in_words

LIGHT = {
    "text": "#24292f",
    "faint": "#8c959f",
    "ours": "#00796b",
    "ours2": "#9ad1ca",
    "grid": "#d8dee4",
    "bad": "#c62828",
}
DARK = {
    "text": "#e6edf3",
    "faint": "#7d8590",
    "ours": "#26a69a",
    "ours2": "#1f5c55",
    "grid": "#30363d",
    "bad": "#ff7b72",
}
COLUMNS, WIDTH, HEIGHT, HEAD = 3, 250, 112, 44
_PLOT = (0, 34, 234, 62)
"""Left, top, width and height of the lines within a chart."""
_FAILURES = ("grows", "over its bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series as it is drawn."""

    name: str
    unit: str
    verdict: str
    share: float | None
    samples: Sequence[Point]
    medians: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All series of a result."""

    title: str
    end_s: float
    warm_up_s: float
    lines: Sequence[Line]

    @classmethod
    def of(cls, result: Mapping[str, Any], *, is_short: bool = False) -> "Picture":
        """Return the picture of a result's JSON; a short one has only the series that the verdict depends on."""
        lines = [_line(name, found, result["samples"].get(name, ())) for name, found in result["series"].items()]
        return cls(
            title=f"{result['minutes']:g} minutes of mixed load on one {result['target']}",
            end_s=60 * result["minutes"],
            warm_up_s=60 * result["warm_up_minutes"],
            lines=[line for line in lines if line.medians and not (is_short and line.verdict == "watched")],
        )


def _line(name: str, found: Mapping[str, Any], samples: Sequence[Point]) -> Line:
    drift = found["drift"]
    share = drift["change"] / drift["level"] if drift and drift["level"] else None
    return Line(
        name=name,
        unit=found["unit"],
        verdict=found["verdict"],
        share=share,
        samples=samples,
        medians=found["medians"],
    )


def svg(picture: Picture, theme: Mapping[str, str]) -> str:
    """Return the picture as SVG. Each chart begins at zero: a drift looks as large as it is."""
    charts = [
        f'<g transform="translate({index % COLUMNS * WIDTH},{HEAD + index // COLUMNS * HEIGHT})">'
        f"{_chart(line, picture, theme)}</g>"
        for index, line in enumerate(picture.lines)
    ]
    height = HEAD + -(-len(picture.lines) // COLUMNS) * HEIGHT
    legend = "Pale: every sample. Strong: median of each window after the warm-up (vertical line). All axes begin at 0."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {height}" role="img" '
        f'aria-label="{escape(picture.title)}" font-family="system-ui, sans-serif">'
        f"{_text(0, 16, picture.title, theme['text'], weight=600, size=15)}"
        f"{_text(0, 33, legend, theme['faint'])}{''.join(charts)}</svg>\n"
    )


def _chart(line: Line, picture: Picture, theme: Mapping[str, str]) -> str:
    left, top, width, height = _PLOT
    most = max((value for _, value in (*line.samples, *line.medians)), default=0.0) or 1.0
    colour = theme["bad" if line.verdict in _FAILURES else "ours"]
    warm_up_x = left + width * picture.warm_up_s / picture.end_s

    def path(points: Sequence[Point], stroke: str, thickness: float) -> str:
        places = " ".join(
            f"{left + width * min(1.0, time_s / picture.end_s):.1f},{top + height * (1 - value / most):.1f}"
            for time_s, value in points
        )
        return f'<polyline points="{places}" fill="none" stroke="{stroke}" stroke-width="{thickness}"/>'

    def rule(x1: float, y1: float, x2: float, y2: float) -> str:
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{theme["grid"]}"/>'

    share = f", {100 * line.share:+.1f} %" if line.share is not None else ""
    return "".join(
        (
            _text(0, 14, line.name, theme["text"], weight=600),
            _text(0, 27, f"at most {in_words(most, line.unit)}{share}, {line.verdict}", theme["faint"], size=10),
            rule(left, top + height, left + width, top + height),
            rule(warm_up_x, top, warm_up_x, top + height),
            path(line.samples, theme["ours2"], 1),
            path(line.medians, colour, 1.8),
        )
    )


def _text(x: float, y: float, content: str, colour: str, *, weight: int = 400, size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" font-weight="{weight}">{escape(content)}</text>'
