"""The checkpoint tensors of which the packed matrices and vectors of the native kernels consist."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.mixers import DeltaSpec
from headrace.inference.models.spec import ModelSpec

_DEPTH: Final = 64
"""Inputs of a matrix are padded to a multiple of this."""
PANEL: Final = 32
"""Rows of a packed matrix that lie together."""
MATRICES: Final = ("qkv", "o", "gate_up", "down")
"""The packed matrices of a layer that adapters may change."""
_LATENT_MATRICES: Final = ("latent_down", "latent_up")
_SHARED_MATRICES: Final = ("shared_gate_up", "shared_down")
"""The packed shared MLP beside experts with a latent input."""
_INPUT_MATRICES: Final = ("input_gate", "input_out")


@dataclass(frozen=True, slots=True)
class Part:
    """The place of a checkpoint tensor inside a packed matrix; see `pack_rows` in csrc/pack.h."""

    name: str
    first_row: int = 0
    interleaved: bool = False
    expert: int = 0
    """The expert whose rows of the packed matrix it belongs to; `first_row` counts from there."""
    rows: range | None = None
    columns: range | None = None
    """The part of the tensor that belongs there; None: all of it."""


def parts_of(spec: ModelSpec, slot_name: str) -> Iterator[Part]:
    """Yield the tensors that make up a packed matrix or vector."""
    prefix, _, name = slot_name.rpartition(".")
    layer = int(prefix.removeprefix("layers.")) if prefix else -1
    moe = spec.experts(layer) if prefix else None
    prefix = f"{prefix}." if prefix else ""
    is_gated = spec.mlp == "gated"
    if moe is not None and name.removesuffix("_bias") in {"router", "choice", "gate_up", "down"}:
        yield from _expert_parts(moe, prefix, name, is_gated=is_gated)
        return
    if spec.mla is not None and name in {"qkv", "qkv_bias", "k_b", "v_b"}:
        yield from _latent_parts(spec, spec.mla, prefix, name)
    elif name in {"qkv", "qkv_bias"}:
        yield from _attention_parts(spec, layer, prefix, name.removeprefix("qkv"))
    elif name == "mix_in" and spec.delta is not None:
        yield from _delta_parts(prefix, spec.delta)
    elif name == "mix_small" and spec.delta is not None:
        yield Part(f"{prefix}mix_beta")
        if not spec.delta.by_channel:
            yield Part(f"{prefix}mix_dt", first_row=spec.delta.value_heads)
    elif name == "mix_in" and spec.ssd is None:
        yield from _short_conv_parts(slot_name, spec.hidden_size)
    elif name in {"gate_up", "gate_up_bias", "shared_gate_up"}:
        prefix = f"{prefix}shared_" if name.startswith("shared_") else prefix
        yield from _gate_up_parts(prefix, name.rpartition("gate_up")[2], is_gated=is_gated)
    elif name == "xielu":
        for row, part in enumerate(("positive", "negative", "linear")):
            yield Part(f"{slot_name}_{part}", first_row=row)
    else:
        yield Part(slot_name)


def _attention_parts(spec: ModelSpec, layer: int, prefix: str, suffix: str) -> Iterator[Part]:
    """Yield q, k, v, and the gates and the state beside attention, which read the same input."""
    shape, first_row = spec.attention(layer), 0
    for part in spec.attention_parts(layer):
        yield Part(f"{prefix}{part}{suffix}", first_row=first_row)
        first_row += shape.query_size if part == "q" else shape.key_size
    if spec.attention_gate is not None and not suffix:
        yield Part(f"{prefix}attn_gate", first_row=first_row)
    if spec.attention_beside and not suffix:
        yield Part(f"{prefix}mix_in", first_row=-(-first_row // PANEL) * PANEL)


def _short_conv_parts(tensor: str, size: int) -> Iterator[Part]:
    """Yield B, C and x of a short convolution, each of which is padded."""
    for number in range(3):
        yield Part(
            tensor, first_row=number * (-(-size // _DEPTH) * _DEPTH), rows=range(number * size, (number + 1) * size)
        )


def _delta_parts(prefix: str, delta: DeltaSpec) -> Iterator[Part]:
    first_row = 0
    sizes = {"q": delta.num_keys, "k": delta.num_keys, "v": delta.num_values}
    for part, size in (sizes | ({"dt_a": delta.key_dim, "z_a": 0} if delta.by_channel else {"z": 0})).items():
        yield Part(f"{prefix}mix_{part}", first_row=first_row)
        first_row += size


def _latent_parts(spec: ModelSpec, mla: MlaSpec, prefix: str, name: str) -> Iterator[Part]:
    """Yield the parts of latent attention: the two products with the hidden state, or the matrices of the heads."""
    if name in {"k_b", "v_b"}:
        size = mla.kv_rank if name == "k_b" else mla.value_dim
        heads = range(spec.num_heads) if size % PANEL else ()
        for head in heads:  # each begins a panel
            yield Part(f"{prefix}{name}", expert=head, rows=range(head * size, (head + 1) * size))
        if not heads:
            yield Part(f"{prefix}{name}")
        return
    suffix = name.removeprefix("qkv")
    if mla.query_rank or not suffix:
        yield Part(f"{prefix}{'q_a' if mla.query_rank else 'q_b'}{suffix}")
    yield Part(f"{prefix}kv_a{suffix}", first_row=mla.query_rank or spec.num_heads * mla.query_dim)


def _gate_up_parts(
    prefix: str, suffix: str, *, is_gated: bool, expert: int = 0, rows: range | None = None
) -> Iterator[Part]:
    """Yield gate and up, which alternate every 16 rows, or up alone."""
    if is_gated:
        yield Part(f"{prefix}gate{suffix}", interleaved=True, expert=expert, rows=rows)
    yield Part(f"{prefix}up{suffix}", first_row=16 * is_gated, interleaved=is_gated, expert=expert, rows=rows)


def _expert_parts(moe: MoeSpec, prefix: str, name: str, *, is_gated: bool) -> Iterator[Part]:
    """Yield the parts of all experts; the shared MLP is cut into experts of the same size, which follow the others."""
    if name.startswith(("router", "choice")):
        yield Part(f"{prefix}{name}")
        if moe.has_shared_router and name == "router":
            yield Part(f"{prefix}shared_router", first_row=moe.num_experts)
        return
    for expert in range(moe.num_experts + moe.num_shared_experts):
        start = (expert - moe.num_experts) * moe.expert_size
        piece = range(start, min(start + moe.expert_size, moe.shared_size)) if start >= 0 else None
        tensors = f"{prefix}experts.{expert}." if piece is None else f"{prefix}shared_"
        if name.startswith("down"):
            yield Part(f"{tensors}{name}", expert=expert, columns=piece)
        else:
            suffix = name.removeprefix("gate_up")
            yield from _gate_up_parts(tensors, suffix, is_gated=is_gated, expert=expert, rows=piece)


def matrices_of(spec: ModelSpec, layer: int) -> tuple[str, ...]:
    """Return the packed matrices of a layer."""
    mixer = {"attention": MATRICES[:2], "none": ()}.get(spec.mixer(layer), ("mix_in", MATRICES[1]))
    if spec.mla is not None and spec.mixer(layer) == "attention":
        mixer = (*mixer, *(("q_b", "k_b", "v_b") if spec.mla.query_rank else ("k_b", "v_b")))
    if spec.attends(layer) and spec.mixer(layer) != "attention":
        mixer = (*MATRICES[:2], "mix_out")
    moe, mlp = spec.experts(layer), MATRICES[2:] if spec.has_mlp(layer) else ()
    latent = _LATENT_MATRICES if moe is not None and moe.latent_size else ()
    shared = _SHARED_MATRICES if moe is not None and moe.has_shared_mlp else ()
    return (*mixer, *mlp, *latent, *shared, *(_INPUT_MATRICES if spec.layer_input_size else ()))
