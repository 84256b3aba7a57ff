"""The requests that go to a model, and the fields of a body by which it is chosen. Pure."""

from typing import Final

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.framing import decode_body
from headrace.serving.wire.ollama.keep_alive import keep_alive_s
from headrace.serving.wire.openapi.operations import MANY_MODELS_OPERATIONS
from headrace.serving.wire.unknown_routes import OLLAMA_POSTS

OLLAMA_GENERATES: Final = ("/api/chat", "/api/generate")
_ANSWERED_HERE: Final = frozenset(
    ("/v1/models", "/v1/models/{name:path}", "/api/tags", "/api/ps", "/api/version", "/version", "/ping")
)
_GROUPS_ANSWERED_HERE: Final = ("Server", "Many models")
_OF_MODEL: Final = frozenset(
    (operation.method, operation.path)
    for operation in MANY_MODELS_OPERATIONS
    if operation.api.name not in _GROUPS_ANSWERED_HERE and operation.path not in _ANSWERED_HERE
)


class NamedModel(msgspec.Struct, kw_only=True):
    """The fields of a body that the server in front of the models reads."""

    model: str | None = None
    name: str | None = None
    """Ollama's older name of `model`."""
    stream: bool | None = None
    keep_alive: float | str | None = None
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(NamedModel)


def goes_to_model(method: str, path: str) -> bool:
    """Return whether a model's own server answers the requests of a route."""
    return (method, path) in _OF_MODEL


def allowed_methods(path: str) -> tuple[str, ...]:
    """Return the methods of a path that models answer; empty if they do not."""
    return tuple(sorted(method for method, known in _OF_MODEL if known == path))


def read_named(body: bytes, path: str) -> NamedModel:
    """
    Return the fields of a body that choose the model; none for a body without JSON on a route that takes others.

    Raises `InvalidRequest`: it is not JSON, or a field has the wrong type.
    """
    takes_more = path in ("/invocations", "/")  # as its model does, by its dialect
    try:
        return decode_body(body, _decoder)
    except InvalidRequest:
        if takes_more or not body:
            return NamedModel()
        raise


def keep_s_of(named: NamedModel, path: str) -> float | None:
    """Return the time to live that a request of Ollama sets; None: none. Raises `InvalidRequest`: no duration."""
    return keep_alive_s(named.keep_alive) if path in OLLAMA_POSTS else None


def streams_events(named: NamedModel, path: str) -> bool:
    """Return whether the answer is a stream of server-sent events, in which clients skip comments."""
    return named.stream is True and path not in OLLAMA_POSTS


def asks_for_unload(named: NamedModel, path: str) -> bool:
    """Return whether a body of Ollama has no prompt and a time to live of 0."""
    if path not in OLLAMA_GENERATES or keep_s_of(named, path) != 0:
        return False
    return all(bytes(part) in (b"", b'""', b"[]", b"null") for part in (named.prompt, named.messages))
