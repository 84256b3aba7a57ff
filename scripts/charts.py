"""
Draw the charts and write the tables of the docs from `benchmarks/results`: `python scripts/charts.py`.

A chart is one SVG file with its own background, light or dark as the browser prefers. `benchmarks/tables.py` has the
tables. `--check` compares only.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.soak.picture import DARK, LIGHT, Picture  # noqa: E402 -- needs the path
from benchmarks.soak.picture import svg as soak_svg  # noqa: E402
from benchmarks.tables import TABLES, result, serving  # noqa: E402
from blocks import with_block  # noqa: E402

IMAGES = ROOT / "docs" / "images"

WIDTH, LABEL_WIDTH, VALUE_WIDTH, MARGIN = 760, 150, 90, 16
BAR, GAP, GROUP_GAP, HEAD = 16, 4, 26, 50
LIGHT_COLOURS = {
    "card": "#ffffff",
    "edge": "#d0d7de",
    "text": "#24292f",
    "faint": "#57606a",
    "ours": "#00796b",
    "ours2": "#4db6ac",
    "peer": "#9aa5b1",
}
DARK_COLOURS = {
    "card": "#0d1117",
    "edge": "#30363d",
    "text": "#e6edf3",
    "faint": "#9da7b3",
    "ours": "#26a69a",
    "ours2": "#80cbc4",
    "peer": "#6e7b8a",
}


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its length in the chart's unit, and the colour of its series."""

    label: str
    value: float
    colour: str


@dataclass(frozen=True)
class Chart:
    """Groups of horizontal bars with a common scale in each group, and a line of text below them."""

    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    note: str


def svg(chart: Chart) -> str:
    """Return the chart as SVG. Each group has its own scale: groups differ by orders of magnitude."""
    parts, y = [text(0, 16, chart.title, "title")], HEAD
    for heading, bars in chart.groups:
        parts.append(text(0, y, heading, "heading"))
        y += 8
        longest = max(bar.value for bar in bars)
        for bar in bars:
            length = max(2.0, (WIDTH - LABEL_WIDTH - VALUE_WIDTH) * bar.value / longest)
            parts.append(text(0, y + BAR - 4, bar.label, "text"))
            place = f'x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR}"'
            parts.append(f'<rect {place} rx="2" class="{bar.colour}"/>')
            parts.append(text(LABEL_WIDTH + length + 6, y + BAR - 4, f"{bar.value:,.0f}", "faint"))
            y += BAR + GAP
        y += GROUP_GAP
    parts.append(text(0, y - 4, chart.note, "faint"))
    width, height = WIDTH + 2 * MARGIN, y + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="{-MARGIN} {-MARGIN} {width} {height}" '
        f'role="img" aria-label="{escape(chart.title)}"><style>{STYLE}</style>'
        f'<rect x="{0.5 - MARGIN}" y="{0.5 - MARGIN}" width="{width - 1}" height="{height - 1}" rx="8" class="card"/>'
        f"{''.join(parts)}</svg>\n"
    )


def text(x: float, y: float, content: str, style: str) -> str:
    """Return a line of text."""
    return f'<text x="{x:.1f}" y="{y}" class="{style}">{escape(content)}</text>'


def rules(colours: Mapping[str, str]) -> str:
    """Return the CSS rules of a theme."""
    fills = "".join(f".{name}{{fill:{colour}}}" for name, colour in colours.items())
    return f"{fills}.title,.heading{{fill:{colours['text']}}}.card{{stroke:{colours['edge']}}}"


STYLE = (
    "text{font:12px system-ui,sans-serif}.title,.heading{font-weight:600}.title{font-size:15px}"
    f"{rules(LIGHT_COLOURS)}@media(prefers-color-scheme:dark){{{rules(DARK_COLOURS)}}}"
)


