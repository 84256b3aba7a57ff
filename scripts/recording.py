"""
Record the session that the README shows, and draw it as an animated SVG: `python scripts/recording.py`.

A shell on a terminal of its own runs the commands on a new platform; each piece of text appears when it came. Run it on
a machine with free cores, with `smollm2` in the cache and port 7450 free.
"""

import argparse
import fcntl
import math
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "readme-session.svg"
COLUMNS, ROWS = 84, 26
PROMPT = "$ "
ASK = """\
import boto3, json

runtime = boto3.client("sagemaker-runtime")
question = {"role": "user", "content": "What is the capital of France?"}
body = json.dumps({"messages": [question], "temperature": 0})
answer = runtime.invoke_endpoint(
    EndpointName="smollm2", ContentType="application/json", Body=body)
print(json.load(answer["Body"])["choices"][0]["message"]["content"])
"""
COMMANDS = (
    "headrace up --detach",
    'eval "$(headrace env)"',
    "headrace deploy smollm2",
    "cat ask.py",
    "python ask.py",
)
KEY_S, READ_S, LIMIT_S = 0.03, 1.0, 120.0
"""Between two keys; before the next command is typed; for the answer of a command."""

FONT_PX, CELL_WIDTH, LINE_HEIGHT, MARGIN = 13, 7.8, 19, 16
HOLD_S = 6.0
"""How long the end is shown before the animation begins again."""
STEP_S = 0.1
"""Texts that come within this time appear together."""
COLOURS = {"31": "#ff7b72", "32": "#3fb950", "33": "#d29922", "34": "#58a6ff", "35": "#bc8cff", "36": "#39c5cf"}
CARD, EDGE, TEXT, FAINT, COMMAND = "#0d1117", "#30363d", "#e6edf3", "#8b949e", "#7ee787"
_SPINNER = re.compile("[\u2800-\u28ff]")
_KEY = re.compile(r"(?<=#key=)[\w-]+")
_FAILED = re.compile(r"(?:^|\x1b\[2K)((?:Error:|Traceback).*)", re.MULTILINE)
_CONTROL = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()=>][A-Z0-9]?")


class Session:
    """A shell on a terminal, and what it has written by the time since its start."""

    def __init__(self, folder: Path) -> None:
        env = {
            **{name: os.environ[name] for name in ("HOME", "LANG", "HEADRACE_HOME") if name in os.environ},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "PS1": PROMPT,
            "HEADRACE_UP_DATA_DIR": str(folder / "platform"),
        }
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting"], env)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.events: list[tuple[float, str]] = []
        self._started_s = time.monotonic()
        self._until_prompt()

    def run(self, command: str) -> None:
        """Type a command, and return when the shell asks for the next one."""
        for key in command:
            os.write(self.terminal, key.encode())
            self._read_for(KEY_S)
        os.write(self.terminal, b"\r")
        self._until_prompt()

    def close(self) -> None:
        """End the shell."""
        os.close(self.terminal)
        os.waitpid(self.pid, 0)

    def _until_prompt(self) -> None:
        start, end_s = len(self.events), time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            self._read_for(READ_S)
            text = "".join(part for _, part in self.events[start:])
            if text == PROMPT or text.endswith("\n" + PROMPT):
                return
        raise TimeoutError(f"No prompt came within {LIMIT_S:.0f} s after: {text}")

    def _read_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (rest_s := end_s - time.monotonic()) > 0:
            if select.select([self.terminal], [], [], rest_s)[0]:
                text = os.read(self.terminal, 65536).decode(errors="replace")
                self.events.append((time.monotonic() - self._started_s, text))


@dataclass(frozen=True)
class Cell:
    """One character of the terminal, and from when until when it is there."""

    row: int
    column: int
    character: str
    style: str
    start_s: float
    end_s: float = math.inf

    @property
    def steps(self) -> tuple[int, float]:
        """The steps of the animation at which it comes and goes."""
        return int(self.start_s / STEP_S), self.end_s if math.isinf(self.end_s) else int(self.end_s / STEP_S)


