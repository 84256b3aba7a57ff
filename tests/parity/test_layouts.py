"""
Layout tests: families that `transformers` reads only with code from the checkpoint.

The oracle is an equivalent network of `transformers` (its stored logits), whose config and tensors are written under
the names and in the order of the family's own files.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace.inference.models.families.mistral_params import config_of_params
from headrace.inference.models.fields import Fields
from headrace.inference.models.loading import load_model
from headrace.inference.runner.reference import ReferenceRunner
from tests.parity.checkpoints import CONTEXT, NUM_TOKENS, sample, stored_network, write_checkpoint
from tests.parity.test_transformers import every_row

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Layout:
    oracle: str
    """The equivalent network, in `networks.NETWORKS` or `ORACLES`."""
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


def mistral_params(config: Config) -> Config:
    """Return Mistral's `params.json` of a Llama with yarn."""
    yarn = config["rope_parameters"]
    return {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "head_dim": config["head_dim"],
        "hidden_dim": config["intermediate_size"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "tied_embeddings": False,
        "rope_theta": yarn["rope_theta"],
        "max_position_embeddings": config["max_position_embeddings"],
        "yarn": {
            "factor": yarn["factor"],
            "original_max_position_embeddings": yarn["original_max_position_embeddings"],
            "beta": 32,
            "alpha": 1,
            "apply_scale": True,
        },
    }


def mixtral_params(config: Config) -> Config:
    """Return Mistral's `params.json` of a Mixtral, from before contexts were named."""
    names = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "hidden_dim": "intermediate_size"}
    names |= {"n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps"}
    moe = {"num_experts": config["num_local_experts"], "num_experts_per_tok": config["num_experts_per_tok"]}
    theta = config["rope_parameters"]["rope_theta"]
    same = {name: config[name] for name in ("head_dim", "vocab_size")}
    return same | {name: config[other] for name, other in names.items()} | {"rope_theta": theta, "moe": moe}


