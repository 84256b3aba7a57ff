from dataclasses import replace

import pytest

from headrace.core.errors import SettingsError
from headrace.models.families.registry import from_config
from headrace.models.fields import Fields
from headrace.models.rope_override import override_rope
from headrace.models.spec import RopeSpec
from tests.models.model_files import TINY_LLAMA

_, SPEC = from_config(Fields(TINY_LLAMA | {"rope_theta": 500.0}, "config.json"))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
CASES = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "linear": {"type": "linear", "factor": 2.0},
    "yarn": YARN,
    "another theta": {"rope_theta": 1e6},
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_a_setting_gives_the_network_of_a_config_with_those_values(values):
    config = TINY_LLAMA | {"rope_theta": 500.0} | {"rope_parameters": {"rope_theta": 500.0, **values}}

    assert override_rope(SPEC, values) == from_config(Fields(config, "config.json"))[1]


def test_a_setting_of_the_same_type_keeps_the_other_values():
    first = override_rope(SPEC, YARN | {"beta_fast": 20.0})

    second = override_rope(first, {"factor": 8.0})
    assert (second.ropes[0].factor, second.ropes[0].beta_fast) == (8.0, 20.0)
    assert (first.max_positions, second.max_positions) == (512, 1024)


def test_another_type_replaces_the_scaling_of_the_checkpoint():
    stretched = override_rope(SPEC, {"rope_type": "linear", "factor": 2.0})

    assert override_rope(stretched, {"rope_type": "default"}) == SPEC


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_typ": "yarn"}, "keys rope_typ"),
        ({"rope_type": "ntk"}, "'ntk'"),
        ({"rope_type": "yarn", "factor": 0.5}, "factor is 0.5"),
        ({"rope_type": "dynamic"}, "no factor"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
    ],
)
def test_a_wrong_setting_is_named(values, named):
    with pytest.raises(SettingsError, match=named):
        override_rope(SPEC, values)


def test_a_network_with_several_ropes_is_refused():
    with pytest.raises(SettingsError, match="2 rotary embeddings"):
        override_rope(replace(SPEC, ropes=(RopeSpec(), RopeSpec(theta=100.0))), {"rope_theta": 1e6})
