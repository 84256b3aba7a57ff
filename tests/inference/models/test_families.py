import math

import pytest
from transformers import (
    Cohere2Config,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OPTConfig,
    PhiConfig,
    PhimoeConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    StableLmConfig,
    Starcoder2Config,
    VaultGemmaConfig,
)

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import RopeSpec
from tests.inference.models.model_files import TINY_LLAMA

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def spec_of(config):
    """Return the fields of a transformers config as it is saved, or of plain values."""
    values = config if isinstance(config, dict) else config.to_dict()
    return from_config(Fields(values, "config.json"))[1]


def test_llama_sizes_are_read():
    spec = spec_of(LlamaConfig(**SIZES, max_position_embeddings=512, rms_norm_eps=1e-5))

    assert (spec.family, spec.num_layers, spec.hidden_size, spec.intermediate_size) == ("llama", 6, 64, 96)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 16)
    assert (spec.vocab_size, spec.max_positions, spec.norm_eps) == (300, 512, 1e-5)
    assert spec.ropes == (RopeSpec(theta=10000.0),)
    assert (spec.tie_embeddings, spec.qkv_bias, spec.o_bias, spec.windows) == (False, False, False, ())


def test_llama_biases_are_on_all_four_matrices():
    spec = spec_of(LlamaConfig(**SIZES, attention_bias=True))

    assert (spec.qkv_bias, spec.o_bias) == (True, True)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3}},
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
        {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "type": "llama3"}},
    ],
    ids=["transformers 5", "transformers 4", "both names"],
)
def test_llama_3_rope_scaling_is_read_in_every_form(rope):
    spec = spec_of({**TINY_LLAMA, "max_position_embeddings": 131072, **rope})

    assert spec.ropes == (
        RopeSpec(
            theta=500000.0,
            kind="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_positions=8192,
        ),
    )
    assert spec.max_positions == 131072


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_and_dynamic_scaling_stretch_the_context(kind, key):
    spec = spec_of({**TINY_LLAMA, "rope_scaling": {key: kind, "factor": 4.0}})

    (rope,) = spec.ropes
    assert (rope.kind, rope.factor, rope.original_max_positions) == (kind, 4.0, 128)
    assert spec.max_positions == 512


def test_mistral_has_a_window_on_every_layer_unless_it_is_null():
    assert spec_of(MistralConfig(**SIZES, sliding_window=32)).windows == (32,) * 6
    assert spec_of({**MistralConfig(**SIZES).to_dict(), "sliding_window": None}).windows == ()


def test_mistral_keeps_a_head_size_of_its_own():
    assert spec_of(MistralConfig(**SIZES, head_dim=32)).head_dim == 32


def test_qwen_2_has_biases_and_by_default_no_window():
    spec = spec_of(Qwen2Config(**SIZES, sliding_window=32))

    assert (spec.qkv_bias, spec.o_bias, spec.windows) == (True, False, ())


@pytest.mark.parametrize("with_layer_types", [True, False])
def test_qwen_2_slides_from_max_window_layers_on(with_layer_types):
    values = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=32, max_window_layers=4).to_dict()
    if not with_layer_types:
        del values["layer_types"]

    assert spec_of(values).windows == (0, 0, 0, 0, 32, 32)


def test_qwen_3_has_norms_on_q_and_k_and_a_head_size_of_128():
    values = Qwen3Config(**SIZES, tie_word_embeddings=True).to_dict()
    spec = spec_of(values)

    assert (spec.qk_norm, spec.qkv_bias, spec.head_dim, spec.tie_embeddings) == ("head", False, 128, True)
    assert spec_of({**values, "head_dim": None}).head_dim == 128


def gemma(**values):
    return Gemma3TextConfig(**SIZES, head_dim=32, query_pre_attn_scalar=64, sliding_window=16, **values).to_dict()


def test_gemma_3_is_read_in_the_form_of_transformers_5():
    spec = spec_of(gemma())

    assert spec.windows == (16, 16, 16, 16, 16, 0)
    assert spec.ropes == (RopeSpec(theta=1e6), RopeSpec(theta=1e4))
    assert spec.rope_of_layer == (1, 1, 1, 1, 1, 0)
    assert spec.embedding_scale == math.sqrt(64)
    assert spec.scale(0) == 64**-0.5
    assert (spec.activation, spec.qk_norm, spec.norms) == ("gelu_tanh", "head", "both")
    assert spec.tie_embeddings


