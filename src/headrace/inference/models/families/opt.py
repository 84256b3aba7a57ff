"""OPT: learned positions from row 2 on, ReLU, biases everywhere."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ALL_BIASED, GPT_PARTS, LLAMA_TENSORS, Family
from headrace.inference.models.families.reading import config_spec, without_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    config.refuse("word_embed_proj_dim", "projected embeddings", unless=(config.whole("hidden_size"),))
    spec = config_spec(family, config)
    return replace(without_positions(spec), learned_positions=spec.max_positions)


OPT: Final = Family(
    name="opt",
    models="OPT (not 350M)",
    verified=("transformers",),
    # Source: transformers `OPTConfig`; the epsilon is PyTorch's.
    defaults={
        "hidden_size": 768,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "activation_function": "relu",
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "enable_bias": True,
    },
    keys={"intermediate_size": "ffn_dim"},
    refused={
        "do_layer_norm_before": (True, "norms of the residual stream"),
        "_remove_final_layer_norm": (False, "a network without a last norm"),
        "layer_norm_elementwise_affine": (True, "norms without weights"),
    },
    activation_key="activation_function",
    reads_activation=True,
    bias_flags=dict.fromkeys(ALL_BIASED, "enable_bias"),
    parts=GPT_PARTS,
    spec_from_config=_from_config,
    tensors={
        **LLAMA_TENSORS,
        "positions": "model.embed_positions.weight",
        "final_norm": "model.final_layer_norm.weight",
        "attn_norm": "self_attn_layer_norm.weight",
        "o": "self_attn.out_proj.weight",
        "mlp_norm": "final_layer_norm.weight",
        "up": "fc1.weight",
        "down": "fc2.weight",
    },
    position_offset=2,
)
