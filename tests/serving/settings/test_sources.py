"""Sources of settings: model folders and properties files with any text."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.serving.settings.container_names import read_container_names
from headrace.serving.settings.properties_file import parse_properties
from headrace.serving.settings.sources import gather_settings


def test_a_model_folder_with_properties_but_no_model_id_is_the_model(tmp_path):
    (tmp_path / "serving.properties").write_text("option.max_model_len=64\n")
    settings, _ = gather_settings({}, {"HEADRACE_MODEL": str(tmp_path)})
    assert (settings.model, settings.max_model_len) == (str(tmp_path), 64)


@pytest.mark.parametrize("variables", [{}, {"HEADRACE_MODEL_FOLDER": ""}, {"HF_MODEL_ID": "org/name"}])
def test_sagemakers_folder_opens_no_server_unless_the_process_is_said_to_be_a_container(variables, tmp_path):
    env = {name: value or str(tmp_path) for name, value in variables.items()}
    settings, notices = gather_settings({}, env, model_folder=tmp_path)
    assert (settings.model, settings.host) == (variables.get("HF_MODEL_ID", str(tmp_path)), "127.0.0.1")
    assert (settings.container, settings.trust_model_files) == (False, False)
    assert any("set HEADRACE_CONTAINER=true" in notice.message for notice in notices)
    settings, _ = gather_settings({}, {**env, "HEADRACE_CONTAINER": "true"}, model_folder=tmp_path)
    assert (settings.host, settings.container, settings.trust_model_files) == ("0.0.0.0", True, True)
    if "HEADRACE_MODEL_FOLDER" not in env:
        settings, _ = gather_settings({"model": "smollm2"}, {}, model_folder=tmp_path)
        assert (settings.model, settings.host) == ("smollm2", "127.0.0.1")


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5), st.text(max_size=200))
def test_any_environment_and_properties_file_are_read_or_refused(env, text):
    with contextlib.suppress(SettingsError):
        read_container_names(env, parse_properties(text), container=True)