class Screen:
    """A terminal that scrolls, and knows line ends, wrapping, colours, and lines that are written again."""

    def __init__(self) -> None:
        self.past: list[Cell] = []
        """Cells that were erased."""
        self.scrolled: list[tuple[float, int]] = []
        """When a row below the window began, and by how many rows the window has moved then."""
        self._now: dict[tuple[int, int], Cell] = {}
        self._erased: dict[tuple[int, int], Cell] = {}
        self._row = self._column = self._num_rows = 0
        self._style = ""

    @property
    def cells(self) -> list[Cell]:
        """All cells that were ever there, by place."""
        return sorted([*self.past, *self._now.values()], key=lambda cell: (cell.row, cell.steps, cell.column))

    def write(self, text: str, time_s: float) -> None:
        """Put a text at the cursor."""
        while text:
            if control := _CONTROL.match(text):
                self._obey(control)
                text = text[control.end() :]
            else:
                self._put(_SPINNER.sub("⠿", text[0]), time_s)
                text = text[1:]
        self.past += [replace(cell, end_s=time_s) for cell in self._erased.values()]
        self._erased.clear()

    def _put(self, character: str, time_s: float) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n" or self._column == COLUMNS:
            self._row, self._column = self._row + 1, 0
            if self._row >= max(ROWS, self._num_rows):
                self._num_rows = self._row + 1
                self.scrolled.append((time_s, self._num_rows - ROWS))
        if character.isprintable():
            place = self._row, self._column
            cell = Cell(*place, character, self._style, time_s)
            before = self._erased.get(place)
            if before and (before.character, before.style) == (character, self._style):
                cell = self._erased.pop(place)
            self._now[place] = cell
            self._column += 1

    def _obey(self, control: re.Match[str]) -> None:
        if control[2] == "m":
            codes = [code for code in control[1].split(";") if code not in {"", "0"}]
            self._style = " ".join([*self._style.split(), *codes]) if codes else ""
        elif control[2] == "A":
            self._row -= int(control[1] or 1)
        elif control[2] == "K":
            for place in [place for place in self._now if place[0] == self._row]:
                self._erased[place] = self._now.pop(place)


@dataclass(frozen=True)
class Run:
    """Neighbouring characters that come and go together."""

    first: Cell
    text: str


def runs(cells: Iterable[Cell]) -> Iterator[Run]:
    """Yield the texts of a screen, without the spaces around them."""
    text, first = "", None
    for cell in cells:
        if first and (cell.row, cell.steps, cell.style) == (first.row, first.steps, first.style):
            gap = cell.column - first.column - len(text)
            if gap == 0:
                text += cell.character
                continue
        if first and text.strip():
            yield Run(first, text.rstrip())
        text, first = ("", None) if cell.character == " " else (cell.character, cell)
    if first and text.strip():
        yield Run(first, text.rstrip())


def look(style: str) -> str:
    """Return the attributes of a style of the terminal."""
    codes = style.split()
    colour = next((COLOURS[code[-2:]] for code in codes if code[-2:] in COLOURS), FAINT if "2" in codes else "")
    return (f' fill="{colour}"' if colour else "") + (' font-weight="600"' if "1" in codes else "")


def keyframes(name: str, values: Sequence[tuple[float, str]], total_s: float) -> str:
    """Return an animation that takes each value at its time, and the rule of the class that has it."""
    frames = "".join(f"{100 * time_s / total_s:.2f}%{{{value}}}" for time_s, value in values)
    return f"@keyframes {name}{{{frames}}}.{name}{{animation-name:{name}}}"


def name_of(cell: Cell) -> str:
    """Return the name of the animation of a cell."""
    start, end = cell.steps
    return f"k{start}" if math.isinf(end) else f"k{start}-{end}"


