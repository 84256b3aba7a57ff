"""DeciLM and Nemotron-NAS: Llama, whose layers differ in KV heads and in the width of the MLP, or lack either."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.family import ATTENTION_BIAS, Family, GgufHeader
from headrace.inference.models.families.reading import MAX_LAYERS, check_heads, config_spec, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_LINEAR: Final = "a matrix in place of attention or an MLP"
_REFUSED: Final = {
    "replace_with_linear": (_LINEAR, (False,)),
    "sparsify": ("sparse matrices", ()),
    "window_length": ("windows in this family", ()),
    "num_sink_tokens": ("tokens that every window keeps", ()),
}
_WIDTH_MULTIPLE: Final = 256
"""Widths of MLPs are multiples of it. Source: `_find_multiple` in the checkpoints' code."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    num_layers = config.whole("num_hidden_layers")
    num_heads = config.whole("num_attention_heads")
    if config.has("block_configs"):
        blocks = config.values["block_configs"]
        if not isinstance(blocks, list) or len(blocks) != num_layers:
            raise BrokenModel(f"{config.source}: block_configs must be a list with an object for each layer.")
        parts = [
            _block(config, Fields({"block": block}, f"{config.source}, block_configs[{number}]"), num_heads)
            for number, block in enumerate(blocks)
        ]
        kv_heads, inner = [kv for kv, _ in parts], [width for _, width in parts]
    else:
        num_layers = min(num_layers, MAX_LAYERS)
        key = "num_key_value_heads_per_layer"
        kv_heads = list(config.wholes(key if config.has(key) else "num_key_value_heads", num_layers))
        inner = [config.whole("intermediate_size")] * num_layers
    largest = {"num_key_value_heads": max(1, *kv_heads), "intermediate_size": max(1, *inner)}
    spec = config_spec(family, Fields({**config.values, **largest}, config.source))
    return _by_layer(spec, kv_heads, inner, config.source)


def _block(config: Fields, block: Fields, num_heads: int) -> tuple[int, int]:
    """Return the KV heads of a layer and the width of its MLP; 0 for a part that it lacks."""
    attention, mlp = block.sub("block").sub("attention"), block.sub("block").sub("ffn")
    for part in (attention, mlp):
        for key, (name, fine) in _REFUSED.items():
            part.refuse(key, name, unless=fine)
    group, width = 0, 0
    if not attention.flag("no_op", default=False) and attention.has("n_heads_in_group"):
        group = attention.whole("n_heads_in_group")
        if num_heads % group:
            raise BrokenModel(f"{attention.source}: n_heads_in_group is {group}; expected a divisor of {num_heads}.")
    if not mlp.flag("no_op", default=False) and mlp.has("ffn_mult"):
        width = int(2 * mlp.positive("ffn_mult") * config.whole("hidden_size") / 3)
    return num_heads // group if group else 0, -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    fields = header.fields
    num_layers = min(fields.whole("block_count"), MAX_LAYERS)
    heads = fields.wholes("attention.head_count", num_layers, minimum=0)
    kv_heads = fields.wholes("attention.head_count_kv", num_layers, minimum=0)
    inner = fields.wholes("feed_forward_length", num_layers, minimum=0)
    counts = set(heads) - {0}
    if len(counts) != 1:
        raise BrokenModel(f"{fields.source}: attention.head_count is {list(heads)!r:.200}; expected one number, or 0.")
    if any(kv == 0 < count for count, kv in zip(heads, kv_heads, strict=True)):
        raise UnsupportedModel(f"{fields.source}: {_LINEAR} is not supported.")
    largest = {
        "attention.head_count": counts.pop(),
        "attention.head_count_kv": max(1, *kv_heads),
        "feed_forward_length": max(1, *inner),
    }
    spec = gguf_spec(family, replace(header, fields=Fields({**fields.values, **largest}, fields.source)))
    kv_heads = tuple(kv if count else 0 for count, kv in zip(heads, kv_heads, strict=True))
    return _by_layer(spec, kv_heads, inner, fields.source)


def _by_layer(spec: ModelSpec, kv_heads: Sequence[int], inner: Sequence[int], source: str) -> ModelSpec:
    """Set the KV heads and the width of the MLP of each layer; a layer with 0 of them has no such part."""
    for layer, parts in enumerate(zip(kv_heads, inner, strict=True)):
        if parts == (0, 0):
            raise UnsupportedModel(
                f"{source}: layer {layer} has neither attention nor an MLP, which is not supported. Use --backend vllm."
            )
    shape = spec.attention(0)
    shapes = tuple(replace(shape, num_kv_heads=count or shape.num_kv_heads) for count in kv_heads)
    check_heads(shapes, source)
    widths = tuple(width or spec.intermediate_size for width in inner)
    return replace(
        spec,
        attention_shapes=shapes if len(set(shapes)) > 1 else (),
        mixers=tuple("attention" if count else "none" for count in kv_heads) if 0 in kv_heads else (),
        intermediate_sizes=widths if len(set(widths)) > 1 else (),
        mlps=tuple(width > 0 for width in inner) if 0 in inner else (),
    )


DECI: Final = Family(
    name="deci",
    models="DeciLM, Llama-Nemotron 51B and Super 49B",
    verified=("layout", "GGUF twin"),
    model_types=("nemotron-nas", "deci"),
    defaults={"rms_norm_eps": 1e-5},
    bias_flags={**ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
    spec_from_config=_from_config,
    gguf_architectures=("deci",),
    gguf_biases=("qkv_bias", "o_bias", "mlp_bias"),
    spec_from_gguf=_from_gguf,
    interleaved_gguf_rope=True,
)
