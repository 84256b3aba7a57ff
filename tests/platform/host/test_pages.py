"""Pages of the docs that use a platform: their commands run as printed, in a shell of their own."""

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.conftest import headrace_command
from tests.pages import DOCS, run_page
from tests.platform.control.upgrade.test_upgrade import load_store

from .running import clean_environment

pytestmark = pytest.mark.model

PIECES = {
    "quickstart/sagemaker-in-ci": (
        "support is in service",
        "The capital of France is Paris.",
        "support is deleted",
        "1 passed",
    ),
    "quickstart/autoscaled-llama": (
        "llama3 is in service",
        "Paris",
        "llama3 is scaled between 0 and 2",
        "4 of 4",
        "chat.completion",
        "llama3 is deleted",
    ),
}
"""What the commands of each page print."""


@pytest.mark.parametrize("name", PIECES)
def test_the_commands_of_the_page_run_from_the_start_of_a_platform_to_its_end(
    name: str, smollm2_path: Path, tmp_path: Path
) -> None:
    env = clean_environment(HEADRACE_UP_DATA_DIR=str(tmp_path / "data"), HEADRACE_UP_PORT="0")
    try:
        output = run_page(DOCS / f"{name}.md", tmp_path, smollm2_path, env, {})
    finally:  # for a page that ends early
        subprocess.run([headrace_command(), "down"], env=env, check=False, capture_output=True)
    for piece in PIECES[name]:
        assert piece in output, output


def test_a_platform_of_an_earlier_version_is_upgraded_copied_and_restored_by_the_page_on_backups(
    smollm2_path: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    store_of_earlier_version(data / "records.sqlite", smollm2_path)
    env = clean_environment(HEADRACE_UP_DATA_DIR=str(data), HEADRACE_UP_PORT="0")

    def headrace(*arguments: str) -> str:
        return subprocess.run(
            [headrace_command(), *arguments], env=env, check=True, capture_output=True, text=True
        ).stdout

    try:
        headrace("up", "--detach")
        headrace("keys", "create", "--note", "kept")
        output = run_page(DOCS / "guides" / "backup.md", tmp_path, smollm2_path, env, {})
        assert "status          ok" in output
        assert "Verified everything.tar.gz: 2 access keys, 3 alarms, 1 endpoint," in output
        assert "kept" in headrace("keys", "ls")
        assert headrace("invoke", "plain", "Once upon a time")
    finally:
        headrace("down")


def store_of_earlier_version(path: Path, model: Path) -> None:
    """Make records as an earlier version stored them: an endpoint of two variants, with a policy."""
    path.parent.mkdir(mode=0o700)
    load_store(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM headrace_records WHERE kind IN ('inference-component', 'worker', 'route')")
        connection.execute("DELETE FROM headrace_records WHERE kind LIKE 'endpoint%' AND name != 'plain'")
        for old, new in (
            *((f'"HF_MODEL_ID": "{name}"', f'"HF_MODEL_ID": "{model}"') for name in ("m", "n")),
            ('"count": 1', '"count": 0'),  # one worker in all: the second variant has none
            ('"count": 2', '"count": 1'),
        ):
            connection.execute(
                "UPDATE headrace_records SET spec = replace(spec, ?, ?), status = replace(status, ?, ?)",
                (old, new, old, new),
            )
