"""StarCoder2: layer norms, a plain MLP and biases everywhere."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import ALL_BIASED, GPT_PARTS, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import config_spec, gguf_spec, uniform_window
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

WINDOW_TOKENS: Final = 4096
"""The window of all released models; GGUF files do not store it."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    return uniform_window(config_spec(family, config), config.whole("sliding_window", 0, minimum=0))


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    spec = gguf_spec(family, header)
    return uniform_window(replace(spec, o_bias=spec.qkv_bias, mlp_bias=spec.qkv_bias), WINDOW_TOKENS)


STARCODER2: Final = Family(
    name="starcoder2",
    models="StarCoder2",
    verified=("transformers", "GGUF twin"),
    model_types=("starcoder2",),
    # Source: transformers `Starcoder2Config`.
    defaults={
        "hidden_act": "gelu_pytorch_tanh",
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "use_bias": True,
    },
    keys={"rms_norm_eps": "norm_epsilon"},
    activation="gelu_tanh",
    reads_activation=True,
    bias_flags=dict.fromkeys(ALL_BIASED, "use_bias"),
    parts=GPT_PARTS,
    spec_from_config=_from_config,
    gguf_architectures=("starcoder2",),
    gguf_biases=("qkv_bias",),
    spec_from_gguf=_from_gguf,
    tensors={**LLAMA_TENSORS, "up": "mlp.c_fc.weight", "down": "mlp.c_proj.weight"},
)
