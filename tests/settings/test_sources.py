"""Sources of settings: model folders and properties files with any text."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.settings.container_names import read_container_names
from headrace.settings.properties_file import parse_properties
from headrace.settings.sources import gather_settings


def test_the_properties_of_a_model_folder_may_name_the_model(tmp_path):
    (tmp_path / "serving.properties").write_text("option.model_id=org/other\noption.max_model_len=64\n")
    settings, _ = gather_settings({"model": str(tmp_path)}, {})
    assert (settings.model, settings.max_model_len) == ("org/other", 64)


def test_a_model_folder_with_properties_but_no_model_id_is_the_model(tmp_path):
    (tmp_path / "serving.properties").write_text("option.max_model_len=64\n")
    settings, _ = gather_settings({}, {"HEADRACE_MODEL": str(tmp_path)})
    assert (settings.model, settings.max_model_len) == (str(tmp_path), 64)


def test_sagemakers_folder_is_served_when_nothing_is_named(tmp_path):
    settings, _ = gather_settings({}, {}, model_folder=tmp_path)
    assert (settings.model, settings.host, settings.container) == (str(tmp_path), "0.0.0.0", True)
    settings, _ = gather_settings({}, {"HF_MODEL_ID": "org/name"}, model_folder=tmp_path)
    assert (settings.model, settings.host) == ("org/name", "0.0.0.0")
    settings, _ = gather_settings({"model": "smollm2"}, {}, model_folder=tmp_path)
    assert (settings.model, settings.host) == ("smollm2", "127.0.0.1")


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5), st.text(max_size=200))
def test_any_environment_and_properties_file_are_read_or_refused(env, text):
    with contextlib.suppress(SettingsError):
        read_container_names(env, parse_properties(text), container=True)
