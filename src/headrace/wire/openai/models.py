"""Responses to `GET /v1/models` and `GET /v1/models/{id}`."""

from collections.abc import Sequence

from headrace.core.client_text import shortened
from headrace.core.errors import ModelNotFound
from headrace.core.generation import ModelInfo
from headrace.wire.framing import to_json


def render_models(model: ModelInfo, names: Sequence[str] = ()) -> bytes:
    """Render the list: the model under its own name and under each of `names`."""
    return to_json({"object": "list", "data": [_model(model, name) for name in dict.fromkeys((model.name, *names))]})


def render_model(model: ModelInfo, name: str, names: Sequence[str] = ()) -> bytes:
    """
    Render one model.

    Raises:
        ModelNotFound: no model is served under that name.
    """
    if name not in {model.name, *names}:
        raise ModelNotFound(f"The model `{shortened(name)}` does not exist. Served here: `{model.name}`.")
    return to_json(_model(model, name))


def _model(model: ModelInfo, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "headrace",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
    }
