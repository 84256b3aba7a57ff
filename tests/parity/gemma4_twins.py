"""The tensors of Gemma 4 as llama.cpp's converter writes them."""

import gguf
import numpy as np
from safetensors.numpy import load_file

SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
"""Names of the vectors of a router, which the converter does not look up."""


def converted(folder, spec):
    """Return the tensors of a folder by their names in a GGUF file."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, spec.num_layers)
    tensors = {}
    for name, values in load_file(folder / "model.safetensors").items():
        _, _, scale = name.partition("layers.")
        layer, _, part = scale.partition(".")
        if part in SCALES:
            tensors[f"blk.{layer}.{SCALES[part]}"] = values
        else:
            # The converter adds the suffix to names without it: layer_scalar, experts.gate_up_proj, experts.down_proj.
            stem = name.removesuffix(".weight")
            tensors[f"{names.get_name(stem)}.weight"] = values
    turning, pairs = spec.ropes[0].rotary_dim // 2, max(shape.head_dim for shape in spec.attention_shapes) // 2
    tensors["rope_freqs.weight"] = np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)
    return tensors
