"""The networks that are compared: those of the GGUF twins, changed where llama.cpp does not read or compute them."""

from dataclasses import dataclass, field
from typing import Any

from tests.parity.networks import DEEPSEEK_YARN, LAGUNA, longrope
from tests.parity.networks import YARN as TORCH_YARN
from tests.parity.test_gguf_twins import ROUTED, TWINS
from tests.parity.test_latent_twins import GROUPS, HEADS, LATENT_TWINS, YARN

LATENT_NORMS = "its latents have the epsilon of the other norms, in transformers 1e-6"
HEADS_FROM_SIZE = "it reads heads of hidden size / heads numbers only"
LAGUNA_ROPES: Any = LAGUNA["rope_parameters"]
WITHOUT_FACTOR = {key: value for key, value in LAGUNA_ROPES["full_attention"].items() if key != "attention_factor"}
AS_MANY_KEYS = "it reads as many KV heads as heads only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network, and the metadata of its GGUF file."""

    network: str = ""
    """Its name in `tests.parity.networks`, unless the case has it."""
    architecture: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    """More values, or others; None removes one."""
    config: dict[str, Any] = field(default_factory=dict)
    """Values other than those of the network."""
    why: str = ""
    """Where llama.cpp differs from transformers, or what it does not read: the network is changed so that it agrees."""


CHANGES: dict[str, Case] = {
    "command r+": Case(config={"num_hidden_layers": 64}, why="it has these norms in networks of 64 layers only"),
    "deepseek v2 lite": Case(config={"rms_norm_eps": 1e-6}, why=LATENT_NORMS),
    "deepseek v3": Case(config={"rms_norm_eps": 1e-6}, why=LATENT_NORMS),
    "glm 4.7 flash": Case(
        config={"rms_norm_eps": 1e-6},
        metadata={"expert_gating_func": 2},
        why=f"{LATENT_NORMS}; of files without a score of experts it knows those of the released size only",
    ),
    "mistral 4": Case(
        config={"rms_norm_eps": 1e-6},
        metadata={"attention.temperature_scale": 0.1, "attention.temperature_length": 32},
        why=f"{LATENT_NORMS}; its converter does not write how queries grow, and without the keys they do not",
    ),
    "minicpm 3": Case(
        config={"rms_norm_eps": 1e-6},
        metadata={"attention.layer_norm_rms_epsilon": 1e-6},
        why=LATENT_NORMS,
    ),
    **{
        name: Case(
            config={"rms_norm_eps": 1e-6, "index_head_dim": 64},
            metadata={"attention.indexer.key_length": 64},
            why=f"{LATENT_NORMS}; it reads indexers with heads of 64 numbers or more only",
        )
        for name in ("deepseek v3.2", "glm 5")
    },
    "dots 1": Case(config={"num_key_value_heads": 4}, why=AS_MANY_KEYS),
    "exaone 4, windows": Case(
        config={"num_hidden_layers": 64, "head_dim": 16},
        why=f"it has windows in networks of 64 layers only, as the released ones; {HEADS_FROM_SIZE}",
    ),
    "gemma 4": Case(
        config={"num_kv_shared_layers": 3},
        metadata={"attention.shared_kv_layers": 3, "feed_forward_length": [96] * 3 + [192] * 3},
        why="it requires windows but in the last of the layers with KV of their own, as in released models",
    ),
    "gpt oss": Case(
        config={"swiglu_limit": 7.0},
        why="it clamps at 7, as the released models do, and rounds the ends of YaRN's ramp, which they do not",
    ),
    "laguna": Case(
        config={"rope_parameters": {**LAGUNA_ROPES, "full_attention": WITHOUT_FACTOR}},
        metadata={"rope.scaling.yarn_attn_factor": None},
        why="it takes the attention factor that YaRN has by default, whatever the file says",
    ),
    "lfm 2 moe": Case(
        config={"routed_scaling_factor": 1.0},
        metadata={"expert_weights_scale": 1.0},
        why="it does not read the scale of the sum of experts, 1 in released models",
    ),
    "nemotron": Case(config={"hidden_size": 128}, why=HEADS_FROM_SIZE),
    "olmoe": Case(config={"num_key_value_heads": 4}, why=AS_MANY_KEYS),
    "phi 3, sliding window": Case(
        config={"sliding_window": None},
        metadata={"attention.sliding_window": None},
        why="it ignores the window",
    ),
    "phi 3.5 moe": Case(
        config=longrope(8, 256, short_mscale=1.25, long_mscale=1.25, original_max_position_embeddings=256),
        metadata={"attention.layer_norm_rms_epsilon": 1e-5, "rope.scaling.original_context_length": 256},
        why="it computes RMS norms where the network has layer norms, and one softmax for both experts",
    ),
    "qwen 2, yarn with an exact ramp": Case(
        config={"head_dim": 16, "rope_parameters": TORCH_YARN},
        why=f"no key of GGUF files says that the ends of YaRN's ramp are not rounded; {HEADS_FROM_SIZE}",
    ),
    "qwen 3.5": Case(
        metadata={
            "block_count": 4,
            "nextn_predict_layers": None,
            "attention.recurrent_layers": [True, True, False, True],
        },
        why="without the layer for drafts that the twin names and does not have",
    ),
}
MORE: dict[str, Case] = {
    "deepseek v2": Case(
        network="deepseek v2",
        architecture="deepseek2",
        metadata=HEADS
        | ROUTED
        | GROUPS
        | YARN
        | {"rope.scaling.yarn_log_multiplier": 0.0707, "expert_weights_norm": False},
        config={"rms_norm_eps": 1e-6, "attention_bias": False},
        why=LATENT_NORMS,
    ),
    "kimi k2": Case(
        network="deepseek v3",
        architecture="deepseek2",
        metadata=HEADS
        | ROUTED
        | YARN
        | {"rope.scaling.yarn_log_multiplier": 0.1, "expert_gating_func": 2, "expert_weights_scale": 2.827},
        config={"rms_norm_eps": 1e-6, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}
        | {"rope_parameters": DEEPSEEK_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        why=LATENT_NORMS,
    ),
}


def all_cases() -> dict[str, Case]:
    cases = {}
    for name, (architecture, metadata) in (TWINS | LATENT_TWINS).items():
        change = CHANGES.get(name, Case())
        cases[name] = Case(
            network=name,
            architecture=architecture,
            metadata=metadata | change.metadata,
            config=change.config,
            why=change.why,
        )
    return cases | MORE