def with_pairs(tensors: Tensors, head_dim: int) -> Tensors:
    """Put the two halves of each rotary pair of q and k side by side, as Meta's and Mistral's code does."""
    heads = {name: (-1, 2, head_dim // 2, tensor.shape[-1]) for name, tensor in tensors.items()}
    return {
        name: tensor.reshape(heads[name]).swapaxes(1, 2).reshape(tensor.shape) if ".wq." in name or ".wk." in name
        else tensor
        for name, tensor in tensors.items()
    }  # fmt: skip


def deci(config: Config) -> Config:
    """Return the config of four layers, of which the last two are the halves of one."""
    groups, widths = (1, 2, 2, None), (256, 512, None, 256)
    blocks = [
        {
            "attention": {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False},
            "ffn": {"ffn_mult": width and width * 1.5 / 64, "no_op": width is None, "replace_with_linear": False},
        }
        for group, width in zip(groups, widths, strict=True)
    ]
    values = {"num_hidden_layers": 4, "num_key_value_heads": None, "intermediate_size": None}
    return llama(config, model_type="nemotron-nas", block_configs=blocks, **values)


def with_deci_layers(tensors: Tensors) -> Tensors:
    """Widen the MLPs with zeros, repeat the KV heads of the first layer, and split the last layer in two."""
    found = {}
    for name, values in tensors.items():
        part = name.rpartition("layers.2.")[2].split(".")[0]
        new = name.replace("layers.2.", "layers.3.") if part in {"mlp", "post_attention_layernorm"} else name
        missing = (512 if "layers.1." in name else 256) - 96
        if "gate_proj" in name or "up_proj" in name:
            found[new] = np.pad(values, ((0, missing), (0, 0)))
        elif "down_proj" in name:
            found[new] = np.pad(values, ((0, 0), (0, missing)))
        elif "layers.0." in name and ("k_proj" in name or "v_proj" in name):
            found[new] = values.reshape(2, 32, 64).repeat(2, axis=0).reshape(128, 64)
        else:
            found[new] = values
    return found


def openelm(config: Config) -> Config:
    return {
        "model_type": "openelm",
        "model_dim": config["hidden_size"],
        "num_transformer_layers": 3,
        "head_dim": config["head_dim"],
        "num_query_heads": [4, 6, 4],
        "num_kv_heads": [4, 2, 2],
        "ffn_multipliers": [1.5, 1.75, 1.5],  # of 64, to multiples of 32: 112 is rounded up
        "ffn_dim_divisor": 32,
        "activation_fn_name": "swish",
        "max_context_length": config["max_position_embeddings"],
        "rope_freq_constant": config["rope_parameters"]["rope_theta"],
        "vocab_size": config["vocab_size"],
    }


def with_openelm_layers(tensors: Tensors) -> Tensors:
    """Repeat the KV heads of the first layer; give the second one a wider MLP and query heads that nothing reads."""
    changed = {}
    for name, values in tensors.items():
        changed[name] = values
        if "layers.0." in name and ("k_proj" in name or "v_proj" in name):
            changed[name] = values.reshape(2, 32, 64).repeat(2, axis=0).reshape(128, 64)
        elif "layers.1." in name and ("gate_proj" in name or "up_proj" in name):
            changed[name] = np.pad(values, ((0, 32), (0, 0)))
        elif "layers.1." in name and "down_proj" in name:
            changed[name] = np.pad(values, ((0, 0), (0, 32)))
        elif "layers.1." in name and "q_proj" in name:
            changed[name] = np.pad(values.reshape(2, 64, 64), ((0, 0), (0, 32), (0, 0)), "edge").reshape(192, 64)
        elif "layers.1." in name and "o_proj" in name:
            changed[name] = np.pad(values.reshape(64, 2, 64), ((0, 0), (0, 0), (0, 32))).reshape(64, 192)
    return renamed(OPENELM_NAMES)(changed)


OPENELM_NAMES = {
    "model.": "transformer.",
    "embed_tokens": "token_embeddings",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{part}_proj": "attn.qkv_proj" for part in "qkv"},
    "self_attn.o_proj": "attn.out_proj",
    "self_attn.": "attn.",
    "mlp.gate_proj": "ffn.proj_1",
    "mlp.up_proj": "ffn.proj_1",
    "mlp.down_proj": "ffn.proj_2",
}
MISTRAL_NAMES = {
    "model.layers": "layers",
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{part}_proj": f"attention.w{part}" for part in "qkvo"},
    **{f"mlp.{part}_proj": f"feed_forward.w{number}" for number, part in enumerate(("gate", "down", "up"), 1)},
}
GPT_NAMES = {
    "model.layers.": "transformer.h.",
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
}
LAYOUTS = {
    "mistral's params.json": Layout(
        "llama, yarn", mistral_params, lambda tensors: with_pairs(renamed(MISTRAL_NAMES)(tensors), 32)
    ),
    "mixtral's params.json": Layout(
        "mixtral",
        mixtral_params,
        lambda tensors: with_pairs(renamed(MISTRAL_NAMES | {"block_sparse_moe": "feed_forward"})(tensors), 32),
    ),
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
    "deci": Layout("llama", deci, with_deci_layers),
    "openelm": Layout("qwen 3", openelm, with_openelm_layers),
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


def write_layout(name: str, folder: Path) -> None:
    """Write the checkpoint of a family, from that of the equivalent network."""
    layout = LAYOUTS[name]
    write_checkpoint(layout.oracle, folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    values = layout.config(json.loads(config.read_text()))
    tensors = {key: value.copy() for key, value in load_file(weights).items()}
    config.unlink()
    weights.unlink()
    is_mistrals = "dim" in values
    (folder / ("params.json" if is_mistrals else "config.json")).write_text(json.dumps(values))
    save_file(layout.tensors(tensors), folder / ("consolidated.safetensors" if is_mistrals else "model.safetensors"))


def read_layout_config(folder: Path) -> Config:
    """Return the config of a folder as the registry of families reads it."""
    params = folder / "params.json"
    if params.is_file():
        return dict(config_of_params(Fields(json.loads(params.read_text()), "params.json")).values)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_logits_of_the_equivalent_network(name, tmp_path):
    write_layout(name, tmp_path)

    model = load_model(str(tmp_path))
    logits = ReferenceRunner(model.spec, model.weights, CONTEXT).logits(every_row(model.spec))

    assert len(logits) == NUM_TOKENS
    np.testing.assert_allclose(sample(logits), stored_network(LAYOUTS[name].oracle).logits, rtol=1e-4, atol=1e-4)
