"""Values of state space models, Gemma 4 and latent attention that are refused by name, in configs and in GGUF files."""

import math
from dataclasses import replace
from functools import cache

import pytest

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_reader import read_gguf_spec
from tests.inference.models.test_families import spec_of
from tests.parity.checkpoints import config_of, write_checkpoint
from tests.parity.test_gguf_twins import TWINS, write_twin
from tests.parity.test_latent_twins import LATENT_TWINS

UNSUPPORTED = [
    ("mamba 2", {"use_bias": True}, "biases of a state space model's matrices"),
    ("mamba 2", {"time_step_limit": [0.001, math.inf]}, "time_step_limit is .0.001, inf"),
    ("mamba 2", {"time_step_limit": [0, 0.1]}, "supports .0, Infinity. only"),
    ("mamba 2", {"time_step_limit": 0.5}, "time_step_limit is 0.5"),
    ("bamba", {"mamba_proj_bias": True}, "mamba_proj_bias = True"),
    ("granite 4 h", {"layer_types": ["mamba", "linear", "mamba"]}, "layers of type linear"),
    ("falcon h1", {"mamba_norm_before_gate": True}, "mamba_norm_before_gate is true; .* --backend vllm"),
    ("falcon h1", {"projectors_bias": True}, "projectors_bias = True"),
    ("nemotron h", {"use_bias": True}, "use_bias = True"),
    ("nemotron h", {"mlp_bias": True}, "mlp_bias = True"),
    ("nemotron h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act = 'gelu'"),
    ("nemotron h", {"mlp_hidden_act": "swish"}, "mlp_hidden_act"),
    ("nemotron h", {"layers_block_type": None, "hybrid_override_pattern": "M*X"}, "layers of type X"),
    ("nemotron h", {"layers_block_type": ["mamba", "conv"]}, "layers of type conv"),
    ("gemma 4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
    ("gemma 4", {"attention_bias": True}, "attention_bias = True"),
    ("gemma 4", {"vocab_size_per_layer_input": 300}, "vocab_size_per_layer_input differs"),
    ("gemma 4", {"hidden_activation": "silu"}, "hidden_activation"),
    (
        "gemma 4, experts",
        {"use_double_wide_mlp": True, "num_kv_shared_layers": 1},
        "use_double_wide_mlp is not supported beside experts",
    ),
    ("deepseek v2", {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'"),
    ("deepseek v2", {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
    ("deepseek v3", {"topk_method": "greedy"}, "topk_method = 'greedy'"),
    ("deepseek v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
    ("deepseek v3", {"rope_interleave": False}, "rope_interleave = False"),
    ("glm 4.7 flash", {"rope_interleave": False}, "rope_interleave = False"),
    ("minicpm 3", {"attention_bias": True}, "attention_bias = True"),
    ("lfm 2", {"layer_types": ["conv", "sliding_attention", "conv"]}, "layers of type sliding_attention"),
]
BROKEN = [
    ("mamba 2", {"conv_kernel": 1}, "1 taps; expected .* 2 to 64 taps"),
    ("mamba 2", {"state_size": 1 << 20}, "at most 1048576 channels"),
    ("mamba 2", {"n_groups": 3}, "8 heads in 3 groups; expected a multiple"),
    ("granite 4 h", {"layer_types": ["mamba", "attention"]}, "layer_types|2 layers have a type"),
    ("falcon h1", {"ssm_multipliers": [1.0] * 4}, "4 ssm_multipliers and 2 mlp_multipliers"),
    ("falcon h1", {"mlp_multipliers": [1.0]}, "5 ssm_multipliers and 1 mlp_multipliers"),
    ("nemotron h", {"layers_block_type": None}, "has no layers_block_type"),
    ("nemotron 3", {"moe_latent_size": 0}, "moe_latent_size is 0"),
    ("gemma 4", {"num_kv_shared_layers": 5}, "5 layers share keys, but no layer of their kind has any"),
    ("gemma 4", {"num_kv_shared_layers": 7}, "7 layers share keys"),
    (
        "gemma 4",
        {"per_layer_config": None, "num_global_key_value_heads": 3},
        "4 query heads for 3 KV heads of 512 numbers",
    ),
    ("gemma 4", {"per_layer_config": {"2": {"head_dim": 33}}}, "KV heads of 33 numbers"),
    ("deepseek v3", {"kv_lora_rank": 1 << 23}, "with a latent of 8388608 numbers; expected at most"),
    ("deepseek v3", {"v_head_dim": 1 << 23}, "with a value of 8388608"),
    ("deepseek v3", {"n_group": 5}, "12 experts are in 5 groups"),
    ("lfm 2", {"layer_types": ["conv"]}, "layer_types has 1 entries for 3 layers"),
    ("lfm 2", {"conv_L_cache": 1}, "the convolutions have 1 taps; expected 2 to"),
]
UNSUPPORTED_FILES = [
    ("granite 4 h", {"rope.scaling.finetuned": True, "rope.dimension_count": 8}, "Bamba in a GGUF file"),
    ("glm 4.7 flash", {"expert_gating_func": 9}, "another score of experts"),
    ("lfm 2", {"attention.sliding_window": 17}, "windows in this family"),
    ("lfm 2", {"attention.causal": False}, "convolutions that see later tokens"),
]
BROKEN_FILES = [
    ("mamba 2", {"ssm.conv_kernel": 1}, "1 taps; expected"),
    ("granite 4 h", {"attention.head_count_kv": [0, 2]}, "head_count_kv"),
    ("granite 4 h", {"attention.head_count_kv": [1, 2, 0]}, "head_count_kv"),
    ("falcon h1", {"ssm.group_count": 3}, "8 heads in 3 groups"),
    (
        "nemotron h",
        {"feed_forward_length": [0, 96, 0, 64, 0]},
        "feed_forward_length is .*; expected the same number or 0",
    ),
    ("nemotron h", {"feed_forward_length": [0, 96, 0]}, "feed_forward_length is .*; expected the same number or 0"),
    ("gemma 4", {"attention.sliding_window_pattern": 6}, "sliding_window_pattern must have a value for each layer"),
    (
        "gemma 4",
        {"attention.sliding_window_pattern": [True] * 5},
        "sliding_window_pattern has 5 values; expected one for each of 6",
    ),
    (
        "gemma 4",
        {"attention.head_count_kv": [2, 2, 1]},
        "attention.head_count_kv is .2, 2, 1.; expected .* each of the 6 layers",
    ),
    ("gemma 4", {"feed_forward_length": [96] * 5}, "feed_forward_length is .*; expected .* each of the 6 layers"),
    ("gemma 4", {"attention.shared_kv_layers": 6}, "6 layers share keys"),
    ("deepseek v3", {"rope.dimension_count": 48}, "heads have 48 numbers, of which 48 turn"),
]


@pytest.mark.parametrize(
    ("network", "change", "error", "named"),
    [(*row[:2], UnsupportedModel, row[2]) for row in UNSUPPORTED] + [(*row[:2], BrokenModel, row[2]) for row in BROKEN],
)
def test_a_config_with_a_value_that_the_kernels_do_not_compute_is_refused_by_name(network, change, error, named):
    values = config_of(network)
    spec_of(values)
    with pytest.raises(error, match=named):
        spec_of(values | change)


@pytest.mark.parametrize(
    ("network", "change", "error", "named"),
    [(*row[:2], UnsupportedModel, row[2]) for row in UNSUPPORTED_FILES]
    + [(*row[:2], BrokenModel, row[2]) for row in BROKEN_FILES],
)
def test_a_file_with_such_metadata_is_refused_by_name(network, change, error, named, twin):
    architecture, file = twin(network)
    read_gguf_spec(file)
    changes = {f"{architecture}.{key}": value for key, value in change.items()}
    with pytest.raises(error, match=named):
        read_gguf_spec(replace(file, metadata={**file.metadata, **changes}))


def test_older_configs_of_lfm2_list_the_layers_with_attention():
    values = config_of("lfm 2")
    assert spec_of(values | {"layer_types": None, "full_attn_idxs": [1]}) == spec_of(values)
    assert spec_of(values | {"layer_types": None}).mixers == ()  # all


def test_sparse_attention_ends_the_context_where_it_would_begin(twin):
    specs = [spec_of(config_of(name) | {"max_position_embeddings": 4096}) for name in ("deepseek v3.2", "glm 5")]
    _, file = twin("glm 5")
    specs.append(read_gguf_spec(replace(file, metadata=file.metadata | {"glm-dsa.context_length": 4096}))[1])
    assert [(spec.max_positions, spec.context_limit) for spec in specs] == [
        (2048, "its attention is sparse beyond")
    ] * 3


def test_a_file_of_qwen_3_5_may_name_the_interval_of_layers_with_attention_only(twin):
    architecture, file = twin("qwen 3.5 moe")
    key = f"{architecture}.attention.recurrent_layers"
    others = {name: value for name, value in file.metadata.items() if name != key}
    assert read_gguf_spec(replace(file, metadata=others))[1].mixers == ("delta",) * 3 + ("attention",)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    @cache
    def opened(network):
        folder = tmp_path_factory.mktemp("twin")
        write_checkpoint(network, folder / "model")
        architecture, metadata = (TWINS | LATENT_TWINS)[network]
        return architecture, open_gguf(write_twin(folder, architecture, metadata)[0])

    return opened
