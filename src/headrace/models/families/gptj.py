"""GPT-J: the MLP beside attention with the same norm; the first values of each head turn, interleaved."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import Family, base_config_spec, read_activation
from headrace.models.families.gpt2 import GPT2
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "n_positions": 2048,
    "vocab_size": 50_400,
    "rotary_dim": 64,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}
"""Source: transformers `GPTJConfig`."""
_OTHER_NAMES: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
}


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `gptj` config."""
    config = config.with_defaults(DEFAULTS)
    hidden_size, num_heads = config.whole("n_embd"), config.whole("n_head")
    derived = {
        "intermediate_size": config.whole("n_inner", 4 * hidden_size),
        "partial_rotary_factor": config.whole("rotary_dim") * num_heads / hidden_size,
    }
    config = Fields({**config.renamed(_OTHER_NAMES).values, **derived}, config.source)
    return replace(
        base_config_spec(config, "gptj", rotary_fraction=1.0),
        norm="layer",
        norm_bias=True,
        parallel="one",
        mlp="plain",
        activation=read_activation(config, key="activation_function"),
        mlp_bias=True,
        head_bias=True,
    )


GPTJ: Final = Family(
    name="gptj",
    models="GPT-J",
    verified=("transformers",),
    model_types=("gptj",),
    spec_from_config=spec_from_config,
    tensors={
        **GPT2.tensors,
        "q": "attn.q_proj.weight",
        "k": "attn.k_proj.weight",
        "v": "attn.v_proj.weight",
        "o": "attn.out_proj.weight",
        "up": "mlp.fc_in.weight",
        "down": "mlp.fc_out.weight",
    },
    interleaved_rope=True,
)
