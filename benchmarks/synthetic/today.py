"""
The shapes of today's hybrid models, as the keys and tensors of their GGUF files.

The dimensions are those of the released configurations; the names are those that llama.cpp's `src/models` reads.
"""

from collections.abc import Callable
from dataclasses import dataclass

Dims = tuple[int, ...]
Value = bool | int | float | list[int] | list[bool]

FLOATS = frozenset({"ffn_gate_inp", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm", "shortconv.conv"})
"""Tensors with more than one dimension that files keep in 32 bits."""
BYTES = frozenset({"token_embd", "output", "ssm_alpha", "ssm_beta", "per_layer_model_proj"})
"""Tensors that files keep in 8 bits."""
VOCAB = -1
"""Stands for the size of the vocabulary in dimensions."""
BARE = frozenset({"ssm_a", "ssm_d"})
"""Tensors whose names have no suffix."""


@dataclass(frozen=True, kw_only=True)
class GgufShape:
    """A model as a GGUF file; `keys` and `layer` get the number of layers that the file has."""

    architecture: str
    layers: int
    hidden: int
    vocab: int
    keys: Callable[[int], dict[str, Value]]
    """Keys of the metadata, without the architecture in front."""
    layer: Callable[[int, int], dict[str, Dims]]
    """Tensors of a layer, by its index and the number of layers."""
    outer: Callable[[int], dict[str, Dims]]
    """Tensors of no layer, by the number of layers."""
    experts: int = 0
    top_k: int = 0


def mlp(hidden: int, inner: int, suffix: str = "", experts: int = 0) -> dict[str, Dims]:
    """Return gate, up and down of an MLP, or of a stack of experts."""
    stack = (experts,) if experts else ()
    return {
        f"ffn_gate{suffix}": (*stack, inner, hidden),
        f"ffn_up{suffix}": (*stack, inner, hidden),
        f"ffn_down{suffix}": (*stack, hidden, inner),
    }


def attention(hidden: int, queries: int, keys: int, *, norm: int = 0, output: int = 0) -> dict[str, Dims]:
    """Return the matrices of attention; `output` is the width that goes into the last one, `norm` that of q's norm."""
    dims: dict[str, Dims] = {
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, output or queries),
    }
    return dims | ({"attn_q_norm": (norm,), "attn_k_norm": (norm,)} if norm else {})


def qwen35(
    *, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, value_heads: int, experts: int = 0, tied: bool
) -> GgufShape:
    """Return a Qwen3.5: three layers of the gated delta rule, then one of attention with an output gate."""
    vocab, size, key_heads, interval = 248320, 128, 16, 4
    keys_width, values_width = size * key_heads, size * value_heads

    def keys(_count: int) -> dict[str, Value]:
        moe: dict[str, Value] = {
            "expert_count": experts,
            "expert_used_count": 8,
            "expert_feed_forward_length": inner,
            "expert_shared_feed_forward_length": inner,
        }
        return {
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "feed_forward_length": inner,
            "full_attention_interval": interval,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.freq_base": 1e7,
            "ssm.conv_kernel": 4,
            "ssm.group_count": key_heads,
            "ssm.inner_size": values_width,
            "ssm.state_size": size,
            "ssm.time_step_rank": value_heads,
        } | (moe if experts else {})

    def layer(index: int, _count: int) -> dict[str, Dims]:
        dims: dict[str, Dims] = {"attn_norm": (hidden,), "post_attention_norm": (hidden,)}
        if (index + 1) % interval == 0:
            dims |= attention(hidden, 2 * heads * 256, kv_heads * 256, norm=256, output=heads * 256)
        else:
            dims |= {
                "attn_qkv": (2 * keys_width + values_width, hidden),
                "attn_gate": (values_width, hidden),
                "ssm_conv1d": (2 * keys_width + values_width, 4),
                "ssm_dt.bias": (value_heads,),
                "ssm_a": (value_heads,),
                "ssm_alpha": (value_heads, hidden),
                "ssm_beta": (value_heads, hidden),
                "ssm_norm": (size,),
                "ssm_out": (hidden, values_width),
            }
        if not experts:
            return dims | mlp(hidden, inner)
        routers: dict[str, Dims] = {"ffn_gate_inp": (experts, hidden), "ffn_gate_inp_shexp": (hidden,)}
        return dims | routers | mlp(hidden, inner, "_exps", experts) | mlp(hidden, inner, "_shexp")

    def outer(_count: int) -> dict[str, Dims]:
        dims: dict[str, Dims] = {"token_embd": (VOCAB, hidden), "output_norm": (hidden,)}
        return dims if tied else dims | {"output": (VOCAB, hidden)}

    return GgufShape(
        architecture="qwen35moe" if experts else "qwen35",
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        keys=keys,
        layer=layer,
        outer=outer,
        experts=experts,
        top_k=8 if experts else 0,
    )


@dataclass(frozen=True, kw_only=True)
class GemmaSize:
    """The dimensions of a Gemma 4."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    global_kv_heads: int
    interval: int
    window: int
    shared: int = 0
    """Layers at the end without keys and values of their own."""
    embedding: int = 0
    """Width of the embeddings by layer; 0: there are none."""
    experts: int = 0
    expert_size: int = 0

    def is_full(self, index: int) -> bool:
        """Return whether a layer attends to everything."""
        return (index + 1) % self.interval == 0

    def own(self, count: int) -> int:
        """Return the number of layers with keys and values of their own."""
        return count - self.shared * count // self.layers

    def inner_of(self, index: int, count: int) -> int:
        """Return the width of the MLP of a layer."""
        return 2 * self.inner if self.shared and index >= self.own(count) else self.inner

    def keys(self, count: int) -> dict[str, Value]:
        """Return the keys of the metadata."""
        indices = range(count)
        return {
            "attention.head_count": self.heads,
            "attention.head_count_kv": [
                self.global_kv_heads if self.is_full(index) else self.kv_heads for index in indices
            ],
            "attention.key_length": 512,
            "attention.value_length": 512,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": [not self.is_full(index) for index in indices],
            "attention.shared_kv_layers": count - self.own(count),
            "embedding_length_per_layer_input": self.embedding,
            "feed_forward_length": [self.inner_of(index, count) for index in indices] if self.shared else self.inner,
            "final_logit_softcapping": 30.0,
            "rope.dimension_count": 512,
            "rope.dimension_count_swa": 256,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
        } | (
            {"expert_count": self.experts, "expert_used_count": 8, "expert_feed_forward_length": self.expert_size}
            if self.experts
            else {}
        )

    def layer(self, index: int, count: int) -> dict[str, Dims]:
        """Return the tensors of a layer."""
        width = 512 if self.is_full(index) else 256
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        dims: dict[str, Dims] = dict.fromkeys(norms, (self.hidden,)) | {"layer_output_scale": (1,)}
        dims |= attention(
            self.hidden,
            self.heads * width,
            (self.global_kv_heads if self.is_full(index) else self.kv_heads) * width,
            norm=width,
        )
        if index >= self.own(count):
            dims = {name: shape for name, shape in dims.items() if name not in {"attn_k", "attn_v", "attn_k_norm"}}
        elif self.is_full(index) and self.global_kv_heads < self.kv_heads:
            del dims["attn_v"]
        dims |= mlp(self.hidden, self.inner_of(index, count))
        if self.embedding:
            dims |= {
                "inp_gate": (self.embedding, self.hidden),
                "proj": (self.hidden, self.embedding),
                "post_norm": (self.hidden,),
            }
        if self.experts:
            dims |= dict.fromkeys(("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"), (self.hidden,))
            dims |= {"ffn_gate_inp": (self.experts, self.hidden), "ffn_gate_inp.scale": (self.hidden,)}
            dims |= {"ffn_gate_up_exps": (self.experts, 2 * self.expert_size, self.hidden)}
            dims |= {
                "ffn_down_exps": (self.experts, self.hidden, self.expert_size),
                "ffn_down_exps.scale": (self.experts,),
            }
        return dims

    def outer(self, count: int) -> dict[str, Dims]:
        """Return the tensors of no layer."""
        dims: dict[str, Dims] = {
            "token_embd": (VOCAB, self.hidden),
            "output_norm": (self.hidden,),
            "rope_freqs": (256,),
        }
        by_layer: dict[str, Dims] = {
            "per_layer_token_embd": (VOCAB, self.embedding * count),
            "per_layer_model_proj": (self.embedding * count, self.hidden),
            "per_layer_proj_norm": (self.embedding,),
        }
        return dims | by_layer if self.embedding else dims


def gemma4(size: GemmaSize) -> GgufShape:
    """Return a Gemma 4: every `interval`-th layer attends to everything, with heads of 512 instead of 256."""
    return GgufShape(
        architecture="gemma4",
        layers=size.layers,
        hidden=size.hidden,
        vocab=262144,
        keys=size.keys,
        layer=size.layer,
        outer=size.outer,
        experts=size.experts,
        top_k=8 if size.experts else 0,
    )


def lfm2() -> GgufShape:
    """Return LFM2-1.2B: ten layers of short convolutions, six of attention."""
    hidden, inner, attending = 2048, 8192, {2, 5, 8, 10, 12, 14}

    def keys(count: int) -> dict[str, Value]:
        return {
            "attention.head_count": 32,
            "attention.head_count_kv": [8 if index in attending else 0 for index in range(count)],
            "feed_forward_length": inner,
            "rope.freq_base": 1e6,
            "shortconv.l_cache": 3,
        }

    def layer(index: int, _count: int) -> dict[str, Dims]:
        dims: dict[str, Dims] = {"attn_norm": (hidden,), "ffn_norm": (hidden,)}
        conv: dict[str, Dims] = {
            "shortconv.conv": (hidden, 3),
            "shortconv.in_proj": (3 * hidden, hidden),
            "shortconv.out_proj": (hidden, hidden),
        }
        mixer = attention(hidden, hidden, 8 * 64, norm=64) if index in attending else conv
        return dims | mixer | mlp(hidden, inner)

    def outer(_count: int) -> dict[str, Dims]:
        return {"token_embd": (VOCAB, hidden), "token_embd_norm": (hidden,)}

    return GgufShape(architecture="lfm2", layers=16, hidden=hidden, vocab=65536, keys=keys, layer=layer, outer=outer)


def granite_h() -> GgufShape:
    """Return Granite-4.0-H-Tiny: Mamba2 with attention in every tenth layer, and experts."""
    hidden, inner, vocab, experts, heads, state = 1536, 512, 100352, 64, 48, 128
    width = 2 * hidden

    def attends(index: int) -> bool:
        return index % 10 == 5

    def keys(count: int) -> dict[str, Value]:
        return {
            "attention.head_count": 12,
            "attention.head_count_kv": [4 if attends(index) else 0 for index in range(count)],
            "attention.scale": 0.0078125,
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "logit_scale": 6.0,
            "expert_count": experts,
            "expert_used_count": 6,
            "feed_forward_length": inner,
            "expert_shared_feed_forward_length": 1024,
            "rope.freq_base": 1e4,
            "rope.dimension_count": 128,
            "rope.scaling.finetuned": False,
            "ssm.conv_kernel": 4,
            "ssm.group_count": 1,
            "ssm.inner_size": width,
            "ssm.state_size": state,
            "ssm.time_step_rank": heads,
        }

    def layer(index: int, _count: int) -> dict[str, Dims]:
        mamba: dict[str, Dims] = {
            "ssm_in": (2 * width + 2 * state + heads, hidden),
            "ssm_conv1d": (width + 2 * state, 4),
            "ssm_conv1d.bias": (width + 2 * state,),
            "ssm_dt.bias": (heads,),
            "ssm_a": (heads, 1),
            "ssm_d": (heads, 1),
            "ssm_norm": (1, width),
            "ssm_out": (hidden, width),
        }
        mixer = attention(hidden, 12 * 128, 4 * 128) if attends(index) else mamba
        norms: dict[str, Dims] = {"attn_norm": (hidden,), "ffn_norm": (hidden,), "ffn_gate_inp": (experts, hidden)}
        return norms | mixer | mlp(hidden, inner, "_exps", experts) | mlp(hidden, 1024, "_shexp")

    def outer(_count: int) -> dict[str, Dims]:
        return {"token_embd": (VOCAB, hidden), "output_norm": (hidden,)}

    return GgufShape(
        architecture="granitehybrid",
        layers=40,
        hidden=hidden,
        vocab=vocab,
        keys=keys,
        layer=layer,
        outer=outer,
        experts=experts,
        top_k=6,
    )


def glm_flash() -> GgufShape:
    """Return GLM-4.7-Flash: latent attention, one dense layer, then experts chosen by sigmoids."""
    hidden, vocab, heads, rank, query_rank = 2048, 154880, 20, 512, 768
    rope, plain, value, experts, inner = 64, 192, 256, 64, 1536

    def keys(_count: int) -> dict[str, Value]:
        return {
            "attention.head_count": heads,
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": rank,
            "attention.q_lora_rank": query_rank,
            "attention.key_length": rank + rope,
            "attention.value_length": rank,
            "attention.key_length_mla": plain + rope,
            "attention.value_length_mla": value,
            "expert_count": experts,
            "expert_used_count": 4,
            "expert_feed_forward_length": inner,
            "expert_shared_count": 1,
            "expert_gating_func": 2,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.8,
            "feed_forward_length": 10240,
            "leading_dense_block_count": 1,
            "rope.dimension_count": rope,
            "rope.freq_base": 1e6,
        }

    def layer(index: int, _count: int) -> dict[str, Dims]:
        dims: dict[str, Dims] = {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q_a": (query_rank, hidden),
            "attn_q_a_norm": (query_rank,),
            "attn_q_b": (heads * (plain + rope), query_rank),
            "attn_kv_a_mqa": (rank + rope, hidden),
            "attn_kv_a_norm": (rank,),
            "attn_k_b": (heads, rank, plain),
            "attn_v_b": (heads, value, rank),
            "attn_output": (hidden, heads * value),
        }
        if index == 0:
            return dims | mlp(hidden, 10240)
        router: dict[str, Dims] = {"ffn_gate_inp": (experts, hidden), "exp_probs_b.bias": (experts,)}
        return dims | router | mlp(hidden, inner, "_exps", experts) | mlp(hidden, inner, "_shexp")

    def outer(_count: int) -> dict[str, Dims]:
        return {"token_embd": (VOCAB, hidden), "output_norm": (hidden,), "output": (VOCAB, hidden)}

    return GgufShape(
        architecture="deepseek2",
        layers=47,
        hidden=hidden,
        vocab=vocab,
        keys=keys,
        layer=layer,
        outer=outer,
        experts=experts,
        top_k=4,
    )


TODAY = {
    "qwen3.5-4b": qwen35(layers=32, hidden=2560, inner=9216, heads=16, kv_heads=4, value_heads=32, tied=True),
    "qwen3.5-9b": qwen35(layers=32, hidden=4096, inner=12288, heads=16, kv_heads=4, value_heads=32, tied=False),
    "qwen3.6-35b-a3b": qwen35(
        layers=40, hidden=2048, inner=512, heads=16, kv_heads=2, value_heads=32, experts=256, tied=False
    ),
    "gemma-4-e2b": gemma4(
        GemmaSize(
            layers=35, hidden=1536, inner=6144, heads=8, kv_heads=1, global_kv_heads=1, interval=5, window=512,
            shared=20, embedding=256,
        )
    ),
    "gemma-4-26b-a4b": gemma4(
        GemmaSize(
            layers=30, hidden=2816, inner=2112, heads=16, kv_heads=8, global_kv_heads=2, interval=6, window=1024,
            experts=128, expert_size=704,
        )
    ),
    "lfm2-1.2b": lfm2(),
    "granite-4-h-tiny": granite_h(),
    "glm-4.7-flash": glm_flash(),
}  # fmt: skip
