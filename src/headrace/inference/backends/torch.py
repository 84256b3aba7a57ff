"""The backend of our own networks in torch: loads a model into a `TorchRunner` and puts our engine on it."""

from typing import Final

from headrace.core.errors import SettingsError, UnsupportedModel
from headrace.core.progress import Progress, no_progress
from headrace.inference.engine.backend import Backend
from headrace.inference.engine.config import EngineConfig, EngineLimits, ModelSource
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.loading.assembly import engine_on, refuse_smoothed
from headrace.inference.engine.loading.plan import host_budget, resolve_limits, step_limits
from headrace.inference.engine.loading.pooling import resolve_use
from headrace.inference.engine.loading.source import read_model
from headrace.inference.models.model import Model
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.weights import dominant_bits
from headrace.inference.runner.torch.plan import TorchPlan, check_kv_dtype, choose_dtype
from headrace.inference.runner.torch.runner import ModelFiles, load_torch_runner

_MAX_ROWS: Final = 256
"""Logit rows of a step, unless more sequences run: rows of a large vocabulary take memory from the KV cache."""


def load_torch(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
) -> Backend:
    """Load a model into our networks in torch and return its engine, not started yet; see `load_backend`."""
    model = read_model(source, progress)
    use = resolve_use(model, task=source.task, pooling=source.pooling)
    refuse_smoothed(model, config, is_smoothed_at_load=False)
    limits = resolve_limits(config, model.spec, max_model_len=source.max_model_len)
    plan, reason = plan_torch(config, model, limits)
    runner = load_torch_runner(
        model.spec,
        model.weights,
        plan,
        files=ModelFiles(path=model.path, rope=source.rope),
        threads=config.threads,
        progress=progress,
    )
    return engine_on(runner, source, config, model, use, limits, format_reason=reason, observer=observer)


def _refuse_missing_parts(model: Model) -> None:
    """Raise `UnsupportedModel` if a network has a part that this backend does not compute."""
    missing = {
        "scores by distance (alibi)": bool(model.spec.distance_slopes),
        "gates after attention": model.spec.attention_gate is not None,
        "layers that keep a state": model.spec.has_state,
        "latent attention": model.spec.mla is not None,
        "layers with scales of their output": model.spec.layer_scales,
        "layers with different heads": not model.spec.has_one_attention_shape,
        "activations with numbers of their own (xIELU)": model.spec.activation == "xielu",
    }
    for part, is_there in missing.items():
        if is_there:
            raise UnsupportedModel(
                f"{model.name} has {part}, which the torch backend does not compute. Use --backend native or "
                "transformers."
            )


def plan_torch(config: EngineConfig, model: Model, limits: EngineLimits) -> tuple[TorchPlan, str]:
    """Return the plan of a runner and the reason for its format; raises `SettingsError` for what this backend lacks."""
    if config.batch_invariant and config.device != "cuda":
        raise SettingsError(
            "batch_invariant is true and device is cpu, where torch rounds a number by its place in memory; expected "
            "device cuda. Leave it out, or use --backend native, which is batch-invariant.",
            name="batch_invariant",
        )
    _refuse_missing_parts(model)
    if config.isa is not None:
        raise SettingsError(
            f"isa is {config.isa}, which selects kernels of the native backend. Leave it out, or use --backend native.",
            name="isa",
        )
    dtype, reason = choose_dtype(
        config.dtype,
        encoding=model.weights.dominant_encoding,
        stored_bits=dominant_bits(model.weights, expected_shapes(model.spec)),
    )
    check_kv_dtype(config.kv_dtype, dtype)
    plan = TorchPlan(
        dtype=dtype,
        device=config.device,
        limits=step_limits(limits, config, max_rows=_MAX_ROWS),
        budget=host_budget(config),
        num_ranks=config.tensor_parallel_size or 1,
        gpu_memory_utilization=config.gpu_memory_utilization,
        enforce_eager=config.enforce_eager,
        is_batch_invariant=config.batch_invariant is True,
    )
    return plan, reason
