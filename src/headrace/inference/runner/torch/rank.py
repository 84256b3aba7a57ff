"""One rank of a model: its part of the network, of the KV cache and of the adapters, and the step that they compute."""

from dataclasses import replace
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from headrace.core.progress import Progress, no_progress
from headrace.inference.models.adapter import Adapter, is_adaptable
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.memory import MemoryBudget, MemoryPlan, RunnerSizes, plan_sizes
from headrace.inference.runner.sampling import stack_sampling
from headrace.inference.runner.step import RunnerLimits, StepInput
from headrace.inference.runner.torch.batch import StepTensors, to_device
from headrace.inference.runner.torch.graphs import DecodeGraphs, is_decode_step
from headrace.inference.runner.torch.kv_cache import KvCache, KvShape, block_bytes
from headrace.inference.runner.torch.layers import Adapted, LowRankTensors
from headrace.inference.runner.torch.model import Batch, Network
from headrace.inference.runner.torch.parallel import Collectives, Shard, cut_of, local_spec
from headrace.inference.runner.torch.plan import TorchPlan
from headrace.inference.runner.torch.weights import RankWeights, Uploader

_FLOAT_BYTES: Final = 4
_BITS: Final = {"fp8": 8, "w8a8": 8, "w4a16": 5}
_FORMATS: Final = "a smaller dtype (fp8 or w4a16)"
_GRAPH_BYTES: Final = 256 << 20
"""Memory of the CUDA graphs besides their activations."""


