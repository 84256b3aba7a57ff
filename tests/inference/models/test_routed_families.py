"""The routers of families after DeepSeek-V3: their configs with defaults, groups, lists of layers, and wrong values."""

import pytest

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}


def spec_of(model_type, **values):
    return from_config(Fields(SIZES | {"model_type": model_type} | values, "config.json"))[1]


@pytest.mark.parametrize(
    ("model_type", "values", "expected"),
    [
        (
            "glm4_moe",
            {},
            {"num_experts": 128, "top_k": 8, "expert_size": 1408, "shared_size": 1408, "renormalize": True},
        ),
        (
            "dots1",
            {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
            {"renormalize": False},
        ),
        ("exaone_moe", {}, {"num_experts": 64, "factor_scale": 2.5, "layers": (False, True, True, True)}),
        ("minimax_m2", {}, {"num_experts": 256, "expert_size": 96, "shared_size": 0, "layers": ()}),
        ("hy_v3", {}, {"num_experts": 192, "factor_scale": 2.826, "shared_size": 1536}),
        (
            "ernie4_5_moe",
            {"moe_layer_interval": 2, "moe_layer_end_index": 2},
            {"scoring": "softmax", "choice_bias": True, "layers": (False, True, False, False)},
        ),
        (
            "hunyuan_v1_moe",
            {"num_experts": 8, "moe_topk": [2] * 4, "moe_intermediate_size": [32] * 4, "num_shared_expert": [1] * 4},
            {"top_k": 2, "expert_size": 32, "shared_size": 96, "choice_bias": False, "scoring": "softmax"},
        ),
        ("glm4_moe", {"mlp_layer_types": ["dense", "sparse"] * 2}, {"layers": (False, True, False, True)}),
    ],
)
def test_the_router_of_a_family_is_read(model_type, values, expected):
    moe = spec_of(model_type, **values).moe
    assert {name: getattr(moe, name) for name in expected} == expected


def test_the_alpha_of_hunyuan_raises_theta_for_every_context():
    rope = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10_000.0}
    spec = spec_of("hunyuan_v1_dense", rope_scaling=rope, head_dim=128)
    assert spec.ropes[0].theta == pytest.approx(11_158_839.9251)
    assert (spec.ropes[0].kind, spec.max_positions, spec.qk_norm) == ("default", 512, "rotated")


@pytest.mark.parametrize(
    ("model_type", "values", "error", "named"),
    [
        ("glm4_moe", {"mlp_layer_types": ["dense"]}, BrokenModel, "mlp_layer_types"),
        ("hy_v3", {"mlp_layer_types": ["dense", "moe", "sparse", "sparse"]}, BrokenModel, "mlp_layer_types"),
        ("glm4_moe", {"n_group": 3}, BrokenModel, "128 experts are in 3 groups"),
        ("glm4_moe", {"n_group": 64, "topk_group": 2}, BrokenModel, "groups of equal size that hold 8 experts"),
        ("glm4_moe", {"topk_group": 2}, BrokenModel, "2 of 1 groups"),
        ("glm4_moe", {"n_group": 128, "topk_group": 128}, BrokenModel, "at most 64 groups"),
        (
            "hunyuan_v1_moe",
            {"num_experts": 8, "moe_topk": [1, 2, 1, 1]},
            UnsupportedModel,
            "moe_topk is .1, 2, 1, 1.; .* one value for all layers",
        ),
    ],
)
def test_a_router_that_cannot_be_is_refused_by_name(model_type, values, error, named):
    with pytest.raises(error, match=named):
        spec_of(model_type, **values)
