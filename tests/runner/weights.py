"""Random weights as a `WeightSource`."""

from collections.abc import Iterable, Mapping

import numpy as np

from headrace.models.spec import ModelSpec
from headrace.models.weights import Encoding, RawTensor
from headrace.runner.step import Float32


class ArrayWeights:
    """A `WeightSource` over float32 arrays."""

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        self._arrays = {name: np.atleast_2d(np.asarray(array, np.float32)) for name, array in arrays.items()}

    @property
    def fingerprint(self) -> str:
        return str(hash(tuple(float(array.sum()) for array in self._arrays.values())))

    @property
    def dominant_encoding(self) -> Encoding:
        return Encoding.F32

    def stored_bits(self, name: str) -> int:
        return 32

    def names(self) -> Iterable[str]:
        return self._arrays

    def load(self, name: str) -> RawTensor:
        array = np.ascontiguousarray(self._arrays[name])
        return RawTensor(Encoding.F32, *array.shape, array.view(np.uint8))


def random_weights(spec: ModelSpec, seed: int = 0) -> ArrayWeights:
    """Return every weight that a spec requires, scaled to keep activations near 1."""
    rng = np.random.default_rng(seed)
    return ArrayWeights({name: _random(rng, name, shape) for name, shape in weight_shapes(spec).items()})


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical names and shapes, as the docstring of `headrace.models.spec` lists them."""
    shapes = {"embed": (spec.vocab_size, spec.hidden_size), "final_norm": (spec.hidden_size,)}
    if not spec.tie_embeddings:
        shapes["lm_head"] = (spec.vocab_size, spec.hidden_size)
    for layer in range(spec.num_layers):
        parts = _layer_shapes(spec) | _mlp_shapes(spec, layer)
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, queries, keys = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes = {
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "mlp_norm": (hidden,),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if spec.o_bias:
        shapes["o_bias"] = (hidden,)
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.sandwich_norms:
        shapes |= {"post_attn_norm": (hidden,), "post_mlp_norm": (hidden,)}
    return shapes


def _mlp_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    moe, hidden = spec.experts(layer), spec.hidden_size
    widths = {"": spec.intermediate_size}
    if moe is not None:
        widths = {f"experts.{expert}.": moe.expert_size for expert in range(moe.num_experts)}
        widths |= {"shared_": moe.shared_size} if moe.shared_size else {}
    shapes = {} if moe is None else {"router": (moe.num_experts, hidden)}
    if moe is not None and moe.has_shared_router:
        shapes["shared_router"] = (1, hidden)
    for prefix, width in widths.items():
        shapes |= {f"{prefix}gate": (width, hidden), f"{prefix}up": (width, hidden), f"{prefix}down": (hidden, width)}
    return shapes


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Float32:
    values = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("norm"):
        return 1 + 0.1 * values
    if name.endswith("bias"):
        return 0.1 * values
    return values if name == "embed" else values * shape[-1] ** -0.5
