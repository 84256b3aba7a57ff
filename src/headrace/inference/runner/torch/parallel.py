"""
Tensor parallelism: the share of a network that each rank holds, and the sums between the ranks.

Queries, keys, values, gates and ups are cut by rows (heads, inner values), `o` and `down` by columns, the embeddings
and the LM head by rows of the vocabulary. Ranks that outnumber the KV heads hold copies of them. The output of `o` and
`down` is summed over the ranks; everything else is computed by each rank for itself.
Paper: Shoeybi et al. 2019, "Megatron-LM".
"""

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from typing import Final

import torch
import torch.distributed as dist

from headrace.core.errors import SettingsError
from headrace.inference.models.spec import ModelSpec, split_name

Cut = tuple[range | None, range | None]
"""The rows and columns of a weight; None: all of them."""

_TIMEOUT: Final = timedelta(minutes=10)
"""Ranks read their weights at different speeds before their first collective operation."""
_LOOPBACK: Final = "lo"


@dataclass(frozen=True, slots=True)
class Shard:
    """The place of a rank among all of them."""

    rank: int = 0
    size: int = 1

    def part(self, total: int) -> range:
        """Return this rank's part of `total` things that divide evenly."""
        share = total // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def heads(self, num_kv_heads: int) -> range:
        """Return the KV heads of this rank: its part, or the copy of one head."""
        if num_kv_heads >= self.size:
            return self.part(num_kv_heads)
        head = self.rank * num_kv_heads // self.size
        return range(head, head + 1)

    def vocabulary(self, vocab_size: int) -> range:
        """Return the rows of the vocabulary that this rank has; the last ranks may have fewer."""
        share = -(-vocab_size // self.size)
        return range(min(self.rank * share, vocab_size), min((self.rank + 1) * share, vocab_size))


def check_shards(spec: ModelSpec, size: int, *, is_invariant: bool = False) -> None:
    """Raise `SettingsError` for a number of ranks that does not divide a network, or not batch-invariantly."""
    if is_invariant and size > 1 and spec.qk_norm == "full":
        raise SettingsError(
            f"batch_invariant is true and tensor_parallel_size is {size}, but the model norms all heads at once, which "
            "is not batch-invariant over ranks; expected tensor_parallel_size 1, or batch_invariant false.",
            name="batch_invariant",
        )
    moe = spec.moe
    has_dense = any(spec.experts(layer) is None for layer in range(spec.num_layers))
    sizes = {
        "attention heads": spec.num_heads,
        "values inside the MLP": spec.intermediate_size if has_dense else 0,
        "values inside an expert": 0 if moe is None else moe.expert_size,
        "values inside the shared expert": 0 if moe is None else moe.shared_size,
    }
    for name, value in sizes.items():
        if value % size:
            raise SettingsError(
                f"tensor_parallel_size is {size}, but the model has {value} {name}; expected a divisor of {value}.",
                name="tensor_parallel_size",
            )
    if spec.num_kv_heads % size and size % spec.num_kv_heads:
        raise SettingsError(
            f"tensor_parallel_size is {size}, but the model has {spec.num_kv_heads} KV heads; expected a divisor or a "
            f"multiple of {spec.num_kv_heads}.",
            name="tensor_parallel_size",
        )


def local_spec(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """Return the network that one rank computes: a part of the heads and of the inner values of each MLP."""
    if shard.size == 1:
        return spec
    moe = spec.moe and replace(
        spec.moe, expert_size=spec.moe.expert_size // shard.size, shared_size=spec.moe.shared_size // shard.size
    )
    return replace(
        spec,
        num_heads=spec.num_heads // shard.size,
        num_kv_heads=len(shard.heads(spec.num_kv_heads)),
        intermediate_size=spec.intermediate_size // shard.size,
        attention_scale=spec.scale(0),
        moe=moe,
    )


def cut_of(name: str, spec: ModelSpec, shard: Shard) -> Cut | None:
    """Return the rows and columns of a weight that a rank holds; None: nothing, another rank adds this bias."""
    if shard.size == 1:
        return None, None
    _, part, _ = split_name(name)
    if part in {"o_bias", "down_bias", "expert_down_bias"}:
        return (None, None) if shard.rank == 0 else None
    by_rows = _outputs_of(part, spec, shard)
    if by_rows is not None:
        is_vector = part.endswith(("_bias", "_norm")) or part == "sinks"
        return (None, by_rows) if is_vector else (by_rows, None)
    inputs = {
        "o": _times(shard.part(spec.num_heads), spec.head_dim),
        "down": shard.part(spec.intermediate_size),
        "expert_down": shard.part(spec.moe.expert_size if spec.moe else 0),
        "shared_down": shard.part(spec.moe.shared_size if spec.moe else 0),
    }
    return None, inputs.get(part)


def _outputs_of(part: str, spec: ModelSpec, shard: Shard) -> range | None:
    """Return the outputs of a weight that a rank holds; None: all of them."""
    base = part.removesuffix("_bias")
    heads = _times(shard.part(spec.num_heads), spec.head_dim)
    kv_heads = _times(shard.heads(spec.num_kv_heads), spec.head_dim)
    inner = shard.part(spec.intermediate_size)
    vocabulary = shard.vocabulary(spec.vocab_size)
    outputs = {"q": heads, "k": kv_heads, "v": kv_heads, "sinks": shard.part(spec.num_heads)}
    outputs |= {"gate": inner, "up": inner, "embed": vocabulary, "lm_head": vocabulary}
    if spec.qk_norm in {"full", "layer"}:
        outputs |= {"q_norm": heads, "k_norm": kv_heads}
    if spec.moe is not None:
        expert, shared = shard.part(spec.moe.expert_size), shard.part(spec.moe.shared_size)
        outputs |= {"expert_gate": expert, "expert_up": expert, "shared_gate": shared, "shared_up": shared}
    return outputs.get(base)


def _times(part: range, factor: int) -> range:
    return range(part.start * factor, part.stop * factor)


class Collectives:
    """The communication of a rank with the other ranks, if there are any."""

    def __init__(self, shard: Shard, *, is_invariant: bool = False) -> None:
        self.shard = shard
        self._is_invariant = is_invariant

    @classmethod
    def join(
        cls, shard: Shard, *, device: torch.device, meeting_point: str, is_invariant: bool = False
    ) -> "Collectives":
        """
        Join the process group of all ranks, which find each other by the file `meeting_point`; each must call this.

        `is_invariant`: sums have the order of the ranks. NCCL's order depends on the size and the place of a number.
        """
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)  # all ranks are on this host; its name may not resolve
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{meeting_point}",
            rank=shard.rank,
            world_size=shard.size,
            timeout=_TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
        return cls(shard, is_invariant=is_invariant)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks; it may be written into `x`."""
        if self.shard.size == 1:
            return x
        if self._is_invariant:
            return reduce(torch.add, (part.float() for part in self._parts(x))).to(x.dtype)
        summed = x if x.is_cuda else x.float()  # gloo would add bf16 in bf16
        dist.all_reduce(summed)
        return summed.to(x.dtype)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks side by side in the last dimension; they have the same shape."""
        if self.shard.size == 1:
            return x
        return torch.cat(self._parts(x), dim=-1)

    def least(self, value: int, device: torch.device) -> int:
        if self.shard.size == 1:
            return value
        least = torch.tensor([value], dtype=torch.int64, device=device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        return int(least.item())

    def _parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.shard.size)]
        dist.all_gather(parts, x.contiguous())
        return parts

    def leave(self) -> None:
        """Leave the process group. Idempotent."""
        if self.shard.size > 1 and dist.is_initialized():
            dist.destroy_process_group()
