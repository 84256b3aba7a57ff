"""
Layout tests: families that `transformers` reads only with code from the checkpoint.

The oracle is an equivalent network of `transformers`, whose config and tensors are written under the names and in the
order of the family's own files.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from headrace.models.loading import load_model
from headrace.runner.reference import ReferenceRunner
from tests.parity.checkpoints import write_checkpoint
from tests.parity.test_transformers import CONTEXT, NUM_TOKENS, TOKENS, every_row

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Layout:
    oracle: str
    """The equivalent network, in `checkpoints.NETWORKS`."""
    config: Callable[[Config], Config]
    tensors: Callable[[Tensors], Tensors] = dict


def renamed(names: dict[str, str], fuse: Callable[[list[np.ndarray]], np.ndarray] = np.concatenate):
    """
    Return a function that renames tensors by parts of their names; tensors that get the same name are fused.

    `fuse` is for q, k and v.
    """

    def rename(tensors: Tensors) -> Tensors:
        found: dict[str, list[np.ndarray]] = {}
        order = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
        ranked = sorted(tensors, key=lambda name: next((i for i, part in enumerate(order) if part in name), 9))
        for name in ranked:
            new = name
            for old, other in names.items():
                new = new.replace(old, other)
            found.setdefault(new, []).append(tensors[name])
        joined = {3: fuse, 2: np.concatenate, 1: lambda parts: parts[0]}
        return {name: joined[len(parts)](parts) for name, parts in found.items()}

    return rename


def by_kv_head(parts: list[np.ndarray]) -> np.ndarray:
    """Fuse q, k and v as InternLM 2 does: for each of the two KV heads its query heads, its key, its value."""
    return np.concatenate([part.reshape(2, -1, part.shape[1]) for part in parts], axis=1).reshape(-1, parts[0].shape[1])


def only(config: Config, **others: object) -> Config:
    """Return the sizes of a config under their usual names, and others."""
    names = ("hidden_size", "num_attention_heads", "vocab_size", "bos_token_id", "eos_token_id")
    return {name: config[name] for name in names} | others


def llama(config: Config, **others: object) -> Config:
    return {key: value for key, value in config.items() if key not in ("architectures", "dtype")} | others


def qwen(config: Config) -> Config:
    return only(
        config,
        model_type="qwen",
        num_hidden_layers=3,
        kv_channels=16,
        intermediate_size=192,
        layer_norm_epsilon=1e-6,
        rotary_emb_base=10000,
        rotary_pct=1.0,
        seq_length=128,
        max_position_embeddings=4096,
        no_bias=True,
        use_dynamic_ntk=True,
        use_logn_attn=True,
        tie_word_embeddings=False,
    )


def chatglm(config: Config) -> Config:
    return only(
        config,
        model_type="chatglm",
        num_layers=3,
        padded_vocab_size=config["vocab_size"],
        ffn_hidden_size=96,
        kv_channels=64,
        seq_length=128,
        layernorm_epsilon=config["rms_norm_eps"],
        rmsnorm=True,
        post_layer_norm=True,
        apply_residual_connection_post_layernorm=False,
        add_bias_linear=False,
        add_qkv_bias=True,
        multi_query_attention=True,
        multi_query_group_num=2,
        rope_ratio=1.0,
    )


def exaone(config: Config) -> Config:
    return only(
        config,
        model_type="exaone",
        num_layers=3,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=96,
        activation_function="silu",
        layer_norm_epsilon=1e-6,
        max_position_embeddings=128,
        rope_theta=config["rope_parameters"]["rope_theta"],
        rope_scaling=config["rope_parameters"],
        tie_word_embeddings=False,
    )


def minicpm(config: Config) -> Config:
    scales = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    others = {key: value for key, value in llama(config).items() if key not in scales}
    return others | {"model_type": "minicpm", "scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 8}


GPT_NAMES = {
    "model.layers.": "transformer.h.",
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
}
LAYOUTS = {
    "internlm 2": Layout(
        "llama",
        lambda config: llama(config, model_type="internlm2", bias=False),
        renamed(
            {
                "embed_tokens": "tok_embeddings",
                "lm_head": "output",
                "input_layernorm": "attention_norm",
                "post_attention_layernorm": "ffn_norm",
                **{f"self_attn.{part}_proj": "attention.wqkv" for part in "qkv"},
                "self_attn.o_proj": "attention.wo",
                "mlp.gate_proj": "feed_forward.w1",
                "mlp.up_proj": "feed_forward.w3",
                "mlp.down_proj": "feed_forward.w2",
            },
            by_kv_head,
        ),
    ),
    "internlm 3": Layout("llama", lambda config: llama(config, model_type="internlm3", qkv_bias=False, bias=False)),
    "minicpm": Layout("granite, as minicpm", minicpm),
    "baichuan": Layout(
        "llama, as many kv heads",
        lambda config: llama(config, model_type="baichuan", num_key_value_heads=None),
        renamed({f"self_attn.{part}_proj": "self_attn.W_pack" for part in "qkv"}),
    ),
    "qwen 1": Layout(
        "qwen 2, as many kv heads",
        qwen,
        renamed(
            {
                **GPT_NAMES,
                "input_layernorm": "ln_1",
                "post_attention_layernorm": "ln_2",
                **{f"self_attn.{part}_proj": "attn.c_attn" for part in "qkv"},
                "self_attn.o_proj": "attn.c_proj",
                "mlp.gate_proj": "mlp.w2",
                "mlp.up_proj": "mlp.w1",
                "mlp.down_proj": "mlp.c_proj",
            }
        ),
    ),
    "chatglm": Layout(
        "glm 4",
        chatglm,
        renamed(
            {
                "model.layers": "transformer.encoder.layers",
                "model.embed_tokens": "transformer.embedding.word_embeddings",
                "model.norm": "transformer.encoder.final_layernorm",
                "lm_head": "transformer.output_layer",
                **{f"self_attn.{part}_proj": "self_attention.query_key_value" for part in "qkv"},
                "self_attn.o_proj": "self_attention.dense",
                "mlp.gate_up_proj": "mlp.dense_h_to_4h",
                "mlp.down_proj": "mlp.dense_4h_to_h",
            }
        ),
    ),
    "exaone 3": Layout(
        "llama 3 rope",
        exaone,
        renamed(
            {
                **GPT_NAMES,
                "input_layernorm": "ln_1",
                "post_attention_layernorm": "ln_2",
                "self_attn.o_proj": "attn.attention.out_proj",
                "self_attn.": "attn.attention.",
                "gate_proj": "c_fc_0",
                "up_proj": "c_fc_1",
                "down_proj": "c_proj",
            }
        ),
    ),
}


def write_layout(name: str, folder: Path) -> torch.nn.Module:
    """Write the checkpoint of a family; return the equivalent network."""
    layout = LAYOUTS[name]
    network = write_checkpoint(layout.oracle, folder)
    config = folder / "config.json"
    config.write_text(json.dumps(layout.config(json.loads(config.read_text()))))
    weights = folder / "model.safetensors"
    tensors = {key: value.copy() for key, value in load_file(weights).items()}
    save_file(layout.tensors(tensors), weights)
    return network


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_logits_of_the_equivalent_network(name, tmp_path):
    network = write_layout(name, tmp_path)
    with torch.inference_mode():
        expected = network(torch.tensor([TOKENS])).logits[0].float().numpy()

    model = load_model(str(tmp_path))
    logits = ReferenceRunner(model.spec, model.weights, CONTEXT).logits(every_row())

    assert len(logits) == NUM_TOKENS
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