def test_gemma_3_is_read_in_the_form_of_transformers_4():
    values = gemma()
    for key in ("rope_parameters", "layer_types", "tie_word_embeddings", "default_theta"):
        values.pop(key, None)
    old = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 5000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
        "max_position_embeddings": 4096,
    }

    spec = spec_of(values | old)
    assert spec.windows == (16, 16, 0, 16, 16, 0)
    rope, local = spec.ropes
    assert (rope.kind, rope.factor, rope.theta) == ("linear", 8.0, 1e6)
    assert local == RopeSpec(theta=5000.0)
    assert spec.max_positions == 4096
    assert spec.tie_embeddings


def test_the_experts_of_mixtral_are_read():
    spec = spec_of(MixtralConfig(**SIZES, num_local_experts=6, num_experts_per_tok=3))

    assert spec.moe == MoeSpec(num_experts=6, top_k=3, expert_size=96, renormalize=True)
    assert spec.windows == ()
    assert spec_of(MixtralConfig(**SIZES, sliding_window=20)).windows == (20,) * 6


def test_the_experts_of_qwen_2_are_read_with_the_shared_one():
    spec = spec_of(Qwen2MoeConfig(**SIZES, mlp_only_layers=[3], decoder_sparse_step=2, num_experts=9))

    assert spec.moe == MoeSpec(
        num_experts=9,
        top_k=4,
        expert_size=1408,
        layers=(False, True, False, False, False, True),
        shared_size=5632,
        has_shared_router=True,
    )
    assert (spec.qkv_bias, spec.o_bias) == (True, False)


def test_the_experts_of_qwen_3_are_read_in_the_forms_of_transformers_4_and_5():
    values = Qwen3MoeConfig(**SIZES, head_dim=32, norm_topk_prob=True).to_dict()
    older = {key: value for key, value in values.items() if "local" not in key} | {"num_experts": 128}

    spec = spec_of(values)
    assert spec == spec_of(older)
    assert spec.moe == MoeSpec(num_experts=128, top_k=8, expert_size=768, layers=(True,) * 6, renormalize=True)
    assert (spec.qk_norm, spec.head_dim) == ("head", 32)
    assert spec.num_parameters > 6 * 128 * 3 * 64 * 768


def test_gpt_oss_is_read_in_the_forms_of_transformers_4_and_5():
    values = GptOssConfig(**SIZES, num_local_experts=32).to_dict()
    scaling = {key: value for key, value in values["rope_parameters"].items() if key != "rope_theta"}
    older = {key: value for key, value in values.items() if key not in {"rope_parameters", "swiglu_alpha"}}
    older |= {"rope_theta": 150000, "rope_scaling": scaling, "quantization_config": {"quant_method": "mxfp4"}}

    spec = spec_of(values)
    assert spec == spec_of(older)
    assert spec.moe == MoeSpec(
        num_experts=32, top_k=4, expert_size=96, renormalize=True, router_bias=True, expert_bias=True
    )
    assert (spec.activation, spec.swiglu_limit, spec.sinks) == ("clamped_swiglu", 7.0, True)
    assert (spec.qkv_bias, spec.o_bias, spec.windows) == (True, True, (128, 0) * 3)
    (rope,) = spec.ropes
    assert (rope.kind, rope.theta, rope.factor, rope.truncate) == ("yarn", 150000.0, 32.0, False)
    with pytest.raises(UnsupportedModel, match="swiglu_alpha = 2"):
        spec_of(values | {"swiglu_alpha": 2.0})


def test_phi_3_5_moe_is_refused_if_its_attention_factor_depends_on_the_length():
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "type": "longrope"}
    values = PhimoeConfig(**SIZES, attention_bias=True).to_dict()
    values["rope_parameters"] = None

    def scaled(short, long):
        scaling = factors | {"short_mscale": short, "long_mscale": long, "original_max_position_embeddings": 4096}
        return spec_of(values | {"rope_scaling": scaling})

    spec = scaled(1.25, 1.25)
    assert spec.moe == MoeSpec(num_experts=16, top_k=2, expert_size=96, tolerance=0.02)
    assert (spec.ropes[0].attention_factor, spec.norm, spec.qkv_bias) == (1.25, "layer", True)
    with pytest.raises(UnsupportedModel, match=r"short_mscale is 1.0 and long_mscale 1.25"):
        scaled(1.0, 1.25)
    with pytest.raises(UnsupportedModel, match="num_experts_per_tok = 3"):
        spec_of(values | {"num_experts_per_tok": 3})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_experts_per_tok": 9}, "expected at most 8"),
        ({"num_local_experts": 10**9}, "65536 in the whole network"),
        ({"num_hidden_layers": 10**9}, "expected at most 1024"),
    ],
)
def test_impossible_experts_are_refused(change, named):
    for config in (MixtralConfig(**SIZES), Qwen3MoeConfig(**SIZES, num_experts=8)):
        with pytest.raises(BrokenModel, match=named):
            spec_of(config.to_dict() | change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"model_type": "gemma3n"}, "needs several residual streams .* --backend transformers or vllm runs it"),
        ({"model_type": "jamba"}, "needs a recurrent state, .* --backend vllm runs it"),
        ({"model_type": "t5"}, "needs an encoder, .* --backend transformers runs it"),
        ({"model_type": "nonesuch"}, "Headrace takes transformers or vLLM if they are installed"),
        (
            {"model_type": "bloom", "n_layer": 1, "n_head": 4, "apply_residual_connection_post_layernorm": True},
            "residuals",
        ),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before = False"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"model_type": None}, "model_type"),
        ({"quantization_config": {"quant_method": "exl2", "bits": 4}}, "exl2"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, "'ntk'"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"model_type": "olmo2", "mlp_bias": True}, "mlp_bias"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "each type of layer"),
        ({"vision_config": {"hidden_size": 3}}, "image encoder"),
    ],
)
def test_an_unsupported_part_is_named(change, named):
    with pytest.raises(UnsupportedModel, match=named):
        spec_of(TINY_LLAMA | change)


