"""YAML and TOML end in values within bounds, or in an error that says what is wrong."""

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.settings.documents import read_toml, read_yaml_mapping
from tests.cves.documents import aliases


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (aliases().decode(), "f is not YAML within limits: it has more than 100000 values"),
        ("a: &a [*a]", "more than 100000 values"),
        ("a: 0x" + "f" * 20, "an integer of more than 64 bits"),
        ("? 0x" + "f" * 20, "an integer of more than 64 bits"),
        ("a: " + "9" * 5000, "f is not YAML: Exceeds the limit"),
        ("[1]", "f is list, not a mapping"),
        ("a: !!bool x", "f is not YAML: a value does not fit the tag before it"),
    ],
)
def test_yaml_beyond_the_limits_is_refused(text, message) -> None:
    with pytest.raises(SettingsError) as refused:
        read_yaml_mapping(text, "f", name="models")
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 0x" + "f" * 20, "f is not TOML within limits: it has an integer of more than 64 bits"),
        ("a = " + "9" * 5000, "f is not TOML: Exceeds the limit"),
        ("a = " + "[" * 5000, "f is not TOML: "),
    ],
)
def test_toml_beyond_the_limits_is_refused(text, message) -> None:
    with pytest.raises(SettingsError) as refused:
        read_toml(text, "f")
    assert message in refused.value.message


def test_documents_within_the_limits_are_read() -> None:
    assert read_yaml_mapping("a: &a [1]\nb: *a\n", "f") == {"a": [1], "b": [1]}
    assert read_yaml_mapping("", "f") == {}
    assert read_toml("[a]\nb = 1.5\n", "f") == {"a": {"b": 1.5}}
