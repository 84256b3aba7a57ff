"""
Draw the charts and write the tables of the docs from `benchmarks/results`: `python scripts/charts.py`.

Each chart is two SVG files in docs/images/charts, for light and dark pages. `benchmarks/tables.py` has the tables.
`--check` compares only.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.soak.picture import DARK, LIGHT, Picture  # noqa: E402 -- needs the path
from benchmarks.soak.picture import svg as soak_svg  # noqa: E402
from benchmarks.tables import TABLES, engine_speed, result, serving  # noqa: E402
from blocks import with_block  # noqa: E402

FOLDER = ROOT / "docs" / "images" / "charts"

WIDTH, LABEL_WIDTH, VALUE_WIDTH = 760, 190, 70
BAR, GAP, GROUP_GAP, HEAD = 16, 4, 20, 44
THEMES = {
    "light": {"text": "#24292f", "faint": "#57606a", "ours": "#00796b", "ours2": "#4db6ac", "peer": "#9aa5b1"},
    "dark": {"text": "#e6edf3", "faint": "#9da7b3", "ours": "#26a69a", "ours2": "#80cbc4", "peer": "#6e7b8a"},
}


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its length in the chart's unit, and the colour of its series."""

    label: str
    value: float
    colour: str


@dataclass(frozen=True)
class Chart:
    """Groups of horizontal bars with a common scale in each group."""

    name: str
    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]


def svg(chart: Chart, theme: Mapping[str, str]) -> str:
    """Return the chart as SVG. Each group has its own scale: groups differ by orders of magnitude."""
    parts, y = [], HEAD
    for heading, bars in chart.groups:
        if heading:
            parts.append(text(0, y, heading, theme["text"], weight="600"))
        y += 8 if heading else 8 - GROUP_GAP
        longest = max(bar.value for bar in bars)
        for bar in bars:
            length = max(2.0, (WIDTH - LABEL_WIDTH - VALUE_WIDTH) * bar.value / longest)
            parts.append(text(0, y + BAR - 4, bar.label, theme["text"]))
            place = f'x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR}"'
            parts.append(f'<rect {place} rx="2" fill="{theme[bar.colour]}"/>')
            parts.append(text(LABEL_WIDTH + length + 6, y + BAR - 4, f"{bar.value:,.0f}", theme["faint"]))
            y += BAR + GAP
        y += GROUP_GAP
    title = text(0, 16, chart.title, theme["text"], weight="600", size=15)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GROUP_GAP}" role="img" '
        f'aria-label="{escape(chart.title)}" font-family="system-ui, sans-serif">{title}{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, content: str, colour: str, *, weight: str = "400", size: int = 12) -> str:
    """Return a line of text."""
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{colour}" font-size="{size}" font-weight="{weight}">{escape(content)}</text>'
    )


SERVERS = (
    ("headrace-w8a8", "Headrace W8A8", "ours"),
    ("headrace-w4a8", "Headrace W4A8", "ours2"),
    ("llama-q4_0", "llama-server Q4_0", "peer"),
    ("vllm-bf16", "vLLM bf16", "peer"),
)
LOADS = (("c1", "1 client"), ("c8", "8 clients"), ("c32", "32 clients"), ("c64", "64 clients"))


def serving_charts() -> list[Chart]:
    """Return the charts of servers, by median over the rounds."""
    figures = serving()

    def bars(cell: str, figure: str) -> list[Bar]:
        rows = figures[cell]
        return [Bar(label, rows[row][figure], colour) for row, label, colour in SERVERS if row in rows]

    def groups(figure: str) -> list[tuple[str, list[Bar]]]:
        return [(title, bars(cell, figure)) for cell, title in LOADS]

    return [
        Chart(
            "throughput",
            "Tokens a second over HTTP, all clients together (more is better)",
            groups("output_tokens_per_s"),
        ),
        Chart("first-token", "Time to first token over HTTP, median, ms (less is better)", groups("ttft_p50_ms")),
        Chart(
            "stall",
            "Longest stall of 8 streams when a prompt of 4,000 tokens arrives, ms (less is better)",
            [("", bars("late", "gap_max_ms"))],
        ),
    ]


ENGINES = (
    ("Headrace w8a8", "ours"),
    ("Headrace w4a8", "ours2"),
    ("Headrace bf16", "ours2"),
    ("OpenVINO GenAI int8", "peer"),
    ("OpenVINO GenAI int4", "peer"),
    ("llama.cpp Q4_0", "peer"),
    ("vLLM W8A8", "peer"),
    ("vLLM bf16", "peer"),
)
CELLS = (("n1", "1 sequence"), ("n8", "8 sequences"), ("n64", "64 sequences"))


def engine_chart() -> Chart:
    """Return the chart of engines without HTTP, by median over the runs."""
    groups = [
        (title, [Bar(name, engine_speed(name, cell), colour) for name, colour in ENGINES]) for cell, title in CELLS
    ]
    return Chart("engines", "Tokens a second, engine alone (more is better)", groups)


def files() -> dict[Path, str]:
    """Return the content of each file: the charts, and the pages with their tables."""
    charts = [*serving_charts(), engine_chart()]
    drawn = {
        FOLDER / f"{chart.name}-{name}.svg": svg(chart, theme) for chart in charts for name, theme in THEMES.items()
    }
    soaks = {
        FOLDER / f"{name}-{theme}.svg": soak_svg(Picture.of(result(name), is_short=True), colours)
        for name in ("soak", "soak-server")
        for theme, colours in (("light", LIGHT), ("dark", DARK))
    }
    return drawn | soaks | {ROOT / name: with_tables(ROOT / name, tables) for name, tables in TABLES.items()}


def with_tables(path: Path, tables: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """Return a page with its tables of today's results."""
    page = path.read_text(encoding="utf-8")
    for name, lines in tables.items():
        page = with_block(page, name, lines())
    return page


def main(show: Callable[[str], None] = print) -> int:
    """Write or check the files; return the exit code."""
    parser = argparse.ArgumentParser(description="Draw the charts and write the tables of benchmarks.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    options = parser.parse_args()
    stale = {path: code for path, code in files().items() if not path.exists() or path.read_text() != code}
    for path, code in stale.items():
        show(f"{path.relative_to(ROOT)} {'is not up to date' if options.check else 'written'}")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