LABELS = {
    "headrace-w8a8": ("Headrace W8A8", "ours"),
    "headrace-w4a8": ("Headrace W4A8", "ours2"),
    "llama-q4_0": ("llama-server Q4_0", "peer"),
    "vllm-bf16": ("vLLM bf16", "peer"),
}
FOUR_BITS_AND_VLLM = ("headrace-w4a8", "vllm-bf16", "llama-q4_0")
LOADS = {"c1": "1 client", "c8": "8 clients", "c32": "32 clients", "c64": "64 clients"}


def bars(cell: str, figure: str, servers: Iterable[str] = LABELS) -> list[Bar]:
    """Return a bar of a figure for each server, by median over the rounds."""
    labels = {server: LABELS[server] for server in servers}
    return [Bar(label, serving()[cell][server][figure], colour) for server, (label, colour) in labels.items()]


def machine(name: str) -> str:
    """Return the processor and the date of a result: `AMD EPYC, 2 cores, 2026-11-21`."""
    found = result(name)["environment"]
    return f"{found['cpu']}, {found['cpus_usable']} cores, {found['time'][:10]}"


def charts() -> dict[Path, Chart]:
    """Return each chart by its file. The README has three figures of the formats that are nearest to each other."""
    measured = f"SmolLM2-135M-Instruct over HTTP; {machine('cpu-serving')}"
    first = (
        ("Tokens a second with 8 clients (more is better)", bars("c8", "output_tokens_per_s", FOUR_BITS_AND_VLLM)),
        ("Time to first token with 8 clients, ms (less is better)", bars("c8", "ttft_p50_ms", FOUR_BITS_AND_VLLM)),
        (
            "Longest stall of 8 streams when a 4,000-token prompt arrives, ms",
            bars("late", "gap_max_ms", FOUR_BITS_AND_VLLM),
        ),
    )
    loads = [(title, bars(cell, "output_tokens_per_s")) for cell, title in LOADS.items()]
    return {
        IMAGES / "readme-speed.svg": Chart("Model servers on two CPU cores", first, measured),
        IMAGES / "charts" / "throughput.svg": Chart("Tokens a second, all clients together", loads, measured),
    }


def numbers() -> Iterator[str]:
    """Yield the three figures of the README, with machine and date."""
    eight, late, wake = serving()["c8"], serving()["late"], result("wake")["summary"]
    speed = {server: row["output_tokens_per_s"] for server, row in eight.items()}
    to_vllm, to_llama = (speed["headrace-w4a8"] / speed[peer] for peer in ("vllm-bf16", "llama-q4_0"))
    ours_s, vllm_s, llama_s = (late[server]["gap_max_ms"] / 1000 for server in FOUR_BITS_AND_VLLM)
    yield (
        f"\n- **{to_vllm:.1f} times the tokens per second** of vLLM with eight clients, "
        f"{to_llama:.1f} times those of llama-server."
    )
    yield (
        f"- **{1000 * ours_s:.0f} ms**: eight running answers pause no longer while a prompt of 4,000 tokens arrives "
        f"(vLLM {vllm_s:.1f} s, llama-server {llama_s:.1f} s)."
    )
    yield (
        f"- **{wake['all_requests_p50_s']:.2f} s**: an endpoint without workers starts one and sends its first byte "
        f"(median of {wake['requests']} requests, {wake['lost'] or 'none'} lost)."
    )
    formats = "Headrace with 4-bit weights (`--dtype w4a8`), vLLM in bf16, llama-server in Q4_0"
    yield f"\nSmolLM2-135M on {machine('cpu-serving')}; {formats} ([method](docs/performance.md)).\n"


def files() -> dict[Path, str]:
    """Return the content of each file: the charts, and the pages with their tables."""
    drawn = {path: svg(chart) for path, chart in charts().items()}
    soaks = {
        IMAGES / "charts" / f"{name}-{theme}.svg": soak_svg(Picture.of(result(name), is_short=True), colours)
        for name in ("soak", "soak-server")
        for theme, colours in (("light", LIGHT), ("dark", DARK))
    }
    pages = TABLES | {"README.md": {"numbers": numbers}}
    return drawn | soaks | {ROOT / name: with_tables(ROOT / name, tables) for name, tables in pages.items()}


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
