"""One platform a data folder; where it listens is told."""

import json
import os
import stat
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.host.folders import Address, DataFolder


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path / "data" / "headrace")
    made.make()
    return made


def test_the_folder_is_for_its_owner_alone(folder: DataFolder) -> None:
    assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
    folder.root.chmod(0o777)
    folder.make()
    assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700


def test_a_second_platform_is_refused_in_one_sentence(folder: DataFolder) -> None:
    with (
        folder.locked(),
        folder.announced(Address(url="http://127.0.0.1:7450")),
        pytest.raises(SettingsError, match=r"http://127\.0\.0\.1:7450.*--data-dir"),
        DataFolder(folder.root).locked(),
    ):
        pass
    with folder.locked():
        pass


def test_the_platforms_url_is_announced_while_it_runs(folder: DataFolder) -> None:
    with folder.announced(Address(url="http://127.0.0.1:1")):
        assert folder.running_address() == Address(url="http://127.0.0.1:1")
        assert json.loads(folder.running.read_text())["pid"] == os.getpid()
    assert folder.running_address() is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"url": 5}', '{"pid": 1}'])
def test_a_broken_announcement_is_ignored(folder: DataFolder, text: str) -> None:
    folder.running.write_text(text)
    assert folder.running_address() is None


def test_a_folder_that_cannot_be_created_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="--data-dir"):
        DataFolder(tmp_path / "file" / "data").make()
