"""Small random checkpoints of the architectures that the transformers backend is tested with."""

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel

from headrace.inference.runner.transformers.support import Tier
from tests.inference.models.model_files import byte_level_tokenizer
from tests.parity.networks import VOCAB_SIZE
from tests.parity.references import torch_network

HAS_PAGED_GPT_J = Version(transformers.__version__) >= Version("5.24")
"""GPT-J and CodeGen, which is a copy of its code, pass their attention through the interface from this version on."""

SHARED = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MLA = {
    "intermediate_size": 96,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Network:
    """An architecture, the values of its config beside `SHARED`, and how it is expected to run."""

    architecture: str
    config: dict[str, object]
    tier: Tier


OWN: dict[str, Network] = {
    "bloom": Network("BloomForCausalLM", {}, Tier.BY_SEQUENCE),
    "falcon, alibi": Network("FalconForCausalLM", {"alibi": True, "new_decoder_architecture": False}, Tier.BY_SEQUENCE),
    "mpt": Network(
        "MptForCausalLM",
        {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
        Tier.BY_SEQUENCE,
    ),
    "codegen": Network(
        "CodeGenForCausalLM",
        {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
        Tier.PAGED if HAS_PAGED_GPT_J else Tier.BY_SEQUENCE,
    ),
    "gpt neo": Network(
        "GPTNeoForCausalLM",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 9},
        Tier.BY_SEQUENCE,
    ),
    "gpt bigcode": Network(
        "GPTBigCodeForCausalLM", {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}, Tier.PAGED
    ),
    "biogpt": Network("BioGptForCausalLM", {"intermediate_size": 96, "max_position_embeddings": 128}, Tier.BY_SEQUENCE),
    "xglm": Network(
        "XGLMForCausalLM",
        {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4, "max_position_embeddings": 128},
        Tier.BY_SEQUENCE,
    ),
    "gpt neox japanese": Network("GPTNeoXJapaneseForCausalLM", {"max_position_embeddings": 128}, Tier.BY_SEQUENCE),
    "llama 4": Network(
        "Llama4ForCausalLM",
        {
            "intermediate_size": 48,
            "intermediate_size_mlp": 96,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_local_experts": 2,
            "attention_chunk_size": 16,
            "max_position_embeddings": 128,
        },
        Tier.BY_SEQUENCE,
    ),
    "deepseek v2": Network("DeepseekV2ForCausalLM", MLA, Tier.PAGED),
    "deepseek v3": Network("DeepseekV3ForCausalLM", MLA, Tier.PAGED),
    "persimmon": Network("PersimmonForCausalLM", {"intermediate_size": 96, "max_position_embeddings": 128}, Tier.PAGED),
    "dbrx": Network(
        "DbrxForCausalLM",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 128,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 500.0, "clip_qkv": 4.0},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        },
        Tier.PAGED,
    ),
    "jetmoe": Network(
        "JetMoeForCausalLM",
        {"num_key_value_heads": 2, "kv_channels": 16, "intermediate_size": 48, "num_local_experts": 4},
        Tier.PAGED,
    ),
    "bitnet": Network(
        "BitNetForCausalLM",
        {"intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 128},
        Tier.PAGED,
    ),
    "hunyuan": Network(
        "HunYuanDenseV1ForCausalLM",
        {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128},
        Tier.PAGED,
    ),
    "helium": Network(
        "HeliumForCausalLM",
        {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128},
        Tier.PAGED,
    ),
    "dots 1": Network(
        "Dots1ForCausalLM",
        {
            "intermediate_size": 96,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 32,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "max_position_embeddings": 128,
        },
        Tier.PAGED,
    ),
}
"""Architectures that the native backend lacks, or runs as another one."""

SHARED_WITH_NATIVE: dict[str, Tier] = {
    "llama": Tier.PAGED,
    "llama 3 rope": Tier.PAGED,
    "mistral, sliding window": Tier.PAGED,
    "qwen 2": Tier.PAGED,
    "qwen 3": Tier.PAGED,
    "mixtral": Tier.PAGED,
    "qwen 3 moe": Tier.PAGED,
    "gemma 3": Tier.PAGED,
    "gemma 3, with images": Tier.PAGED,
    "gemma 2": Tier.PAGED,
    "phi 3, sliding window": Tier.PAGED,
    "granite": Tier.PAGED,
    "gpt oss": Tier.PAGED,
    "olmo 3": Tier.PAGED,
    "command r7b": Tier.PAGED,
    "gpt neox": Tier.PAGED,
    "gpt 2": Tier.PAGED,
    "gpt j": Tier.PAGED if HAS_PAGED_GPT_J else Tier.BY_SEQUENCE,
    "falcon 7b": Tier.BY_SEQUENCE,
    "stablelm": Tier.BY_SEQUENCE,
    "opt": Tier.PAGED,
    "nemotron": Tier.PAGED,
    "glm 4": Tier.PAGED,
}

NAMES = [*OWN, *SHARED_WITH_NATIVE]


def tier_of(name: str) -> Tier:
    """Return how a network is expected to run."""
    return OWN[name].tier if name in OWN else SHARED_WITH_NATIVE[name]


def write_network(name: str, folder: Path) -> PreTrainedModel:
    """Save a network as transformers does, with a small tokenizer beside it; returns the network in float32."""
    if name not in OWN:
        return torch_network(name, folder)
    network = OWN[name]
    model_class = getattr(transformers, network.architecture)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**SHARED | network.config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    byte_level_tokenizer(VOCAB_SIZE).save(str(folder / "tokenizer.json"))
    return model
