"""The rotary embeddings of a network by the type of its layers, as `rope_parameters` of transformers 5 has them."""

from headrace.models.spec import ModelSpec, RopeSpec

FULL = "full_attention"
SLIDING = "sliding_attention"
LAYER_TYPES = (FULL, SLIDING)


def ropes_by_layer_type(spec: ModelSpec) -> dict[str, int]:
    """
    Return the index of the rotary embedding of each type of layer, of a network that has several.

    Empty if the network has one for all layers, or layers of the same type with different ones.
    """
    found: dict[str, set[int]] = {}
    for layer, index in enumerate(spec.rope_of_layer):
        if index >= 0:
            found.setdefault(SLIDING if spec.window(layer) else FULL, set()).add(index)
    by_type = {layer_type: next(iter(indexes)) for layer_type, indexes in found.items() if len(indexes) == 1}
    is_distinct = len(by_type) == len(found) == len(set(by_type.values())) == len(spec.ropes)
    return by_type if is_distinct and len(by_type) > 1 else {}


def describe_ropes(spec: ModelSpec, context_tokens: int) -> str:
    """Return the rotary embeddings of a network that serves contexts of some length, for logs and `/info`."""
    num_without = spec.rope_of_layer.count(-1)
    if num_without == spec.num_layers:
        return "none"
    texts = [_describe(rope, context_tokens) for rope in spec.ropes]
    by_type = ropes_by_layer_type(spec)
    if by_type:
        text = "; ".join(f"{layer_type}: {texts[by_type[layer_type]]}" for layer_type in LAYER_TYPES)
    else:
        text = "; ".join(texts)
    return f"{text}; none on {num_without} of {spec.num_layers} layers" if num_without else text


def _describe(rope: RopeSpec, context_tokens: int) -> str:
    words = [rope.kind, f"theta {rope.theta:.10g}"]
    if rope.kind in {"linear", "llama3", "yarn", "dynamic"}:
        words.append(f"factor {rope.factor:g}")
    if rope.kind == "longrope":
        words.append(f"{'long' if context_tokens > rope.original_max_positions else 'short'} factors")
    if rope.kind == "dynamic":
        words.append(f"for {context_tokens} tokens")
    if rope.original_max_positions:
        words.append(f"trained with {rope.original_max_positions} tokens")
    if rope.rotary_dim:
        words.append(f"rotary dimension {rope.rotary_dim}")
    return ", ".join(words)
