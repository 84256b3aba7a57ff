"""The card of `headrace up`."""

import shlex
from pathlib import Path

import msgspec

from headrace.platform.host.folders import GENERATED_KEY_ID, DataFolder, LocalKey
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.tools.cli.up import panel_text
from tests.command_lines import in_printed, in_spans, parse

URL = "http://127.0.0.1:7451"


def card(folder: Path, **settings: object) -> str:
    return panel_text(URL, PlatformSettings(**settings), DataFolder(folder), "ready", ending="Ctrl-C stops")


def test_the_card_has_addresses_and_commands_that_exist(headrace, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    text = card(tmp_path / "headrace")
    commands = list(in_printed(text))
    for words in commands:
        parse(words)
    assert [words[0] for words in commands] == ["deploy", "invoke"]
    assert 'eval "$(headrace env)"' in text
    assert "keys       required" in text
    assert "keys       not required" in card(tmp_path / "headrace", open=True)
    assert "  machine    10.0.0.1, for the other machines\n" in card(tmp_path / "headrace", advertise="10.0.0.1")


def test_the_card_signs_the_browser_in_with_a_generated_key_only(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    for key_id, fragment in ((GENERATED_KEY_ID, "#key=s3%2Fcret"), ("HRAKOTHER", "")):
        folder.access_key.write_bytes(msgspec.json.encode(LocalKey(key_id=key_id, secret="s3/cret")))
        assert f"  console    {URL}/console{fragment}\n" in card(tmp_path)
        assert f"  console    {URL}/console\n" in card(tmp_path, open=True)


def test_the_card_names_a_data_folder_of_its_own(headrace, tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    option = f"--data-dir {shlex.quote(str(folder))}"
    text = card(folder, require_keys=True)
    assert f'eval "$(headrace env {option})"' in text
    assert f"`headrace keys ls {option}`" in text
    for words in in_spans(text):
        parse(words)
