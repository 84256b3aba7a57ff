from dataclasses import replace

import pytest

from headrace.core.errors import SettingsError
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.rope import describe_ropes
from headrace.inference.models.rope_override import override_rope
from headrace.inference.models.spec import RopeSpec
from tests.inference.models.model_files import TINY_LLAMA

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


LAYERED = replace(
    SPEC,
    ropes=(RopeSpec(kind="linear", factor=8.0), RopeSpec(theta=100.0)),
    rope_of_layer=(1, 0),
    windows=(16, 0),
    max_positions=1024,
)


def test_each_type_of_layer_has_a_setting_of_its_own():
    spec = override_rope(LAYERED, {"full_attention": {"factor": 16.0}, "sliding_attention": {"rope_theta": 50.0}})

    full, sliding = spec.ropes
    assert (full.kind, full.factor, full.theta, sliding.theta) == ("linear", 16.0, 10000.0, 50.0)
    assert spec.max_positions == 2048
    assert override_rope(LAYERED, {"sliding_attention": {"rope_theta": 50.0}}).max_positions == 1024


@pytest.mark.parametrize(
    ("spec", "values", "named"),
    [
        (LAYERED, {"factor": 16.0}, "the keys factor, but .* 2 rotary embeddings; expected an object for a type of"),
        (LAYERED, {"full_attention": 4}, "full_attention is 4; expected an object"),
        (LAYERED, {"full_attention": {"faktor": 4}}, "The rope setting, full_attention has the keys faktor"),
        (replace(LAYERED, windows=()), {"factor": 2.0}, "cannot change the 2 rotary embeddings"),
        (replace(SPEC, rope_of_layer=(-1, -1)), {"factor": 2.0}, "this network .family llama. has none. Remove it"),
        (SPEC, {"full_attention": {"factor": 2.0}}, "one rotary embedding for all layers"),
        (
            SPEC,
            {"partial_rotary_factor": 0.5},
            "8 of 8 in the checkpoint, 4 of 8 in the setting.*Remove partial_rotary",
        ),
        (SPEC, {"rope_type": "proportional"}, "which the weights were trained for. Remove rope_type"),
    ],
)
def test_a_setting_that_does_not_fit_the_network_is_refused(spec, values, named):
    with pytest.raises(SettingsError, match=named):
        override_rope(spec, values)


def test_a_context_that_the_family_cuts_short_stays_short():
    cut = replace(override_rope(SPEC, YARN), max_positions=128)

    assert override_rope(cut, {"factor": 8.0}).max_positions == 128


def test_an_attention_factor_of_the_checkpoint_stays():
    first = override_rope(SPEC, YARN | {"mscale": 1.0, "mscale_all_dim": 1.0})

    assert override_rope(first, {"factor": 8.0}).ropes[0].attention_factor == 1.0


def test_descriptions_name_what_is_in_use():
    assert describe_ropes(SPEC, 128) == "default, theta 500"
    assert describe_ropes(replace(SPEC, rope_of_layer=(-1, -1)), 128) == "none"
    assert describe_ropes(LAYERED, 128) == (
        "full_attention: linear, theta 10000, factor 8; sliding_attention: default, theta 100"
    )
    yarn = override_rope(SPEC, YARN)
    assert describe_ropes(yarn, 512) == "yarn, theta 500, factor 4, trained with 128 tokens"
    assert describe_ropes(replace(yarn, rope_of_layer=(0, -1)), 9).endswith("; none on 1 of 2 layers")
