"""
The choice of a backend: a pure function of what is requested, the model and the host.

A backend has an obstacle if it cannot serve the model here. `auto` takes the first without one: on a CPU the native
engine, whose kernels are the fastest there; on a GPU vLLM, then our torch runner. A setting `backend` is obeyed or
refused; an engine that another server's configuration names is a preference (`settings.engine_names`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.core.errors import HeadraceError, SettingsError, UnsupportedModel
from headrace.settings.engine_names import BACKENDS, ENGINES

NATIVE: Final = "native"
CPU_ORDER: Final = ("native", "transformers", "vllm")
GPU_ORDER: Final = ("vllm", "torch", "transformers", "native")
"""Backends as `auto` tries them; on a CPU torch runs no network that the native engine does not run."""
EXTRAS: Final = {"torch": "torch", "transformers": "torch", "vllm": "vllm"}
"""The extra of `pip install headrace[...]` that each backend needs."""

NOT_INSTALLED: Final = "is not installed"

_STATE_MODELS: Final = frozenset(
    (
        *("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "nemotron_h"),
        *("rwkv", "xlstm", "recurrent_gemma", "qwen3_next", "qwen3_5", "kimi_linear", "lfm2", "granitemoehybrid"),
    )
)
"""Values of `model_type` whose state is no KV cache, which only vLLM runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The backend, engine and device that the settings ask for."""

    backend: str = "auto"
    """auto, or a backend that must serve."""
    engine: str = "auto"
    """A name in `ENGINES`, which is preferred."""
    device: str = "auto"
    is_strict: bool = False
    """Refuse to serve with another engine than `engine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The properties of a model that backends differ in."""

    architecture: str = ""
    """The class in `architectures` of config.json."""
    model_type: str = ""
    native_error: str | None = None
    """Why the native engine does not run it; None: it does."""
    torch_error: str | None = None
    """Why the torch runner does not run it."""
    is_encoder_decoder: bool = False
    is_gguf: bool = False
    is_pooled: bool = False
    """It is served for embeddings or scores."""

    @property
    def title(self) -> str:
        """A name for messages."""
        return self.architecture or self.model_type or "this model"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The properties of a host that backends differ in."""

    installed: frozenset[str] = frozenset({NATIVE})
    """Backends whose packages are installed."""
    num_gpus: int = 0
    """GPUs that this process sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """The backend that serves, and why."""

    name: str
    device: str
    """cpu or cuda."""
    reason: str
    """One line."""
    notices: tuple[str, ...] = ()
    """Sentences about what was asked for and is served otherwise."""
    adjustments: Mapping[str, str] = field(default_factory=dict)
    """Sentence about each setting whose value the backend replaces, by the setting's name."""


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """The reason why a backend cannot serve a model here."""

    text: str
    """Follows the backend's name."""
    fix: str = ""
    error: type[HeadraceError] = UnsupportedModel
    message: str = ""
    """The whole error, in place of name, text and fix."""


def choose_backend(request: Request, model: ModelFacts, host: HostFacts) -> BackendChoice:
    """
    Return the backend to serve a model with.

    Raises:
        SettingsError: the requested backend or device is not available.
        UnsupportedModel: no available backend runs the model, or the requested one does not.
    """
    device = _device(request, host)
    obstacles = {name: _obstacle(name, request, model, host) for name in BACKENDS}
    if request.backend != "auto":
        obstacle = obstacles[request.backend]
        if obstacle is not None:
            raise _refusal(request.backend, obstacle)
        return _chosen(request.backend, device, "as requested")
    engine = ENGINES[request.engine]
    preferred = next((name for name in engine.backends if obstacles[name] is None), None)
    if preferred is not None:
        choice = _chosen(preferred, device, f"rolling_batch {request.engine} asks for {engine.title}")
    else:
        choice = _first(GPU_ORDER if device == "cuda" else CPU_ORDER, obstacles, model, device)
    notice = _engine_notice(request.engine, choice, obstacles)
    if notice and request.is_strict:
        raise SettingsError(
            f"rolling_batch is {request.engine}, and strict_backend is on: {notice} Name an engine that runs here, or "
            "turn strict_backend off.",
            name="rolling_batch",
        )
    return BackendChoice(
        name=choice.name, device=choice.device, reason=choice.reason, notices=(notice,) if notice else ()
    )


def install_command(backend: str) -> str:
    """Return the command that installs what a backend needs."""
    return f"pip install 'headrace[{EXTRAS[backend]}]'"


def _device(request: Request, host: HostFacts) -> str:
    if request.device == "cuda" and not host.num_gpus:
        raise SettingsError(
            "device is cuda, and this process sees no NVIDIA GPU; expected one. Check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or use --device cpu.",
            name="device",
        )
    return "cuda" if host.num_gpus and request.device != "cpu" else "cpu"


def _obstacle(name: str, request: Request, model: ModelFacts, host: HostFacts) -> _Obstacle | None:
    if name == NATIVE:
        return _native_obstacle(request, model)
    does_not_run = f"does not run {model.title}"
    checks = (
        (name not in host.installed, _Obstacle(NOT_INSTALLED, install_command(name), SettingsError)),
        (name != "torch" and model.is_pooled, _Obstacle("serves no embeddings or scores", "Use --backend native.")),
        (name != "torch" and model.is_gguf, _Obstacle("reads no GGUF files", "Use --backend native.")),
        (name == "torch" and model.torch_error is not None, _Obstacle(does_not_run, message=model.torch_error or "")),
        (
            name == "vllm" and model.is_encoder_decoder,
            _Obstacle(f"{does_not_run}, an encoder-decoder", "Use --backend transformers."),
        ),
        (
            name == "transformers" and model.model_type in _STATE_MODELS,
            _Obstacle(f"{does_not_run}, whose state is no KV cache", "Use --backend vllm."),
        ),
    )
    return next((obstacle for applies, obstacle in checks if applies), None)


def _native_obstacle(request: Request, model: ModelFacts) -> _Obstacle | None:
    if request.device == "cuda":
        return _Obstacle("runs on CPUs only", "Use --device cpu.", SettingsError)
    if model.native_error is not None:
        return _Obstacle(f"does not run {model.title}", message=model.native_error)
    return None


def _chosen(name: str, device: str, reason: str) -> BackendChoice:
    return BackendChoice(name=name, device="cpu" if name == NATIVE else device, reason=reason)


def _first(
    order: tuple[str, ...], obstacles: Mapping[str, _Obstacle | None], model: ModelFacts, device: str
) -> BackendChoice:
    """Return the first backend of an order that can serve; the reason names what is wrong with those before it."""
    passed: list[str] = []
    for name in order:
        obstacle = obstacles[name]
        if obstacle is None:
            place = "a GPU" if device == "cuda" else "a CPU"
            return _chosen(name, device, "; ".join(passed) or f"the first choice on {place}")
        passed.append(f"{name} {obstacle.text}")
    raise _none_serves(order, obstacles, model)


def _none_serves(order: tuple[str, ...], obstacles: Mapping[str, _Obstacle | None], model: ModelFacts) -> HeadraceError:
    native = obstacles[NATIVE]
    first = native.message if native is not None and native.message else f"No backend can serve {model.title} here."
    others = [
        f"{name} {obstacle.text}{f' ({obstacle.fix})' if obstacle.error is SettingsError else ''}"
        for name in order
        if (obstacle := obstacles[name]) is not None and (name != NATIVE or not obstacle.message)
    ]
    return UnsupportedModel(f"{first} Other backends: {'; '.join(others)}.", model_type=model.model_type)


def _refusal(name: str, obstacle: _Obstacle) -> HeadraceError:
    if obstacle.message:
        return obstacle.error(obstacle.message)
    fix = f"Install it: {obstacle.fix}." if obstacle.text == NOT_INSTALLED else obstacle.fix
    return obstacle.error(f"backend is {name}, which {obstacle.text}. {fix}".strip())


def _engine_notice(requested: str, choice: BackendChoice, obstacles: Mapping[str, _Obstacle | None]) -> str:
    """Return a sentence that names what was asked for and what serves, or an empty one if they are the same."""
    engine = ENGINES[requested]
    if engine.is_missing:
        return f"rolling_batch {requested} asks for {engine.title}, which does not run here: {choice.name} serves."
    if engine.backends and choice.name not in engine.backends:
        (name,) = engine.backends
        obstacle = obstacles[name]
        assert obstacle is not None, "a preferred backend without an obstacle serves"
        fix = f" ({obstacle.fix})" if obstacle.error is SettingsError else ""
        return f"rolling_batch {requested} asks for {name}, which {obstacle.text}{fix}: {choice.name} serves."
    return ""
