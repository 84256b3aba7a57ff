"""EXAONE 3 and 3.5: Llama with other names."""

from typing import Final

from headrace.models.families.family import (
    LLAMA_TENSORS,
    Family,
    GgufHeader,
    base_config_spec,
    base_gguf_spec,
    require_activation,
)
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec

_OTHER_NAMES: Final = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def spec_from_config(config: Fields) -> ModelSpec:
    """Read an `exaone` config."""
    config = config.renamed(_OTHER_NAMES)
    require_activation(config, "silu")
    return base_config_spec(config, "exaone")


def spec_from_gguf(header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata."""
    return base_gguf_spec(header, "exaone")


EXAONE: Final = Family(
    name="exaone",
    models="EXAONE 3 and 3.5",
    verified=("layout",),
    model_types=("exaone",),
    spec_from_config=spec_from_config,
    gguf_architectures=("exaone",),
    spec_from_gguf=spec_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "layers": "model.h",
        "embed": "model.wte.weight",
        "final_norm": "model.ln_f.weight",
        "attn_norm": "ln_1.weight",
        "q": "attn.attention.q_proj.weight",
        "k": "attn.attention.k_proj.weight",
        "v": "attn.attention.v_proj.weight",
        "o": "attn.attention.out_proj.weight",
        "mlp_norm": "ln_2.weight",
        "gate": "mlp.c_fc_0.weight",
        "up": "mlp.c_fc_1.weight",
        "down": "mlp.c_proj.weight",
    },
)
