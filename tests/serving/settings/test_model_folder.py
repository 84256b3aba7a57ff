"""Configuration in a model's folder: at its top or in its only subfolder, in DJL's format or in TorchServe's."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.serving.settings.model_folder import MODEL_FOLDER, in_folder, parse_model_config, read_model_folder
from headrace.serving.settings.sources import gather_settings


def write(folder, files):
    """Files by path."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def container(folder):
    """The variables with which the platform's containers find a model."""
    return {"HEADRACE_MODEL_FOLDER": str(folder), "HEADRACE_CONTAINER": "true"}


def model_of(folder, env=None, **overrides):
    settings, _ = gather_settings(overrides, {**container(folder), **(env or {})})
    return settings.model


@pytest.fixture(params=["top", "inner"])
def place(request, tmp_path):
    """The place of the files in the served folder: its top, or its only subfolder."""
    place = tmp_path if request.param == "top" else tmp_path / "packed"
    place.mkdir(exist_ok=True)
    return place


def test_properties_name_a_model_elsewhere(tmp_path, place):
    (place / "serving.properties").write_text("option.model_id=org/other\noption.max_model_len=64\n")
    settings, _ = gather_settings({}, container(tmp_path))
    assert (settings.model, settings.max_model_len, settings.dialect) == ("org/other", 64, "lmi-17")
    assert gather_settings({"model": str(tmp_path), "trust_model_files": "true"}, {})[0].model == "org/other"


@pytest.mark.parametrize("name", ["s3://bucket/models/llama/", "s3://bucket/x"])
def test_properties_and_model_configs_may_name_object_storage(name, tmp_path, place):
    (place / "serving.properties").write_text(f"option.model_id={name}\n")
    assert model_of(tmp_path) == name
    (place / "serving.properties").unlink()
    (place / "model-config.yaml").write_text(f'handler: {{model_path: "{name}"}}\n')
    assert model_of(tmp_path) == name


def test_a_name_of_something_in_the_folder_is_its_path(tmp_path, place):
    write(place, {"weights/config.json": "{}", "serving.properties": "option.model_id = weights\n"})
    assert model_of(tmp_path) == str(place / "weights")
    (place / "serving.properties").write_text("option.model_id=/opt/ml/model\n")
    assert model_of(tmp_path) == str(place)


def test_the_folder_itself_is_served_when_nothing_names_a_model(tmp_path, place):
    write(place, {"config.json": "{}", "serving.properties": "option.max_model_len=64\n"})
    assert model_of(tmp_path) == str(place)
    assert gather_settings({"model": str(tmp_path)}, {})[0].model == str(place)
    assert gather_settings({}, {"HF_MODEL_ID": str(tmp_path)})[0].model == str(place)


@pytest.mark.parametrize("variable", ["HF_MODEL_ID", "OPTION_MODEL_ID", "SM_VLLM_MODEL"])
def test_the_environment_names_the_model_if_the_folder_does_not(variable, tmp_path, place):
    write(place, {"serving.properties": "option.max_model_len=64\n", "config.json": "{}", "lora/config.json": "{}"})
    assert model_of(tmp_path, {variable: "org/name"}) == "org/name"
    assert model_of(tmp_path, {variable: "/opt/ml/model"}) == str(place)
    assert model_of(tmp_path, {variable: "/opt/ml/model/"}) == str(place)
    (place / "serving.properties").write_text("option.model_id=org/stronger\n")
    assert model_of(tmp_path, {variable: "org/name"}) == "org/stronger"


def test_a_path_in_sagemakers_folder_is_resolved_in_the_folder_that_replaces_it(tmp_path):
    write(tmp_path, {"a/config.json": "{}", "b/config.json": "{}"})
    assert model_of(tmp_path, {"HF_MODEL_ID": "/opt/ml/model/b"}) == str(tmp_path / "b")


def test_a_model_named_outside_the_folder_is_served_with_the_folders_settings(tmp_path):
    write(tmp_path, {"serving.properties": "option.model_id=s3://bucket/x\noption.max_model_len=64\n"})
    settings, notices = gather_settings({}, {**container(tmp_path), "HEADRACE_MODEL": "fetched"})
    assert (settings.model, settings.max_model_len, settings.container) == ("fetched", 64, True)
    assert not [notice for notice in notices if "model_id" in notice.name]
    assert model_of(tmp_path, model="smollm2") == "smollm2"


def test_a_missing_folder_stops_the_start(tmp_path):
    with pytest.raises(SettingsError, match=r"HEADRACE_MODEL_FOLDER is .* expected a folder"):
        model_of(tmp_path / "missing")


