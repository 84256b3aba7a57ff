import json
from pathlib import Path
from typing import Any

import pytest

from headrace.platform.control.jumpstart.catalogue import open_catalogue

KNOWN = "meta-textgeneration-llama-3-1-8b-instruct"


@pytest.fixture
def jumpstart(headrace: Any, tmp_path: Path) -> Any:
    """Run a command on a data folder of its own."""
    return lambda *arguments: headrace("jumpstart", *arguments, "--data-dir", tmp_path / "data")


def test_the_list_shows_the_shipped_ids_with_a_word_and_marks_own_ones(jumpstart: Any) -> None:
    assert jumpstart("add", "a-llama-mine", "--model", "smollm2").exit_code == 0
    lines = jumpstart("ls", "LLAMA").stdout.splitlines()
    assert lines[0].split() == ["ID", "VERSION", "SERVER", "EULA", "MODEL"]
    assert [line for line in lines if line.startswith("a-llama-mine * ")]
    assert [line.split()[3:] for line in lines if line.startswith(KNOWN)] == [
        ["yes", "meta-llama/Llama-3.1-8B-Instruct"]
    ]
    assert "No id contains 'nothing-like-it'" in jumpstart("ls", "nothing-like-it").stderr


def test_a_row_of_a_known_id_keeps_what_is_not_given_and_is_replaced(jumpstart: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "data" / "jumpstart.toml"
    for model, more in (("a/b", ()), (str(tmp_path / "model"), ("--server", "tgi", "--instance-type", "ml.m5.xlarge"))):
        done = jumpstart("add", KNOWN, "--model", model, *more)
        assert (done.exit_code, done.stdout) == (0, f"{KNOWN} is {model} in {path}.\n")
        assert [(file.name, file.stat().st_mode & 0o777) for file in path.parent.iterdir()] == [(path.name, 0o600)]
    row = open_catalogue(None, path).rows[KNOWN]
    assert (row.model, row.server, row.instance_type, row.gated) == (model, "tgi", "ml.m5.xlarge", True)
    (shown,) = json.loads(jumpstart("ls", KNOWN, "--json").stdout)
    assert (shown["id"], shown["model"], shown["version"]) == (KNOWN, model, row.version)


def test_lines_of_the_user_stay_and_a_wrong_row_changes_nothing(jumpstart: Any, tmp_path: Path) -> None:
    path = tmp_path / "data" / "jumpstart.toml"
    path.parent.mkdir()
    path.write_text('# mine\n["b-table"]\nmodel = "c/d"\nenvironment = { A = "x" }\n')
    assert jumpstart("add", "a-model", "--model", "a/b").exit_code == 0
    text = path.read_text()
    assert ("# mine" in text, sorted(open_catalogue(path, path).rows)[:2]) == (True, ["a-model", "b-table"])
    for arguments, why in {
        ("a_b", "--model", "a/b"): "is not an id",
        ("c-model", "--model", "a/b", "--version", "1"): "expected three numbers",
        ("c-model", "--model", "./none"): "does not exist",
    }.items():
        done = jumpstart("add", *arguments)
        assert (done.exit_code, why in done.stderr) == (2, True), done.stderr
    assert path.read_text() == text