@pytest.mark.parametrize(
    "config_class",
    [
        *(Gemma2Config, VaultGemmaConfig, Olmo2Config, Olmo3Config, CohereConfig, Cohere2Config, StableLmConfig),
        *(Starcoder2Config, PhiConfig, GPTNeoXConfig, GPT2Config, GPTJConfig, FalconConfig, NemotronConfig, OPTConfig),
        *(GptOssConfig, PhimoeConfig),
    ],
)
def test_a_missing_key_means_the_default_of_transformers(config_class):
    sizes = {key: size for key, size in SIZES.items() if key not in {"num_key_value_heads", "intermediate_size"}}
    config = config_class(**sizes | {"num_hidden_layers": 5, "num_attention_heads": 32, "hidden_size": 2048})
    whole = {key: value for key, value in config.to_dict().items() if key not in {"head_dim", "layer_types"}}
    required = {"model_type", *sizes, *config.attribute_map.values(), "intermediate_size", "head_dim"}
    short = {key: value for key, value in whole.items() if key in required}

    assert spec_of(short) == spec_of(whole)


def test_an_unknown_type_of_layer_is_named():
    values = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8).to_dict()

    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        spec_of(values | {"layer_types": ["chunked_attention"] * 6})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"hidden_size": "big"}, "hidden_size is 'big'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"num_key_value_heads": 3}, "a multiple of 3 key heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "has no factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor is 0.5"),
        ({"rope_scaling": [1]}, "rope_scaling is"),
        ({"head_dim": 7}, "head size is 7"),
        ({"num_hidden_layers": 10**9}, "expected at most"),
    ],
)
def test_a_wrong_value_is_named(change, named):
    with pytest.raises(BrokenModel, match=named):
        spec_of(TINY_LLAMA | change)


def test_yarn_stretches_the_context_of_a_config_that_names_the_original_one():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

    assert spec_of(TINY_LLAMA | {"rope_scaling": yarn}).max_positions == 512
    assert spec_of(TINY_LLAMA | {"rope_scaling": yarn, "max_position_embeddings": 600}).max_positions == 600


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}, "1 short factors; expected 4"),
        ({"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [0.0] * 4}, "long factors"),
        ({"type": "longrope", "short_factor": ["1"]}, "a list of numbers"),
        ({"type": "longrope", "original_max_position_embeddings": 1}, "a whole number of at least 2"),
        ({"type": "yarn", "factor": 0.5}, "at least 1"),
        ({"type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "low_freq_factor"),
    ],
)
def test_a_malformed_rope_scaling_is_refused(scaling, named):
    with pytest.raises(BrokenModel, match=named):
        spec_of(TINY_LLAMA | {"rope_scaling": scaling})


@pytest.mark.parametrize(
    ("attention", "mlp", "error", "named"),
    [
        ({"n_heads_in_group": 3}, {"ffn_mult": 1.0}, BrokenModel, r"block_configs\[0\].* n_heads_in_group is 3"),
        (
            {"replace_with_linear": True},
            {"ffn_mult": 1.0},
            UnsupportedModel,
            "a matrix in place of attention or an MLP",
        ),
        ({"no_op": True}, {"no_op": True}, UnsupportedModel, "layer 0 has neither attention nor an MLP"),
        ({"n_heads_in_group": 1, "window_length": 8}, {}, UnsupportedModel, "windows in this family"),
        ({"n_heads_in_group": 1}, {"ffn_mult": -1.0}, BrokenModel, "ffn_mult is -1.0"),
    ],
)
def test_blocks_of_nemotron_nas_that_cannot_be_computed_are_refused(attention, mlp, error, named):
    blocks = [{"attention": attention, "ffn": mlp}] * TINY_LLAMA["num_hidden_layers"]
    with pytest.raises(error, match=named):
        spec_of(TINY_LLAMA | {"model_type": "nemotron-nas", "block_configs": blocks})
    with pytest.raises(BrokenModel, match="block_configs must be a list with an object for each layer"):
        spec_of(TINY_LLAMA | {"model_type": "nemotron-nas", "block_configs": blocks * 2})


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"num_kv_heads": [2]}, BrokenModel, r"num_kv_heads is \[2\]"),
        ({"num_query_heads": [4, 3]}, BrokenModel, "3 query heads for 2 KV heads"),
        ({"ffn_multipliers": [1.0]}, BrokenModel, "ffn_multipliers"),
        ({"ffn_with_glu": False}, UnsupportedModel, "MLPs without gates"),
    ],
)
def test_a_config_of_openelm_that_cannot_be_is_refused(change, error, named):
    values = {
        "model_type": "openelm",
        "model_dim": 64,
        "num_transformer_layers": 2,
        "head_dim": 16,
        "num_query_heads": [2, 4],
        "num_kv_heads": [1, 2],
        "ffn_multipliers": [0.5, 1.9],
        "ffn_dim_divisor": 32,
        "activation_fn_name": "swish",
        "max_context_length": 128,
        "rope_freq_constant": 10000,
        "vocab_size": 300,
    }
    spec = spec_of(values)
    assert (spec.intermediate_sizes, spec.attention(1).num_kv_heads) == ((32, 128), 2)
    with pytest.raises(error, match=named):
        spec_of(values | change)


