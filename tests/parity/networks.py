"""
The networks of every family that is compared with `transformers`: architectures and values of their configs.

After a change, `python -m tests.parity.references NAME` writes the references of a network.
"""

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

LONGROPE = {"rope_type": "longrope", "rope_theta": 500.0}
PHI = {"hidden_size": 160, "num_attention_heads": 5, "num_key_value_heads": 1, "pad_token_id": 0}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32}
MINISTRAL3_ROPE = YARN | {
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
SMALL_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 224,
    "patch_size": 14,
}
QWEN_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
MROPE = {"rope_type": "default", "rope_theta": 500.0}
PIXTRAL = SMALL_VISION | {"model_type": "pixtral", "head_dim": 16}


def longrope(num_pairs: int, original: int, **others: object) -> dict[str, object]:
    """Return the parts of a config with divisors that differ for each pair of values that turns."""
    factors = {
        "short_factor": [1 + 0.25 * pair for pair in range(num_pairs)],
        "long_factor": [2 + 0.5 * pair for pair in range(num_pairs)],
    }
    return {"rope_parameters": LONGROPE | factors | others, "original_max_position_embeddings": original}


ABSENT = "absent"
"""Removes a key of `SHAPE` that the class of a config does not accept."""
GEMMA2 = {
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 20.0,
    "sliding_window": 17,
    "tie_word_embeddings": True,
}
GEMMA4_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"] * 2
GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": GEMMA4_LAYERS,
    "head_dim": 32,
    "num_key_value_heads": 2,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 17,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "final_logit_softcapping": 20.0,
    "tie_word_embeddings": True,
}
"""Two shapes of heads, inputs by layer from a table of their own."""
ABSENT = "absent"
"""Removes a key of `SHAPE` that the class of a config does not accept."""
NO_HEAD_DIM = {"head_dim": ABSENT}
ONE_KEY_A_HEAD = {"num_key_value_heads": None, "n_inner": 96}
OPT = {"word_embed_proj_dim": 80, "head_dim": 16} | ONE_KEY_A_HEAD
EXPERTS = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
ROUTED = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 1.8,
    "first_k_dense_replace": 1,
}
"""Experts with the keys of DeepSeek-V3."""
NAMED_EXPERTS = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "num_shared_experts": 1}
LAGUNA = {
    "num_hidden_layers": 4,
    "layer_types": ["full_attention"] + ["sliding_attention"] * 3,
    "num_attention_heads_per_layer": [4, 6, 6, 2],
    "sliding_window": 17,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "moe_routed_scaling_factor": 2.5,
    "rope_parameters": {
        "full_attention": YARN | {"partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
}
LATENT: dict[str, object] = {
    "head_dim": ABSENT,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 0.02,
    "pad_token_id": 0,
}
"""Latent attention; its own norms have another epsilon."""
DEEPSEEK_YARN = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}
INDEXER = {"index_n_heads": 2, "index_head_dim": 32}
BLOOM = {**dict.fromkeys(SHAPE, ABSENT), "vocab_size": VOCAB_SIZE, "hidden_size": 128, "n_head": 8, "n_layer": 3}
GRANITE_EXPERTS = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "attention_multiplier": 0.1,
    "logits_scaling": 8.0,
}
SSD = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 16}
GRANITE_HYBRID = SSD | {
    "num_local_experts": 0,
    "shared_intermediate_size": 96,
    "layer_types": ["mamba", "attention", "mamba"],
    "head_dim": 16,
    "attention_multiplier": 0.1,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
NEMOTRON_H = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 16,
    "time_step_min": 1e-9,
    "pad_token_id": 0,
}
LFM2 = NO_HEAD_DIM | {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}

