"""Responses to `GET /v1/models` and `GET /v1/models/{id}`."""

from collections.abc import Sequence

from headrace.core.client_text import shortened
from headrace.core.errors import ModelNotFound
from headrace.core.generation import AdapterInfo, ModelInfo
from headrace.wire.framing import to_json


def render_models(model: ModelInfo, names: Sequence[str] = (), adapters: Sequence[AdapterInfo] = ()) -> bytes:
    """Render the list: the model under its own name and under each of `names`, and its adapters."""
    models = [_model(model, name) for name in dict.fromkeys((model.name, *names))]
    return to_json({"object": "list", "data": [*models, *(_adapter(model, adapter) for adapter in adapters)]})


def render_model(model: ModelInfo, name: str, names: Sequence[str] = (), adapters: Sequence[AdapterInfo] = ()) -> bytes:
    """
    Render one model or adapter.

    Raises:
        ModelNotFound: no model is served under that name.
    """
    for adapter in adapters:
        if adapter.name == name:
            return to_json(_adapter(model, adapter))
    if name not in {model.name, *names}:
        raise ModelNotFound(f"The model `{shortened(name)}` does not exist. Served here: `{model.name}`.")
    return to_json(_model(model, name))


def _adapter(model: ModelInfo, adapter: AdapterInfo) -> dict[str, object]:
    """Return an adapter as vLLM lists it."""
    return {
        **_model(model, adapter.name),
        "created": adapter.created_s,
        "root": adapter.path,
        "parent": model.name,
    }


def _model(model: ModelInfo, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "headrace",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "has_chat_template": model.has_chat_template,
        "tool_support": model.tool_support,
    }
