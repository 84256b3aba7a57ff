"""OPT: learned positions from row 2 on, ReLU, biases everywhere."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import LLAMA_TENSORS, Family, base_config_spec, read_activation
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "hidden_size": 768,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
"""Source: transformers `OPTConfig`; the epsilon is PyTorch's."""
POSITION_OFFSET: Final = 2


def spec_from_config(config: Fields) -> ModelSpec:
    """Read an `opt` config."""
    config = config.with_defaults(DEFAULTS).renamed({"intermediate_size": "ffn_dim"})
    config.refuse("do_layer_norm_before", "norms of the residual stream", unless=(True,))
    config.refuse("_remove_final_layer_norm", "a network without a last norm", unless=(False,))
    config.refuse("layer_norm_elementwise_affine", "norms without weights", unless=(True,))
    config.refuse("word_embed_proj_dim", "projected embeddings", unless=(config.whole("hidden_size"),))
    spec = base_config_spec(config, "opt")
    biased = config.flag("enable_bias", default=True)
    return replace(
        spec,
        norm="layer",
        norm_bias=True,
        mlp="plain",
        activation=read_activation(config, key="activation_function"),
        qkv_bias=biased,
        o_bias=biased,
        mlp_bias=biased,
        learned_positions=spec.max_positions,
        rope_of_layer=(-1,) * spec.num_layers,
    )


OPT: Final = Family(
    name="opt",
    models="OPT (not 350M)",
    verified=("transformers",),
    model_types=("opt",),
    spec_from_config=spec_from_config,
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
    position_offset=POSITION_OFFSET,
)
