"""StarCoder2: layer norms, a plain MLP and biases everywhere."""

from typing import Final

from headrace.inference.models.families.family import ALL_BIASED, GPT_PARTS, LLAMA_TENSORS, Family
from headrace.inference.models.families.reading import config_spec, gguf_spec, uniform_window

WINDOW_TOKENS: Final = 4096
"""The window of all released models; GGUF files do not store it."""


STARCODER2: Final = Family(
    name="starcoder2",
    models="StarCoder2",
    verified=("transformers", "GGUF twin"),
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
    spec_from_config=lambda family, config: uniform_window(
        config_spec(family, config), config.whole("sliding_window", 0, minimum=0)
    ),
    gguf_architectures=("starcoder2",),
    gguf_biases=tuple(ALL_BIASED),
    spec_from_gguf=lambda family, header: uniform_window(gguf_spec(family, header), WINDOW_TOKENS),
    tensors={**LLAMA_TENSORS, "up": "mlp.c_fc.weight", "down": "mlp.c_proj.weight"},
)
