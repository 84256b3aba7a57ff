"""
The choice of a backend: a pure function of what is requested, the model and the host.

A backend has an obstacle if it cannot serve the model here. `auto` takes the first without one: on a CPU the native
engine, whose kernels are the fastest there; on a GPU vLLM, then our torch runner. A setting `backend` is obeyed or
refused; an engine that another server's configuration names is a preference (`core.engine_names`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.core.engine_names import BACKENDS, ENGINES
from headrace.core.errors import HeadraceError, SettingsError, UnsupportedModel
from headrace.core.installing import pip_install
from headrace.inference.backends.quantization import Quantization

NATIVE: Final = "native"
CPU_ORDER: Final = ("native", "transformers", "vllm")
GPU_ORDER: Final = ("vllm", "torch", "transformers", "native")
"""Backends as `auto` tries them; on a CPU torch runs no network that the native engine does not run."""
EXTRAS: Final = {"torch": "torch", "transformers": "torch", "vllm": "vllm"}
"""The extra of `pip install headrace[...]` that each backend needs."""

NOT_INSTALLED: Final = "is not installed"


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
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The properties of a model that backends differ in."""

    architecture: str = ""
    """The class in `architectures` of config.json."""
    model_type: str = ""
    own_error: str | None = None
    """Why our own networks, native and in torch, do not run it; None: they do."""
    has_own_code: bool = False
    """The checkpoint brings a network in Python."""
    in_transformers: bool = True
    """The installed transformers has a class for `model_type`, or its classes are unknown."""
    in_vllm: bool = True
    """The installed vLLM runs the architecture, or what it runs is unknown."""
    keeps_state: bool = False
    """Transformers' network keeps a state beside keys and values."""
    quantization: Quantization | None = None
    is_encoder_decoder: bool = False
    is_gguf: bool = False
    is_pooled: bool = False
    """It is served for embeddings or scores."""

    @property
    def title(self) -> str:
        return self.architecture or self.model_type or "this model"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The properties of a host that backends differ in."""

    installed: frozenset[str] = frozenset({NATIVE})
    """Backends whose packages are installed."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of transformers and vLLM, for messages."""
    num_gpus: int = 0
    """GPUs that this process sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """The chosen backend, and the reason."""

    name: str
    device: str
    """cpu or cuda."""
    reason: str
    """One line."""
    notices: tuple[str, ...] = ()
    """Sentences about requested engines that another backend replaces."""
    adjustments: Mapping[str, str] = field(default_factory=dict)
    """Sentence about each setting whose value the backend replaces, by the setting's name."""


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """The reason why a backend cannot serve a model here."""

    text: str
    """Follows the backend's name."""
    fix: str = ""
    """What to do, as an imperative without a full stop: a command, if the error is a `SettingsError`."""
    error: type[HeadraceError] = UnsupportedModel
    """`SettingsError` if the fix makes this backend serve."""
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
    return replace(choice, notices=(notice,) if notice else ())


def install_command(backend: str) -> str:
    return pip_install(f"headrace[{EXTRAS[backend]}]")


def _device(request: Request, host: HostFacts) -> str:
    if request.device == "cuda" and not host.num_gpus:
        raise SettingsError(
            "device is cuda, and this process sees no NVIDIA GPU; expected one. Check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or use --device cpu.",
            name="device",
        )
    return "cuda" if host.num_gpus and request.device != "cpu" else "cpu"


def _obstacle(name: str, request: Request, model: ModelFacts, host: HostFacts) -> _Obstacle | None:
    if name == NATIVE and request.device == "cuda":
        return _Obstacle("runs on CPUs only", "use --device cpu", SettingsError)
    if name != NATIVE and name not in host.installed:
        return _Obstacle(NOT_INSTALLED, install_command(name), SettingsError)
    if name in (NATIVE, "torch"):
        return _Obstacle(_does_not_run(model), message=model.own_error) if model.own_error is not None else None
    if model.is_pooled or model.is_gguf:
        return _Obstacle(
            "serves no embeddings or scores" if model.is_pooled else "reads no GGUF files", "use --backend native"
        )
    version = host.versions.get(name, "")
    if name == "vllm":
        return _vllm_obstacle(request, model, version)
    return _transformers_obstacle(request, model, version, _device(request, host))