DELTA = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
    "pad_token_id": 0,
}
"""Layers with the gated delta rule, with three value heads a key head."""
DELTA_EXPERTS = DELTA | {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
KIMI_LINEAR = {
    "num_hidden_layers": 4,
    "layer_types": DELTA["layer_types"],
    "linear_num_heads": 4,
    "linear_head_dim": 32,
    "q_lora_rank": None,
    "num_experts": 12,
    "num_experts_per_token": 3,
    "moe_intermediate_size": 32,
    "num_shared_experts": 2,
    "num_expert_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 1.8,
}

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
    "qwen 3 next": ("Qwen3NextForCausalLM", DELTA_EXPERTS),
    "qwen 3.5": ("Qwen3_5ForCausalLM", DELTA | {"tie_word_embeddings": True}),
    "qwen 3.5 vl": (
        "Qwen3_5ForConditionalGeneration",
        DELTA | {"linear_key_head_dim": 64, "vision_config": QWEN_VISION | {"num_position_embeddings": 16}},
    ),
    "qwen 3.5 moe": ("Qwen3_5MoeForCausalLM", DELTA_EXPERTS),
    "olmo hybrid": (
        "OlmoHybridForCausalLM",
        DELTA | {"linear_key_head_dim": 48, "rms_norm_eps": 1e-4, "rope_parameters": MROPE},
    ),
    "olmo hybrid, no positions": ("OlmoHybridForCausalLM", DELTA | {"rope_parameters": None}),
    "kimi linear": ("KimiLinearForCausalLM", LATENT | KIMI_LINEAR),
    "glm 4.5": ("Glm4MoeForCausalLM", ROUTED | {"attention_bias": True, "use_qk_norm": True, "pad_token_id": 0}),
    "glm 4.5 air": ("Glm4MoeForCausalLM", ROUTED | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    "ernie 4.5 moe": (
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": 10,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "pad_token_id": 0,
        },
    ),
    "minimax m2": (
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 10, "num_experts_per_tok": 3, "rotary_dim": 16, "intermediate_size": 32},
    ),
    "dots 1": ("Dots1ForCausalLM", ROUTED | {"norm_topk_prob": True, "n_group": 1, "topk_group": 1}),
    "exaone moe": ("ExaoneMoeForCausalLM", NAMED_EXPERTS | {"num_hidden_layers": 4, "sliding_window": 17}),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", {"pad_token_id": 0}),
    "hunyuan moe": ("HunYuanMoEV1ForCausalLM", {"num_experts": 6, "moe_topk": 2, "pad_token_id": 0}),
    "hy 3": ("HYV3ForCausalLM", NAMED_EXPERTS),
    "laguna": ("LagunaForCausalLM", LAGUNA),
    "laguna, gates by number": (
        "LagunaForCausalLM",
        LAGUNA
        | {
            "gating": "per-element",
            "layer_types": ["full_attention"] * 4,
            "num_attention_heads_per_layer": None,
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
            "moe_router_logit_softcapping": 2.0,
            "attention_bias": True,
        },
    ),
    "trinity": (
        "AfmoeForCausalLM",
        NAMED_EXPERTS
        | {"num_hidden_layers": 4, "sliding_window": 17, "num_shared_experts": 2, "route_scale": 1.8}
        | {"mup_enabled": True},
    ),
    "lfm 2": ("Lfm2ForCausalLM", LFM2 | {"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.2}),
    "lfm 2, with images": (
        "Lfm2VlForConditionalGeneration",
        LFM2 | {"vision_config": {key: SMALL_VISION[key] for key in SMALL_VISION if key != "image_size"}},
    ),
    "lfm 2 moe": (
        "Lfm2MoeForCausalLM",
        LFM2
        | {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "num_dense_layers": 1}
        | {"routed_scaling_factor": 1.3},
    ),
    "lfm 3": (
        "Lfm3ForCausalLM",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
            "sliding_window": 17,
        },
    ),
    "deepseek v2": (
        "DeepseekV2ForCausalLM",
        LATENT
        | ROUTED
        | {"topk_method": "group_limited_greedy", "rope_parameters": DEEPSEEK_YARN, "attention_bias": True},
    ),
    "deepseek v2 lite": ("DeepseekV2ForCausalLM", LATENT | ROUTED | {"q_lora_rank": None}),
    "deepseek v3": ("DeepseekV3ForCausalLM", LATENT | ROUTED | {"rope_parameters": DEEPSEEK_YARN}),
    "deepseek v3.2": ("DeepseekV32ForCausalLM", LATENT | ROUTED | INDEXER),
    "glm 4.7 flash": ("Glm4MoeLiteForCausalLM", LATENT | ROUTED | {"n_group": 1, "topk_group": 1}),
    "glm 5": ("GlmMoeDsaForCausalLM", LATENT | ROUTED | INDEXER),
    "minicpm 3": (
        "MiniCPM3ForCausalLM",
        LATENT | longrope(8, 64) | {"v_head_dim": None, "tie_word_embeddings": True},
    ),
    "mistral 4": (
        "Mistral3ForConditionalGeneration",
        LATENT
        | ROUTED
        | {"model_type": "mistral4", "first_k_dense_replace": 0, "vision_config": PIXTRAL}
        | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
    ),
    "bloom": ("BloomForCausalLM", BLOOM),
    "mpt": (
        "MptForCausalLM",
        {**dict.fromkeys(SHAPE, ABSENT), "vocab_size": VOCAB_SIZE, "d_model": 96, "n_heads": 6, "n_layers": 3}
        | {"attn_config": {"clip_qkv": 1.5}, "max_seq_len": 128, "expansion_ratio": 4},
    ),
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
    "llama, yarn": ("LlamaForCausalLM", {"rope_parameters": YARN}),
    "qwen 2, yarn with an exact ramp": ("Qwen2ForCausalLM", {"rope_parameters": YARN | {"truncate": False}}),
    "phi 3, sliding window": ("Phi3ForCausalLM", PHI | {"sliding_window": 17}),
    "phi 3.5, long factors": ("Phi3ForCausalLM", PHI | longrope(16, 64)),
    "phi 3.5, short factors": ("Phi3ForCausalLM", PHI | longrope(16, 112)),
    "phi 4 mini": (
        "Phi3ForCausalLM",
        PHI | longrope(12, 64, partial_rotary_factor=0.75) | {"num_hidden_layers": 1, "tie_word_embeddings": True},
    ),
    "granite": (
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "hidden_size": 80,
            "tie_word_embeddings": True,
        },
    ),
    "olmoe": ("OlmoeForCausalLM", NO_HEAD_DIM | {"num_experts": 10, "num_experts_per_tok": 3}),
    "olmoe, clipped": ("OlmoeForCausalLM", NO_HEAD_DIM | {"num_experts": 6, "num_experts_per_tok": 2, "clip_qkv": 0.8}),
    "granite moe": (
        "GraniteMoeForCausalLM",
        GRANITE_EXPERTS | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "tie_word_embeddings": True},
    ),
    "granite moe, shared": ("GraniteMoeSharedForCausalLM", GRANITE_EXPERTS | {"shared_intermediate_size": 64}),
    "gpt oss": (
        "GptOssForCausalLM",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 17,
            "swiglu_limit": 0.5,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
    "phi 3.5 moe": (
        "PhimoeForCausalLM",
        {"num_local_experts": 6, "attention_bias": True, "lm_head_bias": True, "head_dim": 16}
        | longrope(8, 112, short_mscale=1.25, long_mscale=1.25, original_max_position_embeddings=112),
    ),
    "granite, biases": ("GraniteForCausalLM", {"attention_bias": True, "residual_multiplier": 2.0}),
    "smollm 3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 5, "hidden_size": 96, "head_dim": 64}),
    "smollm 3, layers named": ("SmolLM3ForCausalLM", {"no_rope_layers": [0, 1, 1]}),
    "gemma": (
        "GemmaForCausalLM",
        {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 80, "vocab_size": 331},
    ),
    "gemma 3, with images": (
        "Gemma3ForConditionalGeneration",
        {
            "layer_types": GEMMA3_LAYERS,
            "rope_parameters": GEMMA3_ROPE,
            "sliding_window": 17,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
            "vision_config": SMALL_VISION,
        },
    ),
    "mistral small 3": (
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 48, "vision_config": PIXTRAL},
    ),
    "ministral 3": (
        "Mistral3ForConditionalGeneration",
        {
            "model_type": "ministral3",
            "rope_parameters": MINISTRAL3_ROPE,
            "max_position_embeddings": 512,
            "vision_config": PIXTRAL,
        },
    ),
    "ministral": (
        "MinistralForCausalLM",
        {"sliding_window": 17, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "glm 4": ("GlmForCausalLM", {"attention_bias": True, "head_dim": 64, "pad_token_id": 0}),
    "glm 4, 0414": ("Glm4ForCausalLM", {"attention_bias": True, "hidden_size": 96, "pad_token_id": 0}),
    "ernie 4.5": ("Ernie4_5ForCausalLM", {"tie_word_embeddings": True, "pad_token_id": 0}),
    "arcee": ("ArceeForCausalLM", {"hidden_act": "relu2"}),
    "apertus": ("ApertusForCausalLM", {"rope_parameters": MROPE, "pad_token_id": 0}),
    "seed oss": ("SeedOssForCausalLM", {"pad_token_id": 0}),
    "granite 4, dense": (
        "GraniteMoeHybridForCausalLM",
        {
            "num_local_experts": 0,
            "layer_types": ["full_attention"] * 3,
            "position_embedding_type": "rope",
            "shared_intermediate_size": 96,
            "head_dim": 16,
            "attention_multiplier": 0.1,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        },
    ),
    "granite 4 h": ("GraniteMoeHybridForCausalLM", GRANITE_HYBRID),
    "granite 4 h, experts": (
        "GraniteMoeHybridForCausalLM",
        GRANITE_HYBRID | {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32},
    ),
    "bamba": ("BambaForCausalLM", SSD | {"attn_layer_indices": [1], "pad_token_id": 0}),
    "falcon h1": (
        "FalconH1ForCausalLM",
        SSD
        | {
            "mamba_d_ssm": 128,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "attention_in_multiplier": 1.25,
            "attention_out_multiplier": 0.75,
            "ssm_in_multiplier": 1.5,
            "ssm_out_multiplier": 0.5,
            "key_multiplier": 0.5,
            "mlp_multipliers": [1.5, 0.75],
            "ssm_multipliers": [0.75, 1.25, 1.5, 0.5, 2.0],
            "embedding_multiplier": 5.0,
            "lm_head_multiplier": 0.5,
            "pad_token_id": 0,
        },
    ),
    "falcon h1, no norm": ("FalconH1ForCausalLM", SSD | {"mamba_d_ssm": 128, "pad_token_id": 0}),
    "mamba 2": (
        "Mamba2ForCausalLM",
        {**dict.fromkeys(SHAPE, ABSENT), "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 3}
        | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "chunk_size": 16},
    ),
    "nemotron h": (
        "NemotronHForCausalLM",
        NEMOTRON_H | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"]},
    ),
    "nemotron 3": (
        "NemotronHForCausalLM",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 64,
            "routed_scaling_factor": 2.5,
        },
    ),
    "nemotron 3, latent": (
        "NemotronHForCausalLM",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 64,
            "moe_latent_size": 32,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "qwen 2.5 vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {"head_dim": None, "vision_config": QWEN_VISION, "rope_parameters": MROPE | {"mrope_section": [2, 3, 3]}},
    ),
    "qwen 3 vl": (
        "Qwen3VLForConditionalGeneration",
        {"vision_config": QWEN_VISION, "rope_parameters": MROPE | {"mrope_section": [6, 5, 5]}},
    ),
    "llama, biases everywhere": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "gemma 2": ("Gemma2ForCausalLM", GEMMA2 | {"query_pre_attn_scalar": 64, "head_dim": 64, "num_hidden_layers": 4}),
    "gemma 2, no softcap of logits": ("Gemma2ForCausalLM", GEMMA2 | {"final_logit_softcapping": None}),
    "vaultgemma": ("VaultGemmaForCausalLM", GEMMA2 | {"hidden_size": 80}),
    "muse glimmer": (
        "MuseGlimmerForConditionalGeneration",
        {
            "num_hidden_layers": 4,
            "sliding_window": 17,
            "rms_norm_eps": 0.02,
            "output_multiplier": 0.5,
            "rope_parameters": MROPE,
            "vision_config": SMALL_VISION | {"pos_emb_height": 4, "pos_emb_width": 4},
            "beside_text_config": {"out_hidden_size": 128, "projector_hidden_size": 32},
        },
    ),
    "gemma 4": ("Gemma4ForCausalLM", GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "gemma 4, experts": (
        "Gemma4ForCausalLM",
        GEMMA4
        | {
            "num_hidden_layers": 3,
            "layer_types": GEMMA4_LAYERS[:3],
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 10,
            "top_k_experts": 3,
            "moe_intermediate_size": 32,
        },
    ),
    "olmo": ("OlmoForCausalLM", {"hidden_size": 128, "clip_qkv": 1.5, "pad_token_id": 0}),
    "olmo, biases": ("OlmoForCausalLM", {"hidden_size": 128, "attention_bias": True, "pad_token_id": 0}),
    "olmo 2": ("Olmo2ForCausalLM", {"hidden_size": 128, "vocab_size": 331}),
    "olmo 3": (
        "Olmo3ForCausalLM",
        {
            "hidden_size": 128,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 17,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": YARN,
            },
        },
    ),
    "exaone 4": (
        "Exaone4ForCausalLM",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "rope_parameters": LLAMA3_ROPE},
    ),
    "exaone 4, windows": ("Exaone4ForCausalLM", {"sliding_window": 17, "num_hidden_layers": 4, "head_dim": 64}),
    "exaone 4.5": (
        "Exaone4_5_ForConditionalGeneration",
        {
            "model_type": "exaone4",
            "sliding_window": 17,
            "num_hidden_layers": 4,
            "vision_config": QWEN_VISION | {"num_key_value_heads": 2},
        },
    ),
    "starcoder 2": (
        "Starcoder2ForCausalLM",
        {
            "hidden_size": 144,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 48,
            "sliding_window": 4096,
        },
    ),
    "starcoder 2, window": (
        "Starcoder2ForCausalLM",
        {"hidden_size": 128, "use_bias": False, "sliding_window": 17, "num_hidden_layers": 1, "vocab_size": 331},
    ),
    "command r": ("CohereForCausalLM", {"hidden_size": 128, "logit_scale": 0.25, "pad_token_id": 0}),
    "command r+": ("CohereForCausalLM", {"hidden_size": 128, "use_qk_norm": True, "pad_token_id": 0}),
    "command r7b": (
        "Cohere2ForCausalLM",
        {"hidden_size": 128, "num_hidden_layers": 4, "sliding_window": 17, "pad_token_id": 0},
    ),
    "stablelm": ("StableLmForCausalLM", {"hidden_size": 128, "use_qkv_bias": True}),
    "stablelm, norms by head": (
        "StableLmForCausalLM",
        {"hidden_size": 128, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "stablelm, parallel": (
        "StableLmForCausalLM",
        {
            "hidden_size": 128,
            "use_parallel_residual": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    ),
    "phi 2": ("PhiForCausalLM", {"hidden_size": 160, "num_attention_heads": 2, "head_dim": 80} | ONE_KEY_A_HEAD),
    "gpt neox": ("GPTNeoXForCausalLM", {"hidden_size": 128} | ONE_KEY_A_HEAD),
    "gpt neox, sequential": (
        "GPTNeoXForCausalLM",
        {"hidden_size": 80, "num_attention_heads": 1, "head_dim": 80, "use_parallel_residual": False} | ONE_KEY_A_HEAD,
    ),
    "gpt 2": ("GPT2LMHeadModel", {"hidden_size": 144, "num_attention_heads": 3, "head_dim": 48} | ONE_KEY_A_HEAD),
    "gpt j": ("GPTJForCausalLM", {"hidden_size": 128, "rotary_dim": 8} | ONE_KEY_A_HEAD),
    "falcon 7b": ("FalconForCausalLM", {"hidden_size": 128, "ffn_hidden_size": 96} | NO_HEAD_DIM),
    "falcon 40b": (
        "FalconForCausalLM",
        {"hidden_size": 192, "num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True}
        | NO_HEAD_DIM,
    ),
    "falcon 2": (
        "FalconForCausalLM",
        {"hidden_size": 128, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}
        | NO_HEAD_DIM,
    ),
    "falcon rw": (
        "FalconForCausalLM",
        {"hidden_size": 128, "alibi": True, "parallel_attn": False, "multi_query": False, "bias": True} | NO_HEAD_DIM,
    ),
    "nemotron": ("NemotronForCausalLM", {"hidden_size": 80, "attention_bias": True, "mlp_bias": True}),
    "opt": ("OPTForCausalLM", {"hidden_size": 80, "ffn_dim": 96, "num_attention_heads": 5, "pad_token_id": 1} | OPT),
}

ORACLES: dict[str, tuple[str, dict[str, object]]] = {
    "llama, as many kv heads": ("LlamaForCausalLM", {"num_key_value_heads": 4, "head_dim": 16}),
    "qwen 2, as many kv heads": ("Qwen2ForCausalLM", {"num_key_value_heads": 4, "head_dim": 16}),
    "granite, as minicpm": (
        "GraniteForCausalLM",
        {
            "attention_multiplier": 32**-0.5,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 1.4 / 3**0.5,
            "logits_scaling": 8.0,
        },
    ),
}
"""Networks that only `test_layouts` compares with."""

LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
ROPE_OVERRIDES: dict[str, tuple[str, dict[str, object]]] = {
    "llama, linear": ("llama", LINEAR),
    "llama, yarn": ("llama", YARN | {"factor": 8.0}),
    "llama, dynamic": ("llama", {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}),
    "llama 3 rope in place of none": ("llama", LLAMA3_ROPE),
    "yarn in place of llama 3 rope": ("llama 3 rope", YARN),
    "gemma 3, the global rope": ("gemma 3", GEMMA3_ROPE | {"full_attention": LINEAR}),
}
"""Networks, and the rope parameters in place of their own."""
