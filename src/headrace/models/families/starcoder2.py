"""StarCoder2: layer norms, a plain MLP and biases everywhere."""

from dataclasses import replace
from typing import Final

from headrace.models.families.family import (
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    read_activation,
    uniform_window,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

DEFAULTS: Final = {
    "hidden_act": "gelu_pytorch_tanh",
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
"""Source: transformers `Starcoder2Config`."""
WINDOW_TOKENS: Final = 4096
"""The window of all released models; GGUF files do not store it."""


def spec_from_config(config: Fields) -> ModelSpec:
    """Read a `starcoder2` config."""
    config = config.with_defaults(DEFAULTS).renamed({"rms_norm_eps": "norm_epsilon"})
    spec = _biased(base_config_spec(config, "starcoder2"), is_biased=config.flag("use_bias", default=True))
    spec = replace(spec, activation=read_activation(config))
    return uniform_window(spec, config.whole("sliding_window", 0, minimum=0))


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    spec = _biased(base_gguf_spec(header, "starcoder2"), is_biased="blk.0.attn_q.bias" in header.tensor_shapes)
    return uniform_window(replace(spec, activation="gelu_tanh"), WINDOW_TOKENS)


def _biased(spec: ModelSpec, *, is_biased: bool) -> ModelSpec:
    return replace(
        spec, norm="layer", norm_bias=True, mlp="plain", qkv_bias=is_biased, o_bias=is_biased, mlp_bias=is_biased
    )


STARCODER2: Final = Family(
    name="starcoder2",
    models="StarCoder2",
    verified=("transformers", "GGUF twin"),
    model_types=("starcoder2",),
    spec_from_config=spec_from_config,
    gguf_architectures=("starcoder2",),
    spec_from_gguf=spec_from_gguf,
    tensors={**LLAMA_TENSORS, "up": "mlp.c_fc.weight", "down": "mlp.c_proj.weight"},
)