def test_files_of_the_working_folder_are_not_read_by_accident(tmp_path, monkeypatch):
    (tmp_path / "serving.properties").write_text("option.model_id=org/other\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="No model was named"):
        gather_settings({}, {}, model_folder=tmp_path / "missing")


def test_torchserves_folder_is_served_as_torchserve(tmp_path, place):
    write(
        place,
        {
            "model-config.yaml": "minWorkers: 1\n"
            "handler: {model_checkpoint_dir: llama-split, max_length: 100, amp: bf16}\n",
            "llama-split/config.json": "{}",
            "MAR-INF/MANIFEST.json": "{}",
            "inf2_handler.py": "raise SystemExit",
            "requirements.txt": "evil",
        },
    )
    settings, notices = gather_settings({}, container(tmp_path))
    assert settings.model == str(place / "llama-split")
    assert (settings.dialect, settings.default_max_new_tokens) == ("torchserve", 100)
    told = {notice.name: notice.message for notice in notices if notice.kind == "ignored"}
    assert {"inf2_handler.py", "requirements.txt"} <= set(told)
    assert "runs no code" in told["inf2_handler.py"]
    assert notices[0].name == "inf2_handler.py", "what matters most is told first, where there is room for little"
    assert not {"minWorkers", "handler.amp"} & set(told)
    settings, _ = gather_settings({"dialect": "tgi-1.0"}, container(tmp_path))
    assert settings.dialect == "tgi-1.0"


@pytest.mark.parametrize(
    ("handler", "files", "wanted"),
    [
        ("model_checkpoint_dir: split\n  model_path: hf", ["hf/config.json"], "hf"),
        ("model_checkpoint_dir: split\n  model_path: hf", ["hf/config.json", "split/config.json"], "split"),
        ("model_path: weights/model.gguf", ["weights/model.gguf"], "weights/model.gguf"),
        ("model_checkpoint_dir: split", ["config.json"], ""),
        ("model_name: llama", ["config.json"], ""),
        ("model_name: llama", ["model.gguf"], ""),
        ("tp_degree: 2", ["config.json"], ""),
        ('model_path: ""', ["config.json"], ""),
    ],
)
def test_names_in_a_model_config_are_resolved_in_the_folder(handler, files, wanted, tmp_path, place):
    write(place, dict.fromkeys(files, "{}"))
    (place / "model-config.yaml").write_text(f"handler:\n  {handler}\n")
    assert Path(model_of(tmp_path)) == (place / wanted if wanted else place)


@pytest.mark.parametrize(
    ("handler", "wanted"),
    [
        ("model_path: org/name", "org/name"),
        ("model_name: org/name", "org/name"),
        ("model_checkpoint_dir: missing\n  model_name: org/name", "org/name"),
        ("model_checkpoint_dir: missing\n  model_name: label", "missing"),
        ("model_path: smollm2", "smollm2"),
    ],
)
def test_a_name_that_is_not_in_the_folder_is_kept_as_a_model_name(handler, wanted, tmp_path, place):
    (place / "model-config.yaml").write_text(f"handler:\n  {handler}\n")
    assert model_of(tmp_path) == wanted


def test_serving_properties_take_precedence_over_a_model_config(tmp_path):
    files = {
        "serving.properties": "option.model_id=org/first",
        "model-config.yaml": "handler: {model_path: org/second}",
    }
    write(tmp_path, files)
    settings, _ = gather_settings({}, container(tmp_path))
    assert (settings.model, settings.dialect) == ("org/first", "lmi-17")


def test_only_a_single_subfolder_is_searched(tmp_path):
    write(tmp_path, {"one/config.json": "{}", "README": "hello", ".cache/config.json": "{}"})
    assert read_model_folder(tmp_path).root == tmp_path / "one"
    write(tmp_path, {"two/config.json": "{}"})
    assert read_model_folder(tmp_path).root == tmp_path


def test_a_relative_name_does_not_lead_out_of_the_folder(tmp_path):
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("../outside", "a/../../outside", "x" * 5000, "a\0b", "~/x", ""):
        assert in_folder(name, root=folder, folder=folder) == name
    assert in_folder(".", root=folder, folder=folder) == str(folder)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "model-config.yaml is not YAML"),
        ("- 1", "expected keys and values"),
        ("text", "expected keys and values"),
        ("a: !!python/object/apply:os.system [ls]", "model-config.yaml is not YAML"),
        ("a: " + "[" * 5000, "model-config.yaml is not YAML"),
        ("when: 2024-99-99", "model-config.yaml is not YAML"),
    ],
)
def test_a_model_config_that_cannot_be_read_stops_the_start(text, sentence, tmp_path):
    (tmp_path / "model-config.yaml").write_text(text)
    with pytest.raises(SettingsError, match=sentence) as caught:
        model_of(tmp_path)
    assert "\n" not in caught.value.message


def test_a_file_that_is_binary_or_too_large_stops_the_start(tmp_path):
    (tmp_path / "model-config.yaml").write_bytes(b"a: \xff")
    with pytest.raises(SettingsError, match="a YAML file in UTF-8"):
        model_of(tmp_path)
    (tmp_path / "model-config.yaml").write_text("# " + "x" * 2_000_000)
    with pytest.raises(SettingsError, match="expected at most 1048576"):
        model_of(tmp_path)


def test_values_become_strings_and_nested_values_are_never_formatted():
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    assert parse_model_config(f"{bomb}handler:\n  flag: true\n  empty:\n  number: 1.5\n  inner: {{a: 1}}\n") == {
        "a": "...",
        "b": "...",
        "c": "...",
        "handler.flag": "true",
        "handler.number": "1.5",
        "handler.inner": "...",
    }
    assert parse_model_config("# nothing\n") == {}


@given(text=st.text(max_size=60) | st.text("ab:-[]{}&*!'\"\n |>#%@", max_size=60))
def test_any_text_is_parsed_or_refused(text):
    with contextlib.suppress(SettingsError):
        assert all(isinstance(value, str) for value in parse_model_config(text).values())


@given(name=st.text(max_size=40))
def test_any_name_is_resolved_without_an_exception(name):
    assert isinstance(in_folder(name, root=Path("/nonexistent"), folder=Path("/nonexistent")), str)
    assert MODEL_FOLDER.is_absolute()