class Rank:
    """The state of one rank. Not thread safe, except for `load_adapter`."""

    def __init__(
        self,
        spec: ModelSpec,
        network: Network,
        cache: KvCache,
        plan: TorchPlan,
        collectives: Collectives,
        memory: MemoryPlan,
        device: torch.device,
    ) -> None:
        self.limits = replace(plan.limits, num_blocks=memory.num_blocks)
        self.memory = memory
        self.device = device
        self._plan = plan
        self._collectives = collectives
        self._network = network
        self._cache = cache
        self._spec = spec
        self._adapters: dict[int, dict[str, LowRankTensors]] = {}
        self._graphs: DecodeGraphs | None = None

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        spec: ModelSpec,
        source: WeightSource,
        plan: TorchPlan,
        collectives: Collectives,
        *,
        progress: Progress = no_progress,
    ) -> Self:
        """
        Load the weights, decide the size of the KV cache and allocate it; on CUDA capture the graphs.

        All ranks do this at the same time.

        Raises:
            BrokenModel: A tensor is missing or of the wrong shape.
            InsufficientMemory: The model does not fit.
        """
        shard = collectives.shard
        device = device_of(plan, shard)
        budget = _budget(plan, device)
        # By the shapes, to refuse what does not fit before it is read; on a GPU again by what it then takes.
        memory = plan_sizes(estimate_sizes(spec, plan), plan.limits, budget, formats=_FORMATS)
        uploader = Uploader(device)
        try:
            weights = RankWeights(
                spec,
                source,
                uploader,
                shard=shard,
                dtype=plan.activations,
                matrix_format=plan.matrix_format,
                is_invariant=plan.is_batch_invariant,
                progress=progress,
            )
            network = Network(
                local_spec(spec, shard),
                weights,
                collectives,
                device=device,
                context_tokens=plan.limits.max_context_tokens,
            )
        finally:
            uploader.close()
        if device.type == "cuda":
            memory = plan_sizes(_measure_sizes(network, spec, plan, device), plan.limits, budget, formats=_FORMATS)
        num_blocks = collectives.least(memory.num_blocks, device)
        memory = replace(memory, num_blocks=num_blocks, kv_cache_bytes=num_blocks * memory.block_bytes)
        cache = _cache(network, plan, num_blocks, device)
        rank = cls(spec, network, cache, plan, collectives, memory, device)
        if device.type == "cuda" and not plan.enforce_eager and spec.is_causal:
            rank.capture()
        return rank

    @property
    def has_graphs(self) -> bool:
        """True if steps that only decode replay CUDA graphs."""
        return self._graphs is not None

    @torch.inference_mode()
    def forward(self, step: StepInput) -> tuple[Tensor, Tensor]:
        """Return the logits (R, V) and hidden states (P, hidden) of a step, valid until the next one."""
        tensors = to_device(step, block_tokens=self._cache.block_tokens, device=self.device)
        if self._graphs is not None and is_decode_step(step):
            return self._graphs(tensors), tensors.hidden_rows.new_empty((0, self._spec.hidden_size)).float()
        types = None if step.token_types is None else torch.from_numpy(step.token_types).to(self.device)
        batch = Batch(step=tensors, token_types=types, adapted=self._adapted(step))
        hidden = self._network.hidden(batch, self._cache)
        return self._network.logits(hidden[tensors.rows]), hidden[tensors.hidden_rows].float()

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        matrices: dict[str, LowRankTensors] = {}
        for name, matrix in adapter.matrices.items():
            rows, columns = cut_of(name, self._spec, self._collectives.shard) or (None, None)
            shrink = matrix.shrink if columns is None else matrix.shrink[:, columns.start : columns.stop]
            expand = matrix.expand if rows is None else matrix.expand[rows.start : rows.stop]
            matrices[name] = (self._on_device(shrink), self._on_device(expand))
        self._adapters[slot] = matrices

    def close(self) -> None:
        self._collectives.leave()

    def capture(self) -> None:
        limits = self._plan.limits
        self._graphs = DecodeGraphs(
            self._decode,
            max_sequences=limits.max_step_sequences,
            table_blocks=-(-limits.max_context_tokens // limits.block_tokens),
            max_context=limits.max_context_tokens,
            device=self.device,
        )

    def _decode(self, step: StepTensors) -> Tensor:
        return self._network.logits(self._network.hidden(Batch(step=step), self._cache))

    def _on_device(self, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(self.device, self._plan.activations)

    def _adapted(self, step: StepInput) -> list[Adapted]:
        if step.adapters is None:
            return []
        slots = np.repeat(step.adapters, np.diff(step.query_starts))
        return [
            Adapted(torch.from_numpy(np.flatnonzero(slots == slot)).to(self.device), self._adapters[slot])
            for slot in np.unique(slots).tolist()
            if slot >= 0
        ]


def device_of(plan: TorchPlan, shard: Shard) -> torch.device:
    """Open the device of a rank: on CUDA the GPU of its number."""
    if plan.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", shard.rank)
    torch.cuda.set_device(device)
    return device


def estimate_sizes(spec: ModelSpec, plan: TorchPlan) -> RunnerSizes:
    limits, local = plan.limits, local_spec(spec, Shard(0, plan.num_ranks))
    shape = KvShape(local.num_kv_heads, local.head_dim, local.head_dim)
    weights_bytes = _weights_bits(spec, plan) // 8 // plan.num_ranks
    adapters = sum(
        limits.max_adapter_rank * (num_rows + num_columns)
        for name, (num_rows, num_columns) in expected_shapes(spec).items()
        if is_adaptable(name)
    )
    return RunnerSizes(
        weights_bytes=weights_bytes,
        active_weights_bytes=weights_bytes,
        workspace_bytes=_FLOAT_BYTES * _activations(local, limits),
        adapter_bytes=limits.max_adapters * adapters * plan.activations.itemsize // plan.num_ranks,
        block_bytes=block_bytes([shape] * spec.num_layers, block_tokens=limits.block_tokens, dtype=plan.activations),
        vocab_size=spec.vocab_size,
    )


def _weights_bits(spec: ModelSpec, plan: TorchPlan) -> int:
    """Return the bits of the weights of all ranks. A CPU has the LM head in float32, also if it is the embeddings."""
    other_bits = 8 * plan.activations.itemsize
    matrix_bits = _BITS.get(plan.matrix_format, other_bits)
    bits = 0
    for name, (num_rows, num_columns) in expected_shapes(spec).items():
        is_matrix = name.startswith("layers.") and num_rows > 1
        bits += num_rows * num_columns * (matrix_bits if is_matrix else other_bits)
    if plan.device == "cpu" and plan.activations is not torch.float32:
        stored_bits = 0 if spec.tie_embeddings else other_bits
        bits += spec.vocab_size * spec.hidden_size * (8 * _FLOAT_BYTES - stored_bits)
    return bits


def _activations(local: ModelSpec, limits: RunnerLimits) -> int:
    inner = max(local.intermediate_size, (local.num_heads + 2 * local.num_kv_heads) * local.head_dim)
    for_token = 6 * local.hidden_size + 4 * inner
    if local.moe is not None:
        for_token += local.moe.top_k * (3 * local.hidden_size + 3 * local.moe.expert_size)
    return limits.max_step_tokens * for_token + 2 * limits.max_step_rows * local.vocab_size


def _budget(plan: TorchPlan, device: torch.device) -> MemoryBudget:
    """Return the memory to plan with: as planned on a CPU; on a GPU its share, less the memory in use."""
    if device.type != "cuda":
        return plan.budget
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    usable_bytes = int(total_bytes * plan.gpu_memory_utilization) - (total_bytes - free_bytes)
    return replace(plan.budget, available_bytes=max(0, usable_bytes), max_memory_bytes=None)


def _measure_sizes(network: Network, spec: ModelSpec, plan: TorchPlan, device: torch.device) -> RunnerSizes:
    """Return the memory of the loaded weights, and that of the largest step, which also compiles the kernels."""
    estimated = estimate_sizes(spec, plan)
    torch.cuda.synchronize(device)
    weights_bytes = torch.cuda.memory_allocated(device)
    step = largest_step(plan.limits)
    num_blocks = step.block_tables.size
    cache = _cache(network, plan, num_blocks, device)
    tensors = to_device(step, block_tokens=plan.limits.block_tokens, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    before_bytes = torch.cuda.memory_allocated(device)
    hidden = network.hidden(Batch(step=tensors), cache)
    network.logits(hidden[tensors.rows])
    torch.cuda.synchronize(device)
    workspace_bytes = torch.cuda.max_memory_allocated(device) - before_bytes
    graph_bytes = 0 if plan.enforce_eager else workspace_bytes + _GRAPH_BYTES
    return replace(
        estimated,
        weights_bytes=weights_bytes,
        active_weights_bytes=weights_bytes,
        workspace_bytes=workspace_bytes + graph_bytes,
    )


def largest_step(limits: RunnerLimits) -> StepInput:
    """Return a step of as many tokens as the limits allow, in as few sequences as possible, with as many logits."""
    longest = limits.max_context_tokens
    num_sequences = min(-(-limits.max_step_tokens // longest), limits.max_step_sequences)
    num_tokens = min(limits.max_step_tokens, num_sequences * longest)
    starts = np.minimum(np.arange(num_sequences + 1) * longest, num_tokens).astype(np.int32)
    blocks = -(-min(longest, num_tokens) // limits.block_tokens)
    rows = np.arange(min(limits.max_step_rows, num_tokens), dtype=np.int32)
    return StepInput(
        token_ids=np.zeros(num_tokens, np.int32),
        query_starts=starts,
        context_lens=np.zeros(num_sequences, np.int32),
        block_tables=np.arange(num_sequences * blocks, dtype=np.int32).reshape(num_sequences, blocks),
        rows=rows,
        sampling=stack_sampling([{}] * len(rows)),
    )


def _cache(network: Network, plan: TorchPlan, num_blocks: int, device: torch.device) -> KvCache:
    return KvCache(
        network.kv_shapes,
        num_blocks=num_blocks,
        block_tokens=plan.limits.block_tokens,
        dtype=plan.activations,
        device=device,
    )
