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
