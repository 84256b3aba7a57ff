"""Models that requests may name."""

from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.cluster.many_models.catalogue import Catalogue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "a.gguf").touch()
    return folder


def test_a_name_never_becomes_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "org" / "model").mkdir(parents=True)
    catalogue = Catalogue(folder, hub="any", env={"HEADRACE_HOME": str(folder.parent / "home")})
    hostile = ("../models/a", "models/a.gguf", str(folder / "a.gguf"), "a.gguf", "org/model", "s3://b/m", "~/m", "")
    assert [name for name in hostile if catalogue.find(name) is not None] == []
    remote = catalogue.find("hf.co/Qwen/Qwen3-0.6B:latest")
    assert remote is not None
    assert (remote.name, remote.path) == ("Qwen/Qwen3-0.6B", None)
    assert [preset.name for preset in catalogue.presets] == ["a"], "what clients name is not listed"


def test_a_model_is_found_once_it_is_in_the_folder(folder: Path) -> None:
    catalogue = Catalogue(folder, hub="off", env={})
    (folder / "b.gguf").touch()
    (folder / "a.gguf").unlink()
    assert catalogue.find("Qwen/Qwen3-0.6B") is None, "the Hub is not allowed"
    catalogue.refresh()
    assert catalogue.find("a") is None
    assert catalogue.find("b:latest") == catalogue.find("b")


def test_models_of_the_caches_are_listed_if_they_may_be_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "models-home" / "models" / "smollm2").mkdir(parents=True)
    env = {"HEADRACE_HOME": str(tmp_path / "models-home")}
    names = {hub: [preset.name for preset in Catalogue(folder, hub=hub, env=env).presets] for hub in ("off", "cache")}
    assert "smollm2" in names["cache"]
    assert names["off"] == ["a"]


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models: {a: {model: smollm2, aliases: [x]}, b: {model: smollm2, aliases: [x]}}")
    with pytest.raises(SettingsError, match="two models have the name 'x': a and b"):
        Catalogue(file, hub="off", env={})
