"""A model's code is found before the settings of an engine are read."""

from pathlib import Path

import pytest

from headrace.cli.user_code import find_user_code, formatted_notices, formatted_overrides
from headrace.core.errors import SettingsError
from headrace.settings.sources import gather_settings

NONE = Path("/nonexistent")
LLM = {"config.json": "{}"}
HANDLE = "def handle(inputs): ..."


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, content in {
        **LLM,
        "model.py": HANDLE,
        "serving.properties": "option.tensor_parallel_degree=none",
    }.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "env"),
    [
        ({"model": "smollm2"}, {}),
        ({"model": "s3://bucket/model/"}, {}),
        ({}, {"HF_MODEL_ID": "org/model"}),
        ({}, {}),
        ({"model": "x" * 5000}, {}),
        ({"model": "a\0b"}, {}),
    ],
)
def test_models_that_are_no_folders_have_no_code(overrides, env) -> None:
    assert find_user_code(overrides, env, model_folder=NONE) is None


def test_the_setting_native_leaves_the_code_alone(folder) -> None:
    assert find_user_code({"model": str(folder), "handler": "native"}, {}, model_folder=NONE) is None
    assert find_user_code({}, {"HEADRACE_HANDLER": "native"}, model_folder=folder) is None


def test_the_setting_handler_is_an_error_without_code(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match="has no code to run"):
        find_user_code({"model": str(tmp_path), "handler": "handler"}, {}, model_folder=NONE)


def test_a_setting_that_is_invalid_is_refused(folder) -> None:
    with pytest.raises(SettingsError, match="HEADRACE_HANDLER is 'sometimes'"):
        find_user_code({"model": str(folder)}, {"HEADRACE_HANDLER": "sometimes"}, model_folder=NONE)


def test_formatters_go_with_an_engine_that_speaks_djl_by_default(tmp_path) -> None:
    (tmp_path / "model.py").write_text("@input_formatter\ndef f(payload): ...")
    (tmp_path / "config.json").write_text("{}")
    overrides = {"model": str(tmp_path)}

    code = find_user_code(overrides, {}, model_folder=NONE)

    assert code is not None
    assert not code.serves
    assert code.plan.spec is not None
    assert (code.plan.spec.load.entry, code.plan.spec.max_workers) == ("model.py", 1)
    settings, notices = gather_settings(formatted_overrides(overrides, {}), {}, model_folder=NONE)
    assert settings.dialect == "lmi-17"
    assert [notice.message for notice in formatted_notices(code, notices)] == [code.summary]
    assert formatted_overrides({"dialect": "tgi-3"}, {})["dialect"] == "tgi-3"
    assert "dialect" not in formatted_overrides({}, {"HEADRACE_DIALECT": "openai"})


def test_names_of_containers_set_the_server_around_the_code_and_are_told(tmp_path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").write_text("def model_fn(model_dir): ...")
    env = {
        "SAGEMAKER_BIND_TO_PORT": "9191",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": "20",
        "PORT": "7",
        "MAX_TOTAL_TOKENS": "an engine's, and no number",
        "SAGEMAKER_MODEL_SERVER_VMARGS": "-Xmx2g",
    }

    named = find_user_code({"model": str(tmp_path)}, env, model_folder=NONE)
    container = find_user_code({"model": str(tmp_path), "container": "true"}, {"PORT": "7000"}, model_folder=NONE)

    assert named is not None
    assert container is not None
    assert (named.settings.port, named.settings.max_body_bytes, container.settings.port) == (9191, 20 << 20, 7000)
    assert [(notice.name, notice.kind) for notice in (*named.notices, *named.server_notices)] == [
        ("handler", "applied"),
        ("handler", "ignored"),
        ("SAGEMAKER_BIND_TO_PORT", "applied"),
        ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "applied"),
    ]
    assert named.description == [
        named.summary,
        "SAGEMAKER_MODEL_SERVER_VMARGS has no effect: there is no Java virtual machine.",
    ]
