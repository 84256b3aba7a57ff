import json

import pytest


@pytest.fixture
def home(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A store with one model and one packed file; an empty Hub cache."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "home" / "models" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "x.gguf").write_bytes(b"0" * 2048)
    packed = tmp_path / "home" / "packed"
    packed.mkdir()
    (packed / "abc.weights").write_bytes(b"0" * 1024)
    return tmp_path / "home"


def test_the_list_shows_names_kinds_and_sizes_and_what_can_be_pulled(headrace, home) -> None:
    result = headrace("models", "ls")
    lines = result.stdout.splitlines()
    assert lines[:4] == ["NAME     KIND    SIZE", "smollm2  alias   2 KiB", "packed   1 file  1 KiB", ""]
    assert "gemma3-270m" in result.stdout
    assert result.stderr == f"3 KiB in {home} and the Hub's cache.\n"
    assert max(map(len, lines)) <= 80


def test_the_list_for_scripts_is_json(headrace, home) -> None:
    rows = json.loads(headrace("models", "ls", "--json").stdout)
    assert [(row["kind"], row["bytes"]) for row in rows] == [("alias", 2048), ("packed", 1024)]
    assert rows[0]["path"] == str(home / "models" / "smollm2")


def test_the_old_names_of_the_commands_work_and_say_the_new_ones(headrace, home) -> None:
    listed = headrace("models", "list", "--json")
    assert len(json.loads(listed.stdout)) == 2
    assert (
        listed.stderr == "`headrace models list` is `headrace models ls` now; the next release removes the old name.\n"
    )
    assert headrace("models", "remove", "smollm2", "--yes").exit_code == 0
    assert "remove" not in headrace("models", "--help").stdout.partition("Commands:")[2]


def test_removing_asks_first(headrace, home) -> None:
    assert headrace("models", "rm", "smollm2", stdin="n\n").exit_code == 1
    assert (home / "models" / "smollm2").exists()
    result = headrace("models", "rm", "smollm2", stdin="y\n")
    assert result.exit_code == 0
    assert "2 KiB freed" in result.stdout
    assert not (home / "models" / "smollm2").exists()


def test_packed_weights_are_removed_together(headrace, home) -> None:
    assert headrace("models", "rm", "packed", "--yes").exit_code == 0
    assert not list(home.glob("packed/*"))


def test_the_path_of_a_model_and_of_the_store_are_printed(headrace, home) -> None:
    assert headrace("models", "path").stdout == f"{home}\n"
    assert headrace("models", "path", "smollm2").stdout == f"{home / 'models' / 'smollm2'}\n"


@pytest.mark.parametrize("args", [("path", "nope"), ("rm", "nope", "--yes"), ("pull", "nope")])
def test_a_missing_model_is_one_sentence_and_exit_code_2(headrace, home, args) -> None:
    result = headrace("models", *args)
    assert result.exit_code == 2
    assert "nope" in result.stderr
    assert "Traceback" not in result.stderr
