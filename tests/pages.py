"""
The commands of a page of the docs, run in order in one shell, as a reader runs them.

A fenced block with a title is a file, which is written; other blocks of `bash` and `python` run.
A comment before a block changes that:

    <!-- not run: why -->
    <!-- run instead: command -->
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import WAIT_S

DOCS = Path(__file__).parent.parent / "docs"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>not run|run instead): (?P<note>[^\n]+) -->\n+)?"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """A block of a page: code to run with `bash` or `python`, or the content of a file."""

    line: int
    language: str
    code: str
    file: str | None = None


def steps_of(page: Path) -> list[Step]:
    """Return the steps of a page; what its comments exclude is left out."""
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        if match["title"]:
            found.append(Step(line, match["language"], match["code"], match["title"]))
        elif match["mark"] == "run instead":
            found.append(Step(line, "bash", match["note"] + "\n"))
        elif match["mark"] is None and match["language"] in ("bash", "python"):
            found.append(Step(line, match["language"], match["code"]))
    return found


def block_with(page: Path, words: str) -> str:
    """Return the code of the one block that has these words, whatever the comment before it says."""
    (code,) = [match["code"] for match in _BLOCK.finditer(page.read_text()) if words in match["code"]]
    return code


def script_of(steps: list[Step]) -> str:
    """Return one script for bash that says on stderr which line of the page it has reached."""
    parts = []
    for number, step in enumerate(steps):
        code, mark = step.code, f"END_OF_BLOCK_{number}"
        if step.file:
            code = f"mkdir -p \"$(dirname '{step.file}')\"\ncat > '{step.file}' <<'{mark}'\n{code}{mark}\n"
        elif step.language == "python":
            code = f"python - <<'{mark}'\n{code}{mark}\n"
        parts.append(f"echo '--- line {step.line}' >&2\n{code}")
    return "\n".join(parts)


def store_smollm2(model: Path, home: Path) -> None:
    """Put a model into the cache in a folder as the alias `smollm2`."""
    stored = home / "models" / "smollm2" / SMOLLM2
    stored.parent.mkdir(parents=True)
    shutil.copy(model, stored)


def run_page(page: Path, folder: Path, model: Path, env: Mapping[str, str], replace: Mapping[str, str]) -> str:
    """Run the steps of a page in a new folder, with a cache that has the model as `smollm2`; return their output."""
    code = script_of(steps_of(page))
    for old, new in replace.items():
        assert old in code, f"{page} has no {old}"
        code = code.replace(old, new)
    work, home = folder / "work", folder / "home"
    work.mkdir()
    store_smollm2(model, home)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=work,
        env={**env, "PATH": path, "HEADRACE_HOME": str(home), "SMOLLM2": str(model)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=2 * WAIT_S,
    )
    assert done.returncode == 0, f"{page}: {done.stdout[-4000:]}"
    return done.stdout
