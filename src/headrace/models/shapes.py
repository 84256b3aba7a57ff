"""The weights that a spec requires, and their shapes."""

from headrace.models.spec import ModelSpec

Shape = tuple[int, int]
"""Rows, columns; a vector is one row."""


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Return the required shape of every weight of `spec` by canonical name."""
    shapes: dict[str, Shape] = {
        "embed": (spec.vocab_size, spec.hidden_size),
        "final_norm": (1, spec.hidden_size),
    }
    if not spec.tie_embeddings:
        shapes["lm_head"] = (spec.vocab_size, spec.hidden_size)
    layer = _layer_shapes(spec)
    for index in range(spec.num_layers):
        shapes.update({f"layers.{index}.{part}": shape for part, shape in layer.items()})
    return shapes


def _layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {
        "attn_norm": (1, hidden),
        "q": (query, hidden),
        "k": (key, hidden),
        "v": (key, hidden),
        "o": (hidden, query),
        "mlp_norm": (1, hidden),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (1, query), "k_bias": (1, key), "v_bias": (1, key)}
    if spec.o_bias:
        shapes["o_bias"] = (1, hidden)
    if spec.qk_norm:
        shapes |= {"q_norm": (1, spec.head_dim), "k_norm": (1, spec.head_dim)}
    if spec.sandwich_norms:
        shapes |= {"post_attn_norm": (1, hidden), "post_mlp_norm": (1, hidden)}
    return shapes
