"""The native runtime as a `Runner`: weights are packed or read from the cache, a step is one C++ call."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.core.errors import EngineFailed, InsufficientMemory, SettingsError
from headrace.core.progress import Progress, no_progress
from headrace.core.sizes import format_size
from headrace.core.telemetry import get_logger
from headrace.inference.models.adapter import Adapter
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.cache_identity import cache_identity
from headrace.inference.runner.cpu import cpu_report
from headrace.inference.runner.layer_inputs import LayerTable
from headrace.inference.runner.memory import MemoryPlan, layer_input_bytes
from headrace.inference.runner.native_config import native_limits
from headrace.inference.runner.packed_parts import MATRICES, parts_of
from headrace.inference.runner.packing import PackedWeights, load_packed
from headrace.inference.runner.plan import RunnerPlan
from headrace.inference.runner.step import Float32, RunnerInfo, RunnerLimits, StepInput, StepOutput


class NativeRunner:
    """A `Runner` on the native CPU runtime. Not thread safe: only one thread may call it."""

    is_healthy = True

    def __init__(
        self,
        runtime: _native.Runtime,
        *,
        spec: ModelSpec,
        limits: RunnerLimits,
        info: RunnerInfo,
        table: LayerTable | None = None,
        cache_identity: Callable[[], bytes] = lambda: b"",
    ) -> None:
        """
        Run a loaded runtime; `table` has the inputs of layers of a network that takes some.

        Runners with the same `cache_identity` have the same bytes of KV for the same tokens.
        """
        self.cache_identity = cache_identity
        self.spec = spec
        self.vocab_size, self.is_causal = spec.vocab_size, spec.is_causal
        self.limits = limits
        self.info = info
        self._table = table
        self._runtime: _native.Runtime | None = runtime

    def execute(self, step: StepInput) -> StepOutput:
        runtime = self._open()
        try:
            outputs = runtime.execute(
                step.token_ids,
                step.query_starts,
                step.context_lens,
                step.block_tables,
                step.rows,
                step.hidden_rows,
                step.sampling.view(np.uint8),
                step.histories,
                step.biases,
                step.masks,
                step.adapters,
                step.token_types,
                step.states,
                self._layer_inputs(step),
            )
        except (TypeError, ValueError, RuntimeError) as exc:
            raise _cannot_run(exc) from exc
        token_ids, logprobs, ranks, top_ids, top_logprobs, hidden = outputs
        return StepOutput(
            token_ids=token_ids,
            logprobs=logprobs,
            ranks=ranks,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            hidden=hidden,
            num_threads=runtime.num_active_threads,
        )

    def logits(self, step: StepInput) -> Float32:
        """Run one step up to its logits (R, V) instead of sampling: for tests and perplexity, not for serving."""
        try:
            return self._open().logits(
                step.token_ids,
                step.query_starts,
                step.context_lens,
                step.block_tables,
                step.rows,
                step.adapters,
                step.states,
                self._layer_inputs(step),
            )
        except (TypeError, ValueError, RuntimeError) as exc:
            raise _cannot_run(exc) from exc

    def router_scores(self, step: StepInput) -> Float32:
        """Run one step and return the scores (layers, T, E) of its routers, NaN in dense layers: for tests."""
        try:
            return self._open().router_scores(
                step.token_ids, step.query_starts, step.context_lens, step.block_tables, step.states
            )
        except (TypeError, ValueError, RuntimeError) as exc:
            raise _cannot_run(exc) from exc

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        runtime = self._open()
        try:
            runtime.clear_adapter(slot)
            for layer in range(self.spec.num_layers):
                for matrix in MATRICES[self.spec.state_shape(layer) is not None :]:  # `mix_in` cannot be adapted
                    parts = _adapter_parts(self.spec, adapter, f"layers.{layer}.{matrix}")
                    if any(part is not None for part in parts):
                        runtime.set_adapter(slot, layer, matrix, parts)
        except (TypeError, ValueError) as exc:
            raise EngineFailed(f"The adapter cannot be loaded: {str(exc).rstrip('.')}.") from exc

    def start_profile(self) -> None:
        """Start (or restart) adding up the time of steps by phase, for benchmarks."""
        self._open().start_profile()

    def profile(self) -> list[dict[str, float]]:
        """Return the seconds spent in each phase since `start_profile`, one dict for each thread."""
        return self._open().profile()

    @property
    def num_barrier_rounds(self) -> int:
        """Rounds of barriers in the newest step, for benchmarks: of 2 to 4 threads, its barriers."""
        return self._open().num_barrier_rounds

    def cache_rows(self) -> dict[Literal["kv", "state"], npt.NDArray[np.uint8]]:
        """Return the memory of blocks and state slots, a row each; rows that no step uses may be read and written."""
        runtime = self._open()
        return {"kv": runtime.kv_blocks(), "state": runtime.state_slots()}

    def close(self) -> None:
        self._runtime = self._table = None
        self.cache_identity = bytes  # the other one holds native objects

    def _layer_inputs(self, step: StepInput) -> Float32 | None:
        return None if self._table is None else self._table.rows(step.token_ids)

    def _open(self) -> _native.Runtime:
        if self._runtime is None:
            raise EngineFailed("The runner is closed.")
        return self._runtime


def load_native_runner(
    spec: ModelSpec,
    weights: WeightSource,
    plan: RunnerPlan,
    *,
    isa: str | None = None,
    cache_dir: Path,
    progress: Progress = no_progress,
) -> NativeRunner:
    """
    Load a model: pack its weights (or read them from `cache_dir`), allocate, start the threads.

    Raises:
        BrokenModel: a tensor is missing or of the wrong shape.
        SettingsError: the CPU cannot run `isa`, or a dtype is unknown.
        InsufficientMemory: the system refused memory that the plan counts.
    """
    config, num_threads, memory = plan.config, plan.num_threads, plan.memory
    _warn_of_limits(memory, isa)
    try:
        _native.has_native_bf16(isa or "")
        packed = load_packed(
            spec,
            weights,
            config,
            cache_dir=cache_dir,
            threads=num_threads,
            progress=progress,
            mapping=memory.mapping,
        )
        runtime = _native.Runtime(
            config, native_limits(plan.limits), packed.arena, num_threads=num_threads, isa=isa or ""
        )
    except ValueError as exc:
        raise SettingsError(f"The native runtime cannot run this model with these settings: {exc}.") from exc
    except MemoryError as exc:
        raise InsufficientMemory(
            f"The system refused to allocate the {memory.total_bytes:,} bytes planned for the model.",
            total_bytes=memory.total_bytes,
            available_bytes=memory.available_bytes,
        ) from exc
    table = LayerTable(spec, weights) if spec.layer_input_size else None
    identity = partial(
        cache_identity,
        spec,
        weights,
        config,
        weights_checksum=packed.checksum,
        isa=runtime.isa,
        max_draft_tokens=plan.limits.max_draft_tokens,
    )
    return NativeRunner(
        runtime,
        spec=spec,
        limits=plan.limits,
        info=_info(runtime, plan, packed),
        table=table,
        cache_identity=identity,
    )


def _warn_of_limits(memory: MemoryPlan, isa: str | None) -> None:
    """Log what makes the model slower than the machine or the settings promise."""
    if memory.mapping == "required":
        get_logger().warning(
            "weights.mapped",
            message=f"The weights ({format_size(memory.weights_bytes)}) do not fit into memory: they are mapped, and "
            "experts that are not in the page cache are read from disk.",
        )
    if memory.states.is_limited:
        get_logger().warning(
            "sequences.limited",
            message=f"At most {memory.states.max_num_seqs} sequences run at the same time, not max_num_seqs: half of "
            f"the free memory holds the states of so many ({format_size(memory.states.slot_bytes)} each).",
        )
    cpu = cpu_report()
    if isa is None and not cpu.is_built_for_cpu:
        get_logger().warning("kernels.missing", message=f"Using the {cpu.isa} kernels: {cpu.reason}.")


def _info(runtime: _native.Runtime, plan: RunnerPlan, packed: PackedWeights) -> RunnerInfo:
    config, memory = plan.config, plan.memory
    return RunnerInfo(
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        device=f"cpu ({runtime.isa})",
        weights_bytes=runtime.weights_bytes,
        kv_cache_bytes=runtime.kv_bytes,
        workspace_bytes=runtime.workspace_bytes + layer_input_bytes(plan.config, plan.limits),
        adapter_bytes=memory.adapter_bytes,
        state_bytes=runtime.state_bytes,
        facts={
            "isa": runtime.isa,
            "threads": str(runtime.num_threads),
            "bf16": "native" if runtime.has_native_bf16 else "emulated",
            "packed_weights": packed.origin,
        },
    )


def _adapter_parts(spec: ModelSpec, adapter: Adapter, matrix: str) -> list[tuple[Float32, Float32, int, bool] | None]:
    """Return the factors of each part of a packed matrix and its place there; None for a part that stays as it is."""
    parts: list[tuple[Float32, Float32, int, bool] | None] = []
    for part in parts_of(spec, matrix):
        low_rank = adapter.matrices.get(part.name)
        if low_rank is None:
            parts.append(None)
            continue
        shrink, expand = np.ascontiguousarray(low_rank.shrink), np.ascontiguousarray(low_rank.expand)
        parts.append((shrink, expand, part.first_row, part.interleaved))
    return parts


def _cannot_run(exc: Exception) -> EngineFailed:
    reason = str(exc).rstrip(".")
    if isinstance(exc, TypeError):  # nanobind lists every signature
        reason = "its arrays must be C-contiguous int32 with the shapes of StepInput, its extras tuples"
    return EngineFailed(f"The step is invalid: {reason}.")
