"""Options from settings: vLLM's flags for the rotary embedding, merged into `--rope`, and commands without a port."""

import json

import pytest

from headrace.core.errors import SettingsError
from headrace.tools.cli.setting_options import engine_settings, merge_rope


@pytest.mark.parametrize(
    ("options", "rope"),
    [
        ({"rope": '{"factor": 2}', "rope_theta": "1e6"}, {"factor": 2, "rope_theta": 1e6}),
        (
            {"rope": '{"factor": 2}', "rope_scaling": '{"type": "yarn", "factor": 4}'},
            {"rope_type": "yarn", "factor": 2},
        ),
        ({"hf_overrides": '{"rope_parameters": {"factor": 8}}'}, {"factor": 8}),
    ],
)
def test_flags_are_merged_and_those_of_rope_win(options, rope):
    merged = merge_rope({"dtype": "bf16", "rope_scaling": None, **options})

    assert json.loads(merged.pop("rope")) == rope
    assert merged == {"dtype": "bf16"}


def test_without_flags_there_is_no_rope():
    assert merge_rope({"rope": None, "rope_theta": None, "port": "1"}) == {"port": "1"}


def test_a_malformed_flag_is_named():
    with pytest.raises(SettingsError, match="--rope-theta is 'x'; expected a number"):
        merge_rope({"rope_theta": "x"})


def test_a_command_without_a_port_needs_no_key_where_the_environment_names_an_open_address(monkeypatch):
    monkeypatch.setenv("HEADRACE_HOST", "0.0.0.0")

    assert engine_settings("smollm2", {"dtype": "bf16"}).dtype == "bf16"