def animations(cells: Iterable[Cell], scrolled: Sequence[tuple[float, int]], total_s: float) -> str:
    """Return the animations of texts and of the window."""
    shown = {}
    for cell in cells:
        start, end = cell.steps
        values = [(0.0, "opacity:0"), (start * STEP_S, "opacity:1")]
        shown[name_of(cell)] = values + ([] if math.isinf(end) else [(end * STEP_S, "opacity:0")])
    moves = [(0.0, "transform:none")]
    moves += [(time_s, f"transform:translateY({-rows * LINE_HEIGHT}px)") for time_s, rows in scrolled]
    return "".join(keyframes(name, values, total_s) for name, values in [*shown.items(), ("w", moves)])


def svg(screen: Screen, end_s: float, caption: str) -> str:
    """Return the recording. Without animations, or for readers who prefer less motion, it shows the last picture."""
    found = list(runs(screen.cells))
    total_s = end_s + HOLD_S
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, ROWS * LINE_HEIGHT
    moved = screen.scrolled[-1][1] * LINE_HEIGHT if screen.scrolled else 0
    style = (
        f"text{{font:{FONT_PX}px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}}"
        f".r,.w{{animation:{total_s:.1f}s step-end infinite}}.e{{opacity:0}}.w{{transform:translateY({-moved}px)}}"
        f"{animations((run.first for run in found), screen.scrolled, total_s)}"
        "@media(prefers-reduced-motion){.r,.w{animation:none}}"
    )
    whole = height + LINE_HEIGHT + 2 * MARGIN + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" viewBox="0 0 {width:.0f} {whole}" role="img" '
        f'aria-label="{escape(caption)}" fill="{TEXT}"><style>{style}</style>'
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{whole - 1}" rx="8" fill="{CARD}" stroke="{EDGE}"/>'
        f'<svg y="{MARGIN}" width="{width:.0f}" height="{height}"><g class="w">{"".join(map(drawn, found))}</g></svg>'
        f'<text x="{MARGIN}" y="{whole - MARGIN}" fill="{FAINT}">{escape(caption)}</text></svg>\n'
    )


def drawn(run: Run) -> str:
    """Return a text of the recording, as wide as its cells in every font."""
    cell = run.first
    place = f'x="{MARGIN + cell.column * CELL_WIDTH:.1f}" y="{(cell.row + 0.75) * LINE_HEIGHT:.1f}"'
    width = f'textLength="{len(run.text) * CELL_WIDTH:.1f}"'
    ends = "" if math.isinf(cell.end_s) else " e"
    return f'<text class="r{ends} {name_of(cell)}" {place} {width}{look(cell.style)}>{escape(run.text)}</text>'


def record(commands: Sequence[str], files: Mapping[str, str]) -> tuple[Screen, float]:
    """Run commands in a folder with these files; return the screen at the end, and how long it took."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        session = Session(Path(folder))
        try:
            for command in commands:
                session.run(command)
        finally:
            end = len(session.events)
            session.run("headrace down")
            session.close()
    written = "".join(text for _, text in session.events[:end])
    if failed := _FAILED.search(written):
        sys.exit(f"A command failed. {failed[1].strip()}")
    screen = Screen()
    for time_s, text in session.events[:end]:
        screen.write(_KEY.sub("…", text), time_s)
    return screen, session.events[end - 1][0]


def main() -> None:
    """Record the session and write the picture."""
    parser = argparse.ArgumentParser(description="Record the session of the README.")
    parser.add_argument("--output", type=Path, default=TARGET, help="where the picture goes")
    options = parser.parse_args()
    from headrace.tools.bench.environment import describe_environment

    machine = describe_environment()
    screen, end_s = record(COMMANDS, {"ask.py": ASK})
    where = f"{machine['cpu']}, {machine['cpus_usable']} cores, {str(machine['time'])[:10]}"
    options.output.write_text(svg(screen, end_s, f"Recorded in real time: {where}"))
    print(f"{options.output}: {options.output.stat().st_size // 1024} KiB, {end_s:.1f} s")


if __name__ == "__main__":
    main()
