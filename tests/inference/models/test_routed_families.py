"""The routers of families after DeepSeek-V3: their configs with defaults, groups, lists of layers, and wrong values."""

import pytest

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.family import GgufHeader
from headrace.inference.models.families.registry import from_config, from_gguf
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
        (
            "laguna",
            {"moe_router_logit_softcapping": 30.0, "moe_routed_scaling_factor": 2.5},
            {"num_experts": 256, "top_k": 8, "expert_size": 512, "shared_size": 512, "layers": (False, *[True] * 3)}
            | {"logit_softcap": 30.0, "factor_scale": 2.5, "sum_floor": 0.0},
        ),
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


def test_laguna_has_heads_gates_and_ropes_by_layer():
    kinds = ["full_attention", "sliding_attention"] * 2
    spec = spec_of("laguna", layer_types=kinds, num_attention_heads_per_layer=[4, 6] * 2, gating="per-element")
    assert [spec.attention(layer).num_heads for layer in range(4)] == [4, 6, 4, 6]
    assert [spec.num_gates(layer) for layer in range(2)] == [4 * 16, 6 * 16]
    assert (spec.num_heads, spec.windows, spec.rope_of_layer) == (6, (0, 512) * 2, (0, 1) * 2)
    assert [(rope.theta, rope.rotary_dim) for rope in spec.ropes] == [(500_000.0, 8), (10_000.0, 0)]


@pytest.mark.parametrize(
    ("rows", "gate", "slides"), [(4, "head", None), (64, "element", [False, True, True, True]), (5, "", None)]
)
def test_a_gguf_file_of_laguna_names_neither_its_gates_nor_its_windows(rows, gate, slides):
    values = {
        "block_count": 4,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "context_length": 512,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": slides,
        "expert_count": 8,
        "expert_used_count": 2,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.yarn_attn_factor": 1.5,
        "rope.freq_base": 5e5,
    }
    shapes = {"token_embd.weight": (300, 64), "blk.0.attn_gate.weight": (rows, 64)}
    header = GgufHeader(fields=Fields(values, "m.gguf"), tensor_shapes=shapes, rope_tensors={})
    if not gate:
        with pytest.raises(BrokenModel, match=r"attn_gate\.weight has 5 rows; expected 4, one a head, or 64"):
            from_gguf("laguna", header)
        return
    spec = from_gguf("laguna", header)[1]
    assert (spec.attention_gate, spec.windows) == (gate, (0, 64, 64, 64))
    assert [(rope.theta, rope.attention_factor) for rope in spec.ropes] == [(5e5, 1.5), (5e5, 1.0)]


@pytest.mark.parametrize(
    ("model_type", "values", "error", "named"),
    [
        ("glm4_moe", {"mlp_layer_types": ["dense"]}, BrokenModel, "mlp_layer_types"),
        ("hy_v3", {"mlp_layer_types": ["dense", "moe", "sparse", "sparse"]}, BrokenModel, "mlp_layer_types"),
        ("glm4_moe", {"n_group": 3}, BrokenModel, "128 experts are in 3 groups"),
        ("glm4_moe", {"n_group": 64, "topk_group": 2}, BrokenModel, "groups of equal size that hold 8 experts"),
        ("glm4_moe", {"topk_group": 2}, BrokenModel, "2 of 1 groups"),
        ("glm4_moe", {"n_group": 128, "topk_group": 128}, BrokenModel, "at most 64 groups"),
        ("laguna", {"gating": False}, UnsupportedModel, "name the gates False; expected per-head"),
        (
            "laguna",
            {"gating_types": ["per_head", "per_element"]},
            UnsupportedModel,
            "the gates per-element, per-head; expected",
        ),
        ("laguna", {"moe_apply_router_weight_on_input": True}, UnsupportedModel, "factors of experts on their input"),
        ("laguna", {"num_attention_heads_per_layer": [4, 6]}, BrokenModel, "num_attention_heads_per_layer is .4, 6."),
        ("laguna", {"num_attention_heads_per_layer": [4, 6, 3, 4]}, BrokenModel, "3 query heads for 2 KV heads"),
        ("laguna", {"num_attention_heads_per_layer": [5] * 4}, BrokenModel, "5 query heads; expected a multiple of 2"),
        ("laguna", {"rope_parameters": {"rope_theta": 1e4}}, BrokenModel, "has no full_attention"),
        ("laguna", {"rope_scaling": {"rope_type": "yarn"}}, UnsupportedModel, "rope_scaling"),
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
