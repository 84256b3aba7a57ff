"""Names of other servers for the rotary embedding, alone and together."""

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.settings.loading import load_settings

from .setting_examples import MODEL

YARN = '{"rope_type": "yarn", "factor": 4.0}'


@pytest.mark.parametrize(
    ("env", "properties", "rope"),
    [
        ({"ROPE_SCALING": "dynamic", "ROPE_FACTOR": "2"}, {}, {"rope_type": "dynamic", "factor": 2.0}),
        ({"ROPE_FACTOR": "2"}, {}, {"rope_type": "linear", "factor": 2.0}),
        ({"OPTION_ROPE_SCALING": YARN, "OPTION_ROPE_THETA": "5e5"}, {}, {"rope_theta": 5e5}),
        ({"SM_VLLM_ROPE_SCALING": '{"type": "linear", "factor": 3}'}, {}, {"rope_type": "linear", "factor": 3}),
        ({"SM_VLLM_HF_OVERRIDES": '{"rope_scaling": null}'}, {}, {"rope_type": "default"}),
        ({"SM_VLLM_HF_OVERRIDES": '{"text_config": {"rope_theta": 7}}'}, {}, {"rope_theta": 7}),
        (
            {},
            {"option.rope_scaling": '{"type":"dynamic","factor":2.0}', "option.rope_theta": "1e6"},
            {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6},
        ),
        ({"HEADRACE_ROPE": YARN, "ROPE_FACTOR": "2"}, {}, {"rope_type": "yarn", "factor": 4.0}),
    ],
)
def test_the_parts_of_several_names_are_merged(env, properties, rope):
    settings, _ = load_settings(MODEL, env, properties)
    assert rope.items() <= settings.rope.items()


def test_the_more_specific_name_wins_and_the_other_gets_a_notice():
    settings, notices = load_settings(MODEL, {"ROPE_FACTOR": "2"}, {"option.rope_scaling": YARN})
    assert settings.rope == {"rope_type": "yarn", "factor": 4.0}
    assert notices[-1].message == "ROPE_FACTOR has no effect: option.rope_scaling sets rope already."


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"OPTION_ROPE_SCALING": '{"type": '}, "expected a JSON object such as"),
        ({"OPTION_ROPE_SCALING": "[1]"}, "expected a JSON object such as"),
        ({"OPTION_ROPE_THETA": "big"}, "OPTION_ROPE_THETA is 'big'; expected a number."),
        ({"ROPE_FACTOR": "two"}, "expected a number"),
        ({"SM_VLLM_HF_OVERRIDES": "5"}, "expected a JSON object such as"),
        ({"SM_VLLM_HF_OVERRIDES": "{}"}, "expected a JSON object such as"),
        ({"SM_VLLM_HF_OVERRIDES": '{"rope_scaling": 5}'}, "expected a JSON object such as"),
        ({"SM_VLLM_HF_OVERRIDES": '{"num_hidden_layers": 2}'}, "remove num_hidden_layers"),
        ({"HEADRACE_ROPE": "yarn"}, "HEADRACE_ROPE is 'yarn'; expected a JSON object such as"),
        ({"HEADRACE_ROPE": "[" * 100_000}, "expected a JSON object such as"),
    ],
)
def test_a_value_that_cannot_be_read_stops_the_start(env, sentence):
    with pytest.raises(SettingsError) as caught:
        load_settings(MODEL, env)
    assert sentence in caught.value.message