def _vllm_obstacle(request: Request, model: ModelFacts, version: str) -> _Obstacle | None:
    if model.is_encoder_decoder:
        return _Obstacle(f"{_does_not_run(model)}, an encoder-decoder", "use --backend transformers")
    if not model.in_vllm:
        return _missing_network(f"has no network for {model.title}", request, model, version)
    return None


def _transformers_obstacle(request: Request, model: ModelFacts, version: str, device: str) -> _Obstacle | None:
    if not model.in_transformers:
        missing = _missing_network(f"has no model class for model_type {model.model_type!r}", request, model, version)
        if missing is not None:
            return missing
    if model.keeps_state:
        return _Obstacle(f"{_does_not_run(model)}, whose state is no KV cache", "use --backend vllm")
    return _quantization_obstacle(model.quantization, version, device) if model.quantization is not None else None


def _missing_network(text: str, request: Request, model: ModelFacts, version: str) -> _Obstacle | None:
    """Return the obstacle of a library without a network; None if the checkpoint's own code may take its place."""
    text += f" (version {version})" if version else ""
    if not model.has_own_code:
        return _Obstacle(text)
    if request.trust_remote_code:
        return None
    return _Obstacle(
        f"{text}, and the code of the checkpoint is not trusted",
        "read it, then set trust_remote_code to run it here",
        SettingsError,
    )


def _quantization_obstacle(quantization: Quantization, version: str, device: str) -> _Obstacle | None:
    weights = f"weights quantized with {quantization.method}"
    if not quantization.is_known:
        return _Obstacle(f"does not read {weights}{f' (version {version})' if version else ''}")
    if quantization.needs_gpu and device == "cpu":
        return _Obstacle(f"runs {weights} on GPUs only")
    if quantization.missing:
        packages = " and ".join(quantization.missing)
        return _Obstacle(f"needs {packages} for {weights}", pip_install(*quantization.missing), SettingsError)
    return None


def _does_not_run(model: ModelFacts) -> str:
    return f"does not run {model.title}"


def _chosen(name: str, device: str, reason: str) -> BackendChoice:
    return BackendChoice(name=name, device="cpu" if name == NATIVE else device, reason=reason)


def _first(
    order: tuple[str, ...], obstacles: Mapping[str, _Obstacle | None], model: ModelFacts, device: str
) -> BackendChoice:
    """Return the first backend of an order that can serve; the reason names the obstacles of those before it."""
    passed: list[str] = []
    for name in order:
        obstacle = obstacles[name]
        if obstacle is None:
            place = "a GPU" if device == "cuda" else "a CPU"
            return _chosen(name, device, "; ".join(passed) or f"the first choice on {place}")
        passed.append(f"{name} {obstacle.text}")
    native = obstacles[NATIVE]
    first = native.message if native is not None and native.message else f"No backend can serve {model.title} here."
    others = [
        f"{name} {_with_fix(obstacle)}"
        for name in order
        if (obstacle := obstacles[name]) is not None and (name != NATIVE or not obstacle.message)
    ]
    raise UnsupportedModel(f"{first} Other backends: {'; '.join(others)}.", model_type=model.model_type)


def _with_fix(obstacle: _Obstacle) -> str:
    return f"{obstacle.text} ({obstacle.fix})" if obstacle.error is SettingsError else obstacle.text


def _refusal(name: str, obstacle: _Obstacle) -> HeadraceError:
    if obstacle.message:
        return obstacle.error(obstacle.message)
    sentence = f"backend is {name}, which {obstacle.text}."
    if " install " in obstacle.fix:
        return obstacle.error(f"{sentence} Install it: {obstacle.fix}.")
    return obstacle.error(f"{sentence} {obstacle.fix[:1].upper()}{obstacle.fix[1:]}." if obstacle.fix else sentence)


def _engine_notice(requested: str, choice: BackendChoice, obstacles: Mapping[str, _Obstacle | None]) -> str:
    """Return a sentence that names the requested engine and the backend that serves, or "" if they agree."""
    engine = ENGINES[requested]
    if engine.is_missing:
        return f"rolling_batch {requested} asks for {engine.title}, which does not run here: {choice.name} serves."
    if engine.backends and choice.name not in engine.backends:
        (name,) = engine.backends
        obstacle = obstacles[name]
        assert obstacle is not None, "a preferred backend without an obstacle serves"
        return f"rolling_batch {requested} asks for {name}, which {_with_fix(obstacle)}: {choice.name} serves."
    return ""
