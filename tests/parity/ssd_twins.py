"""
State space models as llama.cpp's converter writes them: metadata of networks, and their tensors.

Source: `conversion/mamba.py`, `granite.py` and `nemotron.py` of llama.cpp.
"""

import re

import numpy as np

SSD = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.time_step_rank": 8, "ssm.group_count": 2}
GRANITE_HYBRID = SSD | {
    "attention.scale": 0.1,
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "logit_scale": 8.0,
    "attention.head_count_kv": [0, 2, 0],
    "rope.scaling.finetuned": False,
    "attention.layer_norm_rms_epsilon": 1e-6,
}
GRANITE_EXPERTS = {"expert_count": 6, "expert_used_count": 2, "expert_shared_feed_forward_length": 96}
ROUTED = {
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64,
    "expert_weights_norm": True,
}
EPSILON = {"attention.layer_norm_epsilon": 1e-5}
"""Of a norm beside the layers, which llama.cpp requires of Nemotron-H."""
SSD_TWINS = {
    "granite 4 h": ("granitehybrid", GRANITE_HYBRID),
    "granite 4 h, experts": ("granitehybrid", GRANITE_HYBRID | GRANITE_EXPERTS),
    "falcon h1": ("falcon-h1", SSD),
    "mamba 2": ("mamba2", SSD | {"feed_forward_length": 0, "attention.head_count": 0, "context_length": 1 << 20}),
    "nemotron h": (
        "nemotron_h",
        SSD | EPSILON | {"attention.head_count_kv": [0, 0, 2, 0, 0], "feed_forward_length": [0, 96, 0, 96, 0]},
    ),
    "nemotron 3": (
        "nemotron_h_moe",
        SSD
        | EPSILON
        | ROUTED
        | {
            "attention.head_count_kv": [0, 0, 2, 0, 0],
            "feed_forward_length": [0, 32, 0, 0, 32],
            "expert_weights_scale": 2.5,
            "expert_group_count": 1,
        },
    ),
}


FACTORS = {
    **{f"{part}_proj.weight": part for part in ("q", "k", "v", "o", "gate", "down")},
    "mamba.out_proj.weight": "mix_out",
}


def multiplied(name, values, spec):
    """Return the values of a tensor times its factors (Falcon-H1)."""
    factors = dict(spec.weight_factors)
    if name.endswith("in_proj.weight"):
        length = spec.ssd.groups * spec.ssd.state_size
        counts = (spec.ssd.num_values, spec.ssd.num_values, length, length, spec.ssd.heads)
        by_part = [*(factors[f"mix_in.{part}"] for part in "zxbc"), factors["mix_small"]]
        return (values * np.repeat(by_part, counts)[:, None]).astype(np.float32)
    scales = {"embed_tokens.weight": spec.embedding_scale, "lm_head.weight": spec.logit_scale}
    scales |= {suffix: factors[part] for suffix, part in FACTORS.items()}
    found = [scale for suffix, scale in scales.items() if name.endswith(suffix)]
    return values * np.float32(found[-1]) if found else values


def converted_ssd(name, values, spec):
    """Return the name and the values of a tensor, changed if it belongs to a state space model."""
    name = name.removesuffix(".dt_bias") + ".dt_proj.bias" if name.endswith(".dt_bias") else name
    values = multiplied(name, values, spec) if spec.weight_factors else values
    name = re.sub(r"^backbone\.(layers\.\d+)\.mixer\.experts\.", r"model.\1.mlp.experts.", name)
    if spec.moe is None:
        name = name.replace("mlp.shared_experts.", "mlp.").replace("shared_mlp.output_linear", "mlp.down_proj")
    if re.search(r"(mamba|mixer)\.conv1d\.weight$", name):
        values = values.squeeze(1)
    elif name.endswith(".A_log"):
        values = -np.exp(values).reshape(-1, 1)
    elif re.search(r"(mamba|mixer)\.D$", name):
        values = values.reshape(-1, 1)
    elif re.search(r"(mamba|mixer)\.norm\.weight$", name):
        values = values.reshape(spec.ssd.groups, -1)
    return name, values
