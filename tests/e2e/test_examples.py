"""Examples and the code blocks of the docs run as they are against a real server with the real model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS, run_page, steps_of

from .conftest import Served

pytestmark = pytest.mark.model

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*/main.py"))
DEFAULT_URL = "http://127.0.0.1:8080"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "dialects").glob("*.md")),
    *(ROOT / "docs" / name for name in ("structured-output.md", "embeddings.md")),
]


def environment(server: Served) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "HEADRACE_URL": server.url, "PATH": path}


def blocks() -> list[tuple[str, str, str]]:
    return [
        (f"{page.stem}-{step.line}", step.language, step.code)
        for page in PAGES
        for step in steps_of(page)
        if DEFAULT_URL in step.code and "headrace serve" not in step.code
    ]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_example_runs(script: Path, server: Served) -> None:
    done = subprocess.run([sys.executable, script], env=environment(server), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_offline_batch_example_runs(server: Served, smollm2_path: Path, tmp_path: Path) -> None:
    script = ROOT / "examples" / "05-offline-batch" / "run.sh"
    env = {**environment(server), "OUTPUT": str(tmp_path / "answers.jsonl")}
    done = subprocess.run([script, smollm2_path], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(("language", "code"), [block[1:] for block in blocks()], ids=[block[0] for block in blocks()])
def test_the_code_block_of_the_page_runs(language: str, code: str, server: Served) -> None:
    code = code.replace(DEFAULT_URL, server.url)
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, env=environment(server), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_commands_of_the_quickstart_for_gguf_files_run(server: Served, smollm2_path: Path, tmp_path: Path) -> None:
    page = DOCS / "quickstart" / "gguf-on-a-cpu.md"
    output = run_page(page, tmp_path, smollm2_path, environment(server), {DEFAULT_URL: server.url})
    assert "The capital of France is Paris." in output
    assert "2 of 2" in output
