"""Our networks in torch as a `Runner`, on a GPU or a CPU, alone or as the first of several tensor-parallel ranks."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from headrace.core.errors import EngineFailed, InsufficientMemory, SettingsError
from headrace.core.progress import Progress, no_progress
from headrace.core.telemetry import get_logger
from headrace.inference.models.adapter import Adapter
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.checks import check_step
from headrace.inference.runner.step import Float32, RunnerInfo, StepInput, StepOutput
from headrace.inference.runner.torch.parallel import Collectives, Shard, check_shards
from headrace.inference.runner.torch.plan import TorchPlan
from headrace.inference.runner.torch.rank import Rank, device_of
from headrace.inference.runner.torch.ranks import Ranks, RankTask, meeting_point
from headrace.inference.runner.torch.sampling import sample

__all__ = ["ModelFiles", "TorchRunner", "load_torch_runner"]

_FP8_CAPABILITY: Final = (8, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The location from which the processes of other ranks read a model."""

    path: Path
    rope: Mapping[str, object] | None = None


class TorchRunner:
    """A `Runner` in torch. Not thread safe: only one thread may call it."""

    def __init__(self, spec: ModelSpec, rank: Rank, ranks: Ranks | None, info: RunnerInfo) -> None:
        self.spec = spec
        self.vocab_size = spec.vocab_size
        self.is_causal = spec.is_causal
        self.limits = rank.limits
        self.info = info
        self._rank: Rank | None = rank
        self._ranks = ranks

    @property
    def is_healthy(self) -> bool:
        """False once another rank has ended."""
        return self._ranks is None or self._ranks.failure is None

    def execute(self, step: StepInput) -> StepOutput:
        with self._forward(step) as (logits, hidden):
            return replace(sample(logits, step), hidden=hidden.cpu().numpy())

    def logits(self, step: StepInput) -> Float32:
        """Run one step up to its logits (R, V) instead of sampling: for tests."""
        with self._forward(step) as (logits, _):
            values: Float32 = logits.cpu().numpy().astype(np.float32)
            return values

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        if self._ranks is not None:
            self._ranks.send_adapter(slot, adapter)
        self._open().load_adapter(slot, adapter)

    def close(self) -> None:
        rank, self._rank = self._rank, None
        if rank is None:
            return
        if self._ranks is not None:
            self._ranks.close()
        rank.close()

    @contextlib.contextmanager
    def _forward(self, step: StepInput) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Compute logits and hidden states; torch errors, also those of reading the results, become `EngineFailed`."""
        rank = self._open()
        check_step(step, self.limits, vocab_size=self.spec.vocab_size, token_types=self.spec.token_types)
        try:
            if self._ranks is not None:
                self._ranks.send_step(step)
            with torch.inference_mode():
                yield rank.forward(step)
        except RuntimeError as exc:
            if self._ranks is None:
                raise EngineFailed(f"The step failed: {exc}") from exc
            # The ranks no longer agree on what comes next. Wait for the cause, which may be the end of a process.
            self._ranks.wait_for_failure(f"a step failed: {exc}")
            self._ranks.check()

    def _open(self) -> Rank:
        if self._rank is None:
            raise EngineFailed("The runner is closed.")
        return self._rank


def load_torch_runner(
    spec: ModelSpec,
    weights: WeightSource,
    plan: TorchPlan,
    *,
    files: ModelFiles | None = None,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> TorchRunner:
    """
    Load a model, and start the processes of the other ranks if there are any, which read it from `files`.

    `threads` is the number of threads of each rank on a CPU; None: torch's default, divided by the ranks.

    Raises:
        BrokenModel: A tensor is missing or of the wrong shape.
        InsufficientMemory: The model does not fit.
        SettingsError: The network cannot be divided by the number of ranks.
    """
    start_s = time.perf_counter()
    check_shards(spec, plan.num_ranks, is_invariant=plan.is_batch_invariant)
    _check_gpus(plan)
    if threads is None and plan.num_ranks > 1:
        threads = max(1, torch.get_num_threads() // plan.num_ranks)
    if threads is not None:
        torch.set_num_threads(threads)
    with contextlib.ExitStack() as started:
        ranks = None
        if plan.num_ranks > 1:
            assert files is not None, "several ranks need the place of the model"
            task = RankTask(
                rank=1, plan=plan, model=files.path, rope=files.rope, meeting_point=meeting_point(), threads=threads
            )
            ranks = Ranks([replace(task, rank=rank) for rank in range(1, plan.num_ranks)])
            started.callback(ranks.close)
        rank = _load_rank(spec, weights, plan, ranks, progress)
        started.pop_all()
    info = _info(plan, rank, seconds=time.perf_counter() - start_s)
    get_logger().info("torch.loaded", device=info.device, dtype=info.dtype, **info.facts)
    return TorchRunner(spec, rank, ranks, info)


def _check_gpus(plan: TorchPlan) -> None:
    if plan.device != "cuda":
        return
    num_gpus = torch.cuda.device_count()
    if num_gpus < plan.num_ranks:
        raise SettingsError(
            f"device is cuda, but torch {torch.__version__} sees {num_gpus} GPUs; expected at least {plan.num_ranks} "
            "(tensor_parallel_size). Install a build of torch for CUDA and its driver, check CUDA_VISIBLE_DEVICES, or "
            "use --device cpu.",
            name="device",
        )
    capability = torch.cuda.get_device_capability()
    if plan.dtype == "fp8" and capability < _FP8_CAPABILITY:
        raise SettingsError(
            f"dtype is fp8, but {torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}; "
            "expected at least 8.9 (Ada, Hopper and later). Take w8a8, w4a16 or bf16.",
            name="dtype",
        )


def _load_rank(
    spec: ModelSpec, weights: WeightSource, plan: TorchPlan, ranks: Ranks | None, progress: Progress
) -> Rank:
    shard = Shard(0, plan.num_ranks)
    device = device_of(plan, shard)
    try:
        if ranks is None:
            return Rank.load(spec, weights, plan, Collectives(shard), progress=progress)
        ranks.wait_until_ready()
        collectives = Collectives.join(
            shard, device=device, meeting_point=ranks.meeting_point, is_invariant=plan.is_batch_invariant
        )
        try:
            return Rank.load(spec, weights, plan, collectives, progress=progress)
        except BaseException:
            collectives.leave()
            raise
    except torch.OutOfMemoryError as exc:
        raise InsufficientMemory(
            f"{device} has too little memory for the model: {exc}. Lower max_model_len, max_num_batched_tokens or "
            "gpu_memory_utilization, or take a smaller dtype (fp8 or w4a16)."
        ) from exc
    except RuntimeError:
        if ranks is not None:
            ranks.wait_for_failure("the ranks could not be connected")
            ranks.check()
        raise


def _info(plan: TorchPlan, rank: Rank, *, seconds: float) -> RunnerInfo:
    name = torch.cuda.get_device_name(rank.device) if rank.device.type == "cuda" else "torch"
    ranks = f", {plan.num_ranks} ranks" if plan.num_ranks > 1 else ""
    facts = {
        "torch": torch.__version__,
        "cuda_graphs": "yes" if rank.has_graphs else "no",
        "tensor_parallel_size": str(plan.num_ranks),
        "load_s": f"{seconds:.1f}",
    }
    return RunnerInfo(
        dtype=plan.dtype,
        kv_dtype=str(plan.activations).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp"),
        device=f"{rank.device.type} ({name}{ranks})",
        weights_bytes=rank.memory.weights_bytes * plan.num_ranks,
        kv_cache_bytes=rank.memory.kv_cache_bytes * plan.num_ranks,
        workspace_bytes=rank.memory.workspace_bytes * plan.num_ranks,
        adapter_bytes=rank.memory.adapter_bytes * plan.num_ranks,
        is_batch_invariant=plan.is_batch_invariant and rank.device.type == "cuda",
        facts=facts,
    )
