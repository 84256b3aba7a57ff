"""Read a `config.json` or GGUF metadata as a `ModelSpec`: what most families share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.attention import AttentionShape
from headrace.inference.models.experts import MoeSpec, Scoring
from headrace.inference.models.families.family import GGUF_TENSORS, Family, GgufHeader
from headrace.inference.models.families.rope_config import rope_from_config, rope_from_gguf, scaled_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.registry import refuse_other_quantization
from headrace.inference.models.spec import Activation, ModelSpec

ACTIVATIONS: Final[Mapping[str, Activation]] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu": "gelu_erf",
        "relu": "relu",
        "relu2": "relu2",
        "xielu": "xielu",
    }
)
"""Activations by their names in configs."""
_GATING: Final[tuple[Scoring | None, ...]] = (None, "softmax", "sigmoid", "softmax", "sqrt_softplus")
"""Scores of experts by `expert_gating_func` of GGUF files; 0: that of the family, 3: of the chosen experts."""
MAX_LAYERS: Final = 1024
_MAX_SIZE: Final = 1 << 24
"""Largest size in a config.json: lists of this length are allocated before any tensor is checked."""
_MAX_EXPERTS: Final = 65536
"""Maximum number of experts in all layers together."""
_MAX_GROUPS: Final = 64
"""Maximum number of groups of experts in the native runtime."""
_FOREIGN_PARTS: Final = {
    "vision_config": ("an image encoder", ()),
    "audio_config": ("an audio encoder", ()),
    "attn_logit_softcapping": ("softcapping of attention scores", ()),
    "final_logit_softcapping": ("softcapping of logits", ()),
    "mlp_bias": ("biases in the MLP", (False,)),
    "clip_qkv": ("clipping of q, k and v", ()),
    "attention_sinks": ("attention sinks", (False,)),
    "use_bidirectional_attention": ("bidirectional attention", (False,)),
}
"""Keys of config.json that would give wrong answers if they were ignored."""
_FOREIGN_GGUF_PARTS: Final = {
    "attn_logit_softcapping": ("softcapping of attention scores", (0.0,)),
    "final_logit_softcapping": ("softcapping of logits", (0.0,)),
    "logit_scale": ("scaling of logits", (0.0, 1.0)),
    "residual_scale": ("scaling of residuals", (0.0, 1.0)),
    "embedding_scale": ("scaling of embeddings", (0.0, 1.0)),
    "attention.scale": ("a scale of attention scores", (0.0,)),
}
_GGUF_BIASED: Final = {"qkv_bias": "q", "o_bias": "o", "mlp_bias": "up", "head_bias": "lm_head"}
"""The weight beside whose tensor a GGUF file stores each kind of bias."""


def read_config(family: Family, config: Fields) -> ModelSpec:
    config = config.with_defaults(family.defaults).renamed(family.keys)
    for key, (value, part) in family.refused.items():
        config.refuse(key, part, unless=(value,))
    if family.activation_key:
        fine = (name for name, kind in ACTIVATIONS.items() if family.reads_activation or kind == family.activation)
        config.refuse(family.activation_key, "the activation", unless=tuple(fine))
    return (family.spec_from_config or config_spec)(family, config)


def config_spec(family: Family, config: Fields, *, moe: MoeSpec | None = None) -> ModelSpec:
    """Read the keys of config.json that all families share, and refuse parts that none of them supports."""
    flags = config
    config = config.without(*{"mlp_bias"}.intersection(family.bias_flags.values()))
    refuse_other_quantization(config)
    for key, (part, allowed) in _FOREIGN_PARTS.items():
        config.refuse(key, part, unless=allowed)
    for key in ("num_local_experts", "num_experts", "n_routed_experts") if moe is None else ():
        config.refuse(key, "a mixture of experts", unless=(0, 1))
    for fields in (config, config.sub("rope_parameters")) if family.rotary_fraction is None else ():
        fields.refuse("partial_rotary_factor", "a partial rotary embedding in this family", unless=(1.0, 1))
    num_heads = config.whole("num_attention_heads")
    hidden_size = config.whole("hidden_size")
    head_dim = config.whole("head_dim", hidden_size // num_heads)
    rope = rope_from_config(config, head_dim, default_fraction=family.rotary_fraction or 1.0)
    spec = ModelSpec(
        family=family.name,
        num_layers=config.whole("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=config.whole("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.whole("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=config.whole("vocab_size"),
        max_positions=scaled_positions(rope, config.whole("max_position_embeddings", 2048, minimum=2)),
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        ropes=(rope,),
        tie_embeddings=config.flag("tie_word_embeddings", default=False),
        moe=moe,
    )
    activation = ACTIVATIONS[config.text(family.activation_key)] if family.reads_activation else family.activation
    biases = {name: flags.flag(key, default=False) for name, key in family.bias_flags.items()}
    return replace(_checked(spec, config.source), **{"activation": activation, **biases, **family.parts})


def gguf_spec(family: Family, header: GgufHeader, *, moe: MoeSpec | None = None) -> ModelSpec:
    """Read the keys of GGUF metadata that all families share, and refuse parts that none of them supports."""
    fields = header.fields.renamed({"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"})
    for key, (part, allowed) in _FOREIGN_GGUF_PARTS.items():
        fields.refuse(key, part, unless=allowed)
    if moe is None:
        fields.refuse("expert_count", "a mixture of experts", unless=(0,))
    num_heads = fields.whole("attention.head_count")
    hidden_size = fields.whole("embedding_length")
    head_dim = fields.whole("attention.key_length", hidden_size // num_heads)
    if fields.whole("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{fields.source}: value heads that differ in size from key heads are not supported.")
    vocab_size, _ = header.tensor_shapes.get(GGUF_TENSORS["embed"], (0, 0))
    if not vocab_size:
        raise BrokenModel(f"{fields.source} has no tensor {GGUF_TENSORS['embed']}.")
    spec = ModelSpec(
        family=family.name,
        num_layers=fields.whole("block_count") - fields.whole("nextn_predict_layers", 0, minimum=0),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.whole("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=fields.whole("context_length", minimum=2),
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        ropes=(rope_from_gguf(fields, head_dim, header.rope_tensors),),
        tie_embeddings=GGUF_TENSORS["lm_head"] not in header.tensor_shapes,
        moe=moe,
    )
    # The metadata do not say whether there are biases: the first layer's tensors do.
    tensors = {name: family.gguf_tensors[_GGUF_BIASED[name]].replace(".weight", ".bias") for name in family.gguf_biases}
    biases = {
        name: not {tensor, f"blk.0.{tensor}"}.isdisjoint(header.tensor_shapes) for name, tensor in tensors.items()
    }
    return replace(_checked(spec, fields.source), **{"activation": family.activation, **biases, **family.parts})


def _checked(spec: ModelSpec, source: str) -> ModelSpec:
    if spec.num_layers < 1:
        raise BrokenModel(f"{source}: nextn_predict_layers leaves {spec.num_layers} layers; expected at least 1.")
    if spec.num_layers > MAX_LAYERS:
        raise BrokenModel(f"{source}: the network has {spec.num_layers} layers; expected at most {MAX_LAYERS}.")
    sizes = {
        "hidden size": spec.hidden_size,
        "MLP size": spec.intermediate_size,
        "size of all heads": spec.num_heads * spec.head_dim,
        "vocabulary": spec.vocab_size,
        "context": spec.max_positions,
    }
    for name, size in sizes.items():
        if size > _MAX_SIZE:
            raise BrokenModel(f"{source}: the {name} is {size}; expected at most {_MAX_SIZE}.")
    if spec.num_heads % spec.num_kv_heads:
        raise BrokenModel(
            f"{source}: there are {spec.num_heads} query heads; expected a multiple of {spec.num_kv_heads} key heads."
        )
    if (moe := spec.moe) is not None:
        if moe.top_k > moe.num_experts:
            raise BrokenModel(f"{source}: a token takes {moe.top_k} experts; expected at most {moe.num_experts}.")
        if not 1 <= moe.top_groups <= moe.num_groups <= _MAX_GROUPS or moe.factor_scale <= 0:
            raise BrokenModel(
                f"{source}: a token takes {moe.top_groups} of {moe.num_groups} groups of experts, times "
                f"{moe.factor_scale}; expected at most {_MAX_GROUPS} groups and a factor above 0."
            )
        if moe.num_experts % moe.num_groups or moe.top_groups * moe.num_experts < moe.top_k * moe.num_groups:
            raise BrokenModel(
                f"{source}: {moe.num_experts} experts are in {moe.num_groups} groups, of which a token takes "
                f"{moe.top_groups}; expected groups of equal size that hold {moe.top_k} experts."
            )
        if moe.num_experts * spec.num_layers > _MAX_EXPERTS:
            raise BrokenModel(
                f"{source}: {spec.num_layers} layers have {moe.num_experts} experts each; "
                f"expected at most {_MAX_EXPERTS} in the whole network."
            )
    if spec.head_dim % 2 or spec.head_dim < 4:
        raise BrokenModel(f"{source}: the head size is {spec.head_dim}; expected an even number of at least 4.")
    return spec


def config_experts(config: Fields, *, num_experts: int, top_k: int, **others: object) -> MoeSpec:
    """Read experts that have the width of `intermediate_size`; the numbers are the defaults of a family."""
    return MoeSpec(
        num_experts=config.whole("num_local_experts", num_experts),
        top_k=config.whole("num_experts_per_tok", top_k),
        expert_size=config.whole("intermediate_size"),
        **{"renormalize": True, **others},  # type: ignore[arg-type]
    )


def config_router(config: Fields, **values: object) -> MoeSpec:
    """
    Read experts with the keys of DeepSeek-V3, whose scores are sigmoids and are chosen with biases.

    `values` are fields of the family. The first layers are dense, or those that `mlp_layer_types` names.
    """
    expert_size = config.whole("moe_intermediate_size")
    num_layers = min(config.whole("num_hidden_layers"), MAX_LAYERS)
    first = config.whole("first_k_dense_replace", 0, minimum=0)
    kinds = config.texts("mlp_layer_types") or tuple("dense" if i < first else "sparse" for i in range(num_layers))
    if len(kinds) != num_layers or not {"dense", "sparse"}.issuperset(kinds):
        raise BrokenModel(
            f"{config.source}: mlp_layer_types is {list(kinds)!r:.200}; expected dense or sparse for each of the "
            f"{num_layers} layers."
        )
    read = {
        "num_experts": config.whole("n_routed_experts"),
        "top_k": config.whole("num_experts_per_tok"),
        "expert_size": expert_size,
        "layers": tuple(kind == "sparse" for kind in kinds) if "dense" in kinds else (),
        "scoring": "sigmoid",
        "choice_bias": True,
        "num_groups": config.whole("n_group", 1),
        "top_groups": config.whole("topk_group", 1),
        "renormalize": config.flag("norm_topk_prob", default=True),
        "sum_floor": 1e-20,
        "factor_scale": config.positive("routed_scaling_factor", 1.0),
        "shared_size": expert_size * config.whole("n_shared_experts", 0, minimum=0),
    }
    return MoeSpec(**{**read, **values})  # type: ignore[arg-type]


def gguf_experts(
    header: GgufHeader, *, renormalize: bool, scoring: Scoring = "softmax", sum_floor: float = 0.0
) -> MoeSpec:
    """Read the experts of GGUF metadata; they have the width of a dense MLP unless the file says otherwise."""
    fields = header.fields
    gating = fields.whole("expert_gating_func", 0, minimum=0)
    if gating >= len(_GATING):
        fields.refuse("expert_gating_func", "another score of experts", unless=tuple(range(len(_GATING))))
    num_layers = fields.whole("block_count") - fields.whole("nextn_predict_layers", 0, minimum=0)
    routed = tuple(
        f"blk.{layer}.{GGUF_TENSORS['router']}" in header.tensor_shapes for layer in range(min(num_layers, MAX_LAYERS))
    )
    shared = GGUF_TENSORS["shared_up"]
    sizes = {rows for name, (rows, _) in header.tensor_shapes.items() if name.endswith(shared)}
    return MoeSpec(
        num_experts=fields.whole("expert_count"),
        top_k=fields.whole("expert_used_count"),
        expert_size=fields.whole("expert_feed_forward_length", fields.whole("feed_forward_length")),
        layers=() if all(routed) else routed,
        scoring=_GATING[gating] or scoring,
        choice_bias=any(name.removesuffix(".bias").endswith(".exp_probs_b") for name in header.tensor_shapes),
        num_groups=fields.whole("expert_group_count", 1, minimum=0) or 1,
        top_groups=fields.whole("expert_group_used_count", 1, minimum=0) or 1,
        renormalize=fields.flag("expert_weights_norm", default=renormalize),
        sum_floor=sum_floor,
        factor_scale=fields.number("expert_weights_scale", 1.0) or 1.0,
        latent_size=fields.whole("moe_latent_size", 0, minimum=0),
        shared_size=max(sizes, default=0),
        has_shared_router=any(name.endswith(GGUF_TENSORS["shared_router"]) for name in header.tensor_shapes),
    )


def gguf_attention_layers(header: GgufHeader) -> tuple[GgufHeader, tuple[bool, ...]]:
    """
    Return the layers with attention of a file that lists the KV heads of each layer: those that have some.

    The header that is returned has the number of KV heads of these layers, which must be the same in all.
    """
    fields = header.fields
    key = "attention.head_count_kv"
    if isinstance(fields.values.get(key), int | None):
        return header, (True,) * min(fields.whole("block_count"), MAX_LAYERS)
    counts = fields.numbers(key)
    others = {count for count in counts if count}
    if len(counts) != fields.whole("block_count") or len(others) != 1:
        raise BrokenModel(
            f"{fields.source}: {key} is {list(counts)!r:.200}; expected the same number, or 0, for each layer."
        )
    fields = Fields({**fields.values, key: int(others.pop())}, fields.source)
    return replace(header, fields=fields), tuple(count > 0 for count in counts)


def check_heads(shapes: Iterable[AttentionShape], source: str) -> None:
    """Refuse heads of layers that cannot be."""
    for shape in shapes:
        is_fine = shape.num_heads % shape.num_kv_heads == shape.head_dim % 2 == 0
        if not is_fine or not 4 <= shape.head_dim <= 1 << 16 or shape.query_size > _MAX_SIZE:
            raise BrokenModel(
                f"{source}: a layer has {shape.num_heads} query heads for {shape.num_kv_heads} KV heads of "
                f"{shape.head_dim} numbers; expected a multiple, and an even number of at least 4."
            )


def with_query_heads(spec: ModelSpec, num_heads: Sequence[int], source: str) -> ModelSpec:
    """Set the number of query heads of each layer; that of the network is the largest of them."""
    shape, spec = spec.attention(0), replace(spec, num_heads=max(num_heads))
    if len(set(num_heads)) == 1:
        return _checked(spec, source)
    shapes = tuple(replace(shape, num_heads=count) for count in num_heads)
    check_heads(shapes, source)
    return replace(spec, attention_shapes=shapes)


def is_null(config: Fields, key: str) -> bool:
    """Return whether a config says null, where families give an absent key another meaning."""
    return key in config.values and not config.has(key)


def uniform_window(spec: ModelSpec, window: int) -> ModelSpec:
    """Set the same window on all layers; 0 for none."""
    return replace(spec, windows=(window,) * spec.num_layers) if window else spec


def layer_windows(config: Fields, spec: ModelSpec, window: int, default: tuple[bool, ...]) -> ModelSpec:
    """Set the window of the sliding layers: those in `layer_types`, or `default` where that is absent."""
    slides = default
    kinds = config.texts("layer_types")
    if kinds:
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise UnsupportedModel(f"{config.source}: layers of type {', '.join(sorted(unknown))} are not supported.")
        if len(kinds) != spec.num_layers:
            raise BrokenModel(f"{config.source}: layer_types has {len(kinds)} entries for {spec.num_layers} layers.")
        slides = tuple(kind == "sliding_attention" for kind in kinds)
    if not any(slides) or not window:
        return spec
    return replace(spec, windows=tuple(window if sliding else 0 for sliding in slides))


def listed_slides(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return which layers of a GGUF file have a window; empty if the file does not list them."""
    key = "attention.sliding_window_pattern"
    value = fields.values.get(key)
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(value, list):
        return ()
    if len(value) != num_layers:
        raise BrokenModel(f"{fields.source}: {key} has {len(value)} values; expected one for each of {num_layers}.")
    return tuple(map(bool, value))


def sliding_layers(num_layers: int, pattern: int) -> tuple[bool, ...]:
    """Return which layers have a window: all but every `pattern`-th."""
    return tuple((layer + 1) % pattern != 0 for layer in range(num_layers))


def pattern_windows(spec: ModelSpec, window: int, pattern: int) -> ModelSpec:
    """Set the window of all layers but every `pattern`-th: GGUF files name only its size."""
    return replace(spec, windows=tuple(window if slides else 0 for slides in sliding_layers(spec.num_layers, pattern)))


def without_far_positions(spec: ModelSpec) -> ModelSpec:
    """Remove the rotary embedding of the layers with full attention."""
    return replace(spec, rope_of_layer=tuple(0 if spec.window(layer) else -1 for layer in range(spec.num_layers)))


def with_local_rope(spec: ModelSpec) -> ModelSpec:
    """Give the layers with a window the second rotary embedding."""
    return replace(spec, rope_of_layer=tuple(int(spec.window(layer) > 0) for layer in range(spec.num_layers)))


def without_positions(spec: ModelSpec) -> ModelSpec:
    return replace(spec, rope_of_layer=(-1,) * spec.num_layers)
