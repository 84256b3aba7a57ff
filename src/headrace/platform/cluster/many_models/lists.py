"""The lists of models and their states: OpenAI's with llama-server's `status`, and those of Ollama."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.platform.cluster.many_models.presets import ModelPreset
from headrace.platform.cluster.many_models.service import ManyModels
from headrace.platform.cluster.model_host.entries import ModelStatus
from headrace.serving.wire.framing import to_json
from headrace.serving.wire.ollama.dialect import timestamp
from headrace.serving.wire.ollama.models import NEVER, tagged
from headrace.serving.wire.ollama.models import listed_model as listed_tag
from headrace.serving.wire.openai.pages import listed_model, model_list

_FACTS = ("max_model_len", "has_chat_template", "tool_support")


def render_models(service: ManyModels) -> bytes:
    return to_json(model_list([_model(service, preset) for preset in service.catalogue.presets]))


def render_model(service: ManyModels, preset: ModelPreset) -> bytes:
    return to_json(_model(service, preset))


def render_tags(service: ManyModels) -> bytes:
    return to_json({"models": [_tag(service, preset) for preset in service.catalogue.presets]})


def render_running(service: ManyModels) -> bytes:
    """Render Ollama's list of loaded models, with the times at which they are unloaded."""
    models = []
    for preset in service.catalogue.presets:
        status = service.host.status(preset.name)
        if status.value == "loaded":
            tag, rest_s = _tag(service, preset), status.expires_in_s
            expires = NEVER if rest_s is None else timestamp(time.time() + rest_s)
            facts = _first(service.page(preset.name, "/v1/models"), "data")
            more = {"expires_at": expires, "size_vram": 0, "context_length": facts.get("max_model_len") or 0}
            models.append({**tag, "size": status.memory_bytes, **more})
    return to_json({"models": models})


def _model(service: ManyModels, preset: ModelPreset) -> dict[str, object]:
    facts = _first(service.page(preset.name, "/v1/models"), "data")
    return {
        **listed_model(preset.name, service.started_s),
        "aliases": list(preset.names[1:]),
        "status": _status(service.host.status(preset.name)),
        "pinned": preset.is_pinned,
        **{name: facts[name] for name in _FACTS if name in facts},
    }


def _status(status: ModelStatus) -> dict[str, object]:
    """Return the state as llama-server has it, with what clients of a server with little memory need to know."""
    more: dict[str, object] = {"failed": True, "error": status.error} if status.error else {}
    if status.value == "loaded":
        more = {"memory_bytes": status.memory_bytes, "expires_in_s": status.expires_in_s}
    return {"value": status.value, "requests": status.num_requests, **more}


def _tag(service: ManyModels, preset: ModelPreset) -> dict[str, object]:
    """Return Ollama's entry: that of the model's own server, or what the files say before its first load."""
    name = tagged(preset.name)
    known = _first(service.page(preset.name, "/api/tags"), "models")
    if known:
        return {**known, "name": name, "model": name}
    num_bytes, modified_s = 0, service.started_s
    if preset.path is not None and preset.path.exists():
        stat = preset.path.stat()
        modified_s, num_bytes = stat.st_mtime, stat.st_size if preset.path.is_file() else 0
    form = "gguf" if preset.model.endswith(".gguf") else ""
    return listed_tag(preset.name, modified_s, num_bytes=num_bytes, form=form)


def _first(page: bytes | None, key: str) -> Mapping[str, Any]:
    """Return the first entry of a list in a page; empty without one."""
    entries = [] if page is None else msgspec.json.decode(page).get(key) or []
    return entries[0] if entries else {}
