"""EXAONE 3 and 3.5: Llama with other names."""

from typing import Final

from headrace.inference.models.families.family import GPT_TENSORS, Family

EXAONE: Final = Family(
    name="exaone",
    models="EXAONE 3 and 3.5",
    verified=("layout",),
    keys={"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function"},
    gguf_architectures=("exaone",),
    tensors={
        **GPT_TENSORS,
        "q": "attn.attention.q_proj.weight",
        "k": "attn.attention.k_proj.weight",
        "v": "attn.attention.v_proj.weight",
        "o": "attn.attention.out_proj.weight",
        "gate": "mlp.c_fc_0.weight",
        "up": "mlp.c_fc_1.weight",
        "down": "mlp.c_proj.weight",
    },
)
