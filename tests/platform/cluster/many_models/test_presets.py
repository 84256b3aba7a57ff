"""The models of a folder, and of a file with settings for each."""

import os
import subprocess
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.cluster.many_models.presets import ModelPreset, find_models, read_presets


def add(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_folder_names_its_models_by_their_paths(tmp_path: Path) -> None:
    add(tmp_path, "small.Q4.gguf", "mmproj-small.gguf", ".hidden.gguf", "notes.txt", "hf/model/config.json")
    add(tmp_path, "split/large-00001-of-00002.gguf", "split/large-00002-of-00002.gguf", "split/mmproj.gguf")
    add(tmp_path, "publisher/two/a.gguf", "publisher/two/b.gguf", "hf/model/part.gguf", "top-00001-of-00001.gguf")
    add(tmp_path, "small.Q4/config.json")
    assert {name: str(path.relative_to(tmp_path.resolve())) for name, path in find_models(tmp_path).items()} == {
        "hf/model": "hf/model",
        "publisher/two/a": "publisher/two/a.gguf",
        "publisher/two/b": "publisher/two/b.gguf",
        "small.Q4": "small.Q4.gguf",
        "small.Q4/": "small.Q4",
        "split": "split/large-00001-of-00002.gguf",
        "top": "top-00001-of-00001.gguf",
    }


def test_folders_that_may_not_be_searched_do_not_hide_the_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, "closed/config.json", "closed/in/a.gguf", "open.gguf")
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    assert [*find_models(tmp_path)] == ["open"]


def test_a_folder_that_the_system_does_not_list_is_left_out(tmp_path: Path) -> None:
    """That of a process that has ended, which nothing has waited for, has such a folder."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError, match="Invalid argument"):
            list(Path(f"/proc/{process.pid}/net").iterdir())
        assert find_models(Path(f"/proc/{process.pid}")) == {}


def test_a_file_has_settings_for_each_model(tmp_path: Path) -> None:
    add(tmp_path, "gguf/found.gguf", "gguf/tuned.gguf", "mine.gguf")
    file = tmp_path / "models.yaml"
    file.write_text("""
folder: gguf
defaults: {max_model_len: 2048, ttl_s: 60}
models:
  tuned: {max_model_len: 512, aliases: [gpt-4o], adapter: [tiny=./t]}
  mine: {model: mine.gguf, pin: true, enable_prefix_caching: false, rope: {factor: 2}}
  alias: {model: smollm2, ttl_s: 0}
""")
    folder, common = tmp_path.resolve(), {"max_model_len": "2048"}
    tuned = {"max_model_len": "512", "adapter": "tiny=./t"}
    mine = {**common, "enable_prefix_caching": "false", "rope": '{"factor": 2}'}
    presets = {preset.name: preset for preset in read_presets(file)}
    assert presets == {
        "tuned": ModelPreset(
            name="tuned", model=str(folder / "gguf/tuned.gguf"), settings=tuned, aliases=("gpt-4o",), ttl_s=60
        ),
        "mine": ModelPreset(name="mine", model=str(folder / "mine.gguf"), settings=mine, is_pinned=True, ttl_s=60),
        "alias": ModelPreset(name="alias", model="smollm2", settings=common, ttl_s=0),
        "found": ModelPreset(name="found", model=str(folder / "gguf/found.gguf"), settings=common, ttl_s=60),
    }
    assert presets["tuned"].names == ("tuned", "gpt-4o", "tiny")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "models.yaml is list, not a mapping"),
        ("{", "models.yaml is not YAML"),
        ("{}", "it has no models"),
        ("modles: {}", "the key 'modles' is unknown; expected models, defaults, folder"),
        ("folder: nowhere", "folder is 'nowhere'; expected a folder"),
        ("models: {a: {}}", "models.a.model is None; expected a path, an alias or a Hub id"),
        ("models: {a b: {model: smollm2}}", "'a b' is no name"),
        ("models: {a: {model: smollm2, dtpye: w8a8}}", "models.a.dtpye is not a setting; did you mean dtype?"),
        ("models: {a: {model: smollm2, zzz: 1}}", "models.a.zzz is not a setting; `headrace serve --help-all`"),
        ("models: {a: {model: smollm2, api_key: k}}", "models.a.api_key concerns the whole server"),
        ("models: {a: {model: smollm2, dtype: null}}", "models.a.dtype is empty; expected a value"),
        ("models: {a: {model: smollm2, pin: 1}}", "models.a.pin is 1; expected true or false"),
        ("models: {a: {model: smollm2, ttl_s: -1}}", "models.a.ttl_s is -1; expected seconds from 0 up"),
        ("models: {a: {model: smollm2, aliases: b}}", "models.a.aliases is 'b'; expected a list of names"),
        ("models: {1: {}}", "models is dict; expected names with values"),
    ],
)
def test_what_a_file_may_not_have_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError) as refused:
        read_presets(file)
    assert message in refused.value.message


def test_other_files_are_refused_and_json_is_read(tmp_path: Path) -> None:
    ini, file = tmp_path / "models.ini", tmp_path / "models.json"
    ini.touch()
    with pytest.raises(SettingsError, match=r"the suffix is '.ini'; expected a folder of models, or a .yaml"):
        read_presets(ini)
    file.write_text('{"models": {"a": {"model": "smollm2"}}}')
    assert read_presets(file) == [ModelPreset(name="a", model="smollm2")]
