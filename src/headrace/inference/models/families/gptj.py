"""GPT-J: the MLP beside attention with the same norm; the first values of each head turn, interleaved."""

from typing import Final

from headrace.inference.models.families.family import GPT_PARTS, Family
from headrace.inference.models.families.gpt2 import GPT2
from headrace.inference.models.families.reading import config_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    hidden_size, num_heads = config.whole("n_embd"), config.whole("n_head")
    derived = {
        "intermediate_size": config.whole("n_inner", 4 * hidden_size),
        "partial_rotary_factor": config.whole("rotary_dim") * num_heads / hidden_size,
    }
    return config_spec(family, Fields({**config.values, **derived}, config.source))


GPTJ: Final = Family(
    name="gptj",
    models="GPT-J",
    verified=("transformers",),
    # Source: transformers `GPTJConfig`.
    defaults={
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "n_positions": 2048,
        "vocab_size": 50_400,
        "rotary_dim": 64,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    },
    keys=GPT2.keys,
    activation_key="activation_function",
    reads_activation=True,
    rotary_fraction=1.0,
    parts={**GPT_PARTS, "mlp_bias": True, "head_bias": True, "parallel": "one"},
    spec_from_config=_from_config,
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
