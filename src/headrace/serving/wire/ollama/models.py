"""
Responses of `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

Source: Ollama `docs/api.md`; `api/types.go` (ListModelResponse, ShowResponse, ProcessModelResponse).
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import AdapterInfo, ModelInfo
from headrace.serving.wire.dialect import RequestContext
from headrace.serving.wire.framing import decode_body, to_json
from headrace.serving.wire.ollama.dialect import named_model, parameters_of, timestamp

API_VERSION = "0.13.5"
"""The version of Ollama whose API is served; clients compare it with the oldest that they support (Codex: 0.13.4)."""

NEVER = "2300-01-01T00:00:00Z"
"""Clients convert it to their time zone, which would overflow in the year 9999."""
_WEIGHT_BITS = {"w4": 4, "w8": 8, "fp32": 32}


class ShowBody(msgspec.Struct, kw_only=True):
    """The body of `/api/show`; `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None


_decoder = msgspec.json.Decoder(ShowBody)


def render_tags(model: ModelInfo, adapters: Sequence[AdapterInfo]) -> bytes:
    """Render the list of models: the one that is served and its adapters."""
    return to_json({"models": [*_entries(model, adapters)]})


def render_running(model: ModelInfo, adapters: Sequence[AdapterInfo]) -> bytes:
    """Render the list of loaded models, which stay loaded until the server stops."""
    size = _size_bytes(model) if model.device.startswith("cuda") else 0
    more = {"expires_at": NEVER, "size_vram": size, "context_length": model.max_model_len}
    return to_json({"models": [{**entry, **more} for entry in _entries(model, adapters)]})


def listed_model(name: str, created_s: float, *, num_bytes: int = 0, form: str = "") -> dict[str, object]:
    """Return the entry of a model of which no more is known than its name, such as one that is not loaded."""
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": timestamp(int(created_s)),
        "size": num_bytes,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": {
            "parent_model": "",
            "format": form,
            "family": "",
            "families": [],
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def tagged(name: str) -> str:
    """Return a name with the tag that Ollama's clients expect."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def render_version() -> bytes:
    return to_json({"version": API_VERSION})


def render_show(body: bytes, context: RequestContext) -> bytes:
    """Render the description of the model that a body names. Raises `InvalidRequest` or `ModelNotFound`."""
    fields = decode_body(body, _decoder)
    name = fields.model or fields.name
    if not name:
        raise InvalidRequest("`model` is missing.", param="model")
    context, adapter = named_model(name, context)
    model = context.model
    return to_json(
        {
            "license": "",
            "modelfile": "",
            "parameters": parameters_of(model.recommended),
            "template": "",
            "modified_at": timestamp(model.created_s),
            "details": _details(model, parent="" if adapter is None else name),
            "model_info": {
                "general.architecture": model.family,
                "general.parameter_count": model.num_parameters,
                f"{model.family}.context_length": model.max_model_len,
                f"{model.family}.vocab_size": model.vocab_size,
            },
            "capabilities": [*_capabilities(model)],
        }
    )


def _entries(model: ModelInfo, adapters: Sequence[AdapterInfo]) -> Iterator[dict[str, object]]:
    yield _entry(model, model.name, model.created_s)
    for adapter in adapters:
        yield _entry(model, adapter.name, adapter.created_s, parent=model.name)


def _entry(model: ModelInfo, name: str, created_s: int, parent: str = "") -> dict[str, object]:
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": timestamp(created_s),
        "size": _size_bytes(model),
        "digest": hashlib.sha256(f"{name}@{model.revision}/{model.dtype}".encode()).hexdigest(),
        "details": _details(model, parent=parent),
    }


def _details(model: ModelInfo, *, parent: str) -> dict[str, object]:
    count = model.num_parameters
    return {
        "parent_model": parent,
        "format": "",
        "family": model.family,
        "families": [model.family],
        "parameter_size": f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M",
        "quantization_level": model.dtype.upper(),
    }


def _size_bytes(model: ModelInfo) -> int:
    """Return the approximate size of the weights: the number of parameters times the bits of their format."""
    bits = next((bits for prefix, bits in _WEIGHT_BITS.items() if model.dtype.startswith(prefix)), 16)
    return model.num_parameters * bits // 8


def _capabilities(model: ModelInfo) -> Iterator[str]:
    if model.generates:
        yield "completion"
        if model.can_infill:
            yield "insert"
        if model.has_chat_template:
            yield "tools"
        if model.answer_format is not None:
            yield "thinking"
    if model.pooling is not None and not model.pooling.labels:
        yield "embedding"
