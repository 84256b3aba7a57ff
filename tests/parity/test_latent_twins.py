"""GGUF files of networks with latent attention give the same network, in the layouts of new and of old converters."""

import numpy as np
import pytest

from tests.parity.checkpoints import write_checkpoint
from tests.parity.test_gguf_twins import ROUTED, SHARED, check_twin

HEADS = {
    "attention.q_lora_rank": 96,
    "attention.kv_lora_rank": 64,
    "attention.head_count_kv": 1,
    "attention.key_length": 80,
    "attention.value_length": 64,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 48,
    "rope.dimension_count": 16,
    **SHARED,
}
OLD_HEADS = {
    "attention.kv_lora_rank": 64,
    "attention.head_count_kv": 4,
    "attention.key_length": 48,
    "attention.value_length": 48,
    "rope.dimension_count": 16,
    "expert_weights_norm": False,
}
GROUPS = {"expert_group_count": 3, "expert_group_used_count": 2}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
LITE = {"attention.q_lora_rank": 0, "expert_weights_norm": False}
INDEXER = {f"attention.indexer.{key}": size for key, size in (("top_k", 2048), ("head_count", 2), ("key_length", 32))}
LATENT_TWINS = {
    "deepseek v2 lite": ("deepseek2", HEADS | ROUTED | LITE),
    "deepseek v3": (
        "deepseek2",
        HEADS | ROUTED | GROUPS | YARN | {"rope.scaling.yarn_log_multiplier": 0.0707, "expert_gating_func": 2},
    ),
    "deepseek v3.2": ("deepseek32", HEADS | ROUTED | GROUPS | INDEXER | {"expert_gating_func": 2}),
    "glm 4.7 flash": ("deepseek2", HEADS | ROUTED),
    "glm 5": ("glm-dsa", HEADS | ROUTED | GROUPS | INDEXER),
    "minicpm 3": (
        "minicpm3",
        {
            "attention.q_lora_rank": 96,
            "attention.kv_lora_rank": 64,
            "attention.head_count_kv": 4,
            "attention.key_length": 48,
            "attention.value_length": 16,
            "attention.layer_norm_rms_epsilon": 0.02,
            "rope.dimension_count": 16,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": (1 + np.log(2) / np.log(64)) ** 0.5,
        },
    ),
    "mistral 4": (
        "mistral4",
        HEADS | ROUTED | GROUPS | YARN | {"rope.scaling.yarn_log_multiplier": 0.1, "leading_dense_block_count": 0},
    ),
}


@pytest.mark.parametrize("name", LATENT_TWINS)
def test_a_file_with_latent_attention_has_the_network_and_the_weights_of_its_folder(name, tmp_path):
    write_checkpoint(name, tmp_path / "model")
    check_twin(tmp_path, *LATENT_TWINS[name], is_renamed=True)


def test_so_has_an_old_file_with_the_matrices_of_keys_and_values_in_one_tensor(tmp_path):
    write_checkpoint("deepseek v2 lite", tmp_path / "model")
    check_twin(tmp_path, "deepseek2", ROUTED | OLD_HEADS, is_renamed=True, splits_latents=False)