def test_decilm_names_the_kv_heads_of_each_layer():
    values = TINY_LLAMA | {"model_type": "deci", "num_hidden_layers": 3, "num_attention_heads": 4}
    spec = spec_of(values | {"num_key_value_heads_per_layer": [4, 2, 1]})
    assert [spec.attention(layer).num_kv_heads for layer in range(3)] == [4, 2, 1]
    assert (spec.intermediate_sizes, spec.mixers, spec.mlps) == ((), (), ())


def test_every_fourth_layer_of_muse_glimmer_has_no_positions_and_sees_the_whole_context():
    values = TINY_LLAMA | {"model_type": "muse_glimmer_text", "num_hidden_layers": 6, "hidden_activation": "silu"}
    spec = spec_of(values)
    assert (spec.rope_of_layer, spec.windows) == ((0, -1, 0, 0, 0, -1), (2048, 0, 2048, 2048, 2048, 0))
    assert (spec.eps_of("post_attn_norm"), spec.eps_of("final_norm")) == (1e-8, TINY_LLAMA["rms_norm_eps"])
    with pytest.raises(BrokenModel, match="layer_rope_theta has 2 entries; expected one for each of the 6 layers"):
        spec_of(values | {"layer_rope_theta": [0, 500.0]})


def test_the_text_part_of_a_network_for_images_is_read_with_the_defaults_of_its_class():
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    spec = spec_of({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 3}})

    assert (spec.family, spec.hidden_size, spec.num_layers) == ("gemma3", 2560, 34)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (8, 4, 256, 262_208)
    assert (spec.window(0), spec.window(5)) == (1024, 0)


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_phi_3_calls_longrope_by_three_names(name):
    scaling = {"type": name, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    phi = TINY_LLAMA | {"model_type": "phi3", "rope_scaling": scaling, "original_max_position_embeddings": 32}
    spec = spec_of(phi)

    assert (spec.ropes[0].kind, spec.ropes[0].original_max_positions) == ("longrope", 32)
    assert spec.ropes[0].attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(32)))
    assert (spec.default_positions, spec.max_positions) == (32, 128)


def test_ministral_3_ends_where_its_queries_would_be_scaled_by_position():
    spec = spec_of(TINY_LLAMA | {"model_type": "ministral3", "head_dim": 8, "max_position_embeddings": 262_144})

    assert spec.max_positions == 16_384
    assert (spec.ropes[0].kind, spec.ropes[0].factor, spec.ropes[0].attention_factor) == ("yarn", 16.0, 1.0)


def test_the_residual_multiplier_of_granite_is_folded():
    granite = {"model_type": "granite", "residual_multiplier": 0.5, "embedding_multiplier": 12.0, "logits_scaling": 8.0}
    spec = spec_of(TINY_LLAMA | granite)

    assert (spec.embedding_scale, spec.norm_eps, spec.logit_scale) == (24.0, 4e-5, 0.125)
    assert spec.scale(0) == 1.0
