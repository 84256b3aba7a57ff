"""Small random checkpoints of every family, written by `transformers` itself."""

from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from tests.models.model_files import byte_level_tokenizer

VOCAB_SIZE = 320
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA3_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
}

EXPERTS = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "decoder_sparse_step": 1}

NETWORKS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama, biases": ("LlamaForCausalLM", {"attention_bias": True}),
    "llama, linear rope": (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama, dynamic rope": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
            "max_position_embeddings": 64,
        },
    ),
    "llama 3 rope": ("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral, sliding window": ("MistralForCausalLM", {"sliding_window": 17}),
    "qwen 2": ("Qwen2ForCausalLM", {}),
    "qwen 3": ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    "mixtral": (
        "MixtralForCausalLM",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "qwen 2 moe": (
        "Qwen2MoeForCausalLM",
        EXPERTS | {"shared_expert_intermediate_size": 128, "num_experts_per_tok": 4, "mlp_only_layers": [1]},
    ),
    "qwen 3 moe": ("Qwen3MoeForCausalLM", EXPERTS | {"norm_topk_prob": True}),
    "gemma 3": (
        "Gemma3ForCausalLM",
        {
            "layer_types": GEMMA3_LAYERS,
            "rope_parameters": GEMMA3_ROPE,
            "sliding_window": 17,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
        },
    ),
}


def write_checkpoint(name: str, folder: Path) -> PreTrainedModel:
    """Save a network as `transformers` does, with a small tokenizer beside it; returns the network in float32."""
    architecture, changes = NETWORKS[name]
    model_class = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**SHAPE | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(_vector_like(parameter) if parameter.ndim == 1 else _matrix_like(parameter))
    model.save_pretrained(folder)
    byte_level_tokenizer(VOCAB_SIZE).save(str(folder / "tokenizer.json"))
    return model


def _vector_like(parameter: torch.Tensor) -> torch.Tensor:
    """Norms and biases begin as ones and zeros, which would hide mistakes."""
    return parameter + 0.1 * torch.randn_like(parameter)


def _matrix_like(parameter: torch.Tensor) -> torch.Tensor:
    """Multiples of 1/32, which bfloat16 and 4-bit weights in groups of 32 hold exactly."""
    steps = torch.randint(-8, 8, parameter.shape)
    steps[:, 0::32], steps[:, 1::32] = -8, 7
    return steps / 32
