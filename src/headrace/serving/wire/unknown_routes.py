"""
Errors for paths that are not served: they name the route to use instead, in the error format of the path's clients.

The model server and the platform share one table. On the platform every other path is a bucket's, so a request counts
as one for another API only if no S3 client would send it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, MethodNotAllowed, NotFound, UpgradeRequired
from headrace.serving.wire.anthropic import reply as anthropic
from headrace.serving.wire.dialect import ErrorReply
from headrace.serving.wire.framing import sse_event
from headrace.serving.wire.ollama import reply as ollama
from headrace.serving.wire.openai import envelope as openai
from headrace.serving.wire.openai import responses_reply
from headrace.serving.wire.tei import dialect as tei
from headrace.serving.wire.tgi import reply as tgi
from headrace.serving.wire.torchserve import dialect as torchserve

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODELS = "/v1/models"
EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
SCORE = "/v1/score"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
MESSAGE_BATCHES = "/v1/messages/batches"
FILES = "/v1/files"
BATCHES = "/v1/batches"
RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
OPENAPI_PATH = "/openapi.json"
TOKENIZER_INFO = "/tokenizer_info"
VERSION = "/version"
LOAD_MODEL = "/models/load"
UNLOAD_MODEL = "/models/unload"
"""Routes of llama-server, whose errors are OpenAI's."""
OPENAI_METHODS = {
    **dict.fromkeys(
        (CHAT, COMPLETIONS, RESPONSES, INPUT_TOKENS, EMBEDDINGS, RERANK, SCORE, MESSAGES, COUNT_TOKENS), ("POST",)
    ),
    MODELS: ("GET", "HEAD"),
}
"""Routes below `/v1` whose body names the model, and the list of models; on the server and on the platform."""
OLLAMA_POSTS = frozenset({"/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"})
"""Routes of Ollama whose body names the model."""
OLLAMA_PAGES = frozenset({"/api/tags", "/api/ps", "/api/version"})

_MAX_NEAR_CHARACTERS = 100

Render = Callable[[HeadraceError], ErrorReply]


_RENDERS: Mapping[str, Render] = {
    "openai": openai.render_error,
    "anthropic": anthropic.render_error,
    "ollama": ollama.render_error,
    "tei": tei.render_error,
    "tgi": tgi.render_error,
    "torchserve": torchserve.render_error,
}


_METHODS: Mapping[str, tuple[str, ...]] = {"read": ("GET", "HEAD"), "delete": ("DELETE",)}
"""Methods that a flag of `unknown_routes.txt` adds to POST."""


@dataclass(frozen=True, slots=True)
class _Foreign:
    """The paths of an API that is not served."""

    paths: re.Pattern[str]
    render: Render
    hint: str
    methods: frozenset[str]
    """Methods by which no unsigned S3 client would send such a path."""
    is_of_servers: bool


def _read_foreign(text: str) -> Iterator[_Foreign]:
    """Yield the APIs of a text as `unknown_routes.txt`, which describes its format."""
    for title, hint in re.findall(r"^\[(.+)\n((?:    .+\n)+)", text, re.MULTILINE):
        marks, _, paths = title.partition("] ")
        form, *flags = marks.split(", ")
        pattern = re.compile(rf"(?:{paths})/?", re.ASCII)
        methods = frozenset({"POST"}.union(*(_METHODS.get(flag, ()) for flag in flags)))
        yield _Foreign(pattern, _RENDERS[form], " ".join(hint.split()), methods, "server" in flags)


_FOREIGN = tuple(_read_foreign(Path(__file__).with_name("unknown_routes.txt").read_text(encoding="utf-8")))


def render_error_for(path: str, error: HeadraceError, *, default: Render = tgi.render_error) -> ErrorReply:
    """Render an error in the format of the clients that request such a path; below `/v1` that is OpenAI's."""
    foreign = _foreign(path)
    if foreign is not None:
        return foreign.render(error)
    if path in {MESSAGES, COUNT_TOKENS}:
        return anthropic.render_error(error)
    is_openai = path.startswith("/v1/") or path in {LOAD_MODEL, UNLOAD_MODEL}
    return openai.render_error(error) if is_openai else default(error)


def error_event_for(path: str, error: HeadraceError) -> bytes:
    """Render an error inside a stream, in the format of the clients that request such a path."""
    if path == MESSAGES:
        return anthropic.error_event(error)
    if path in OLLAMA_POSTS:
        return ollama.error_line(error)
    if path == RESPONSES:
        return responses_reply.error_event(error)
    return sse_event(openai.error_body(error))


def unknown_route(
    method: str, path: str, *, allowed: Sequence[str] = (), invocations: str = "/invocations"
) -> HeadraceError:
    """
    Return the error for a route that is not served, which names a route to use instead.

    `allowed` are the methods of the path, if it is served at all; `invocations` is the path of a model's own dialect.
    """
    route = f"{method} {shortened(path)}"
    foreign = _foreign(path)
    if foreign is not None and not (allowed and foreign.is_of_servers):
        return NotFound(f"{route}: {foreign.hint.format(invocations=invocations)}")
    if allowed:
        return MethodNotAllowed(f"{route} is not served; use {' or '.join(allowed)}.", allowed=tuple(allowed))
    if len(path) <= _MAX_NEAR_CHARACTERS:
        # A path that is misspelt: an extra slash, `/v1` twice, a wrong letter.
        slim = re.sub(r"/+", "/", path.lower()).rstrip("/").replace("/v1/v1/", "/v1/")
        for near in get_close_matches(slim, OPENAI_METHODS, n=1, cutoff=0.85):
            return NotFound(f"{route} is not served. Did you mean {OPENAI_METHODS[near][0]} {near}?")
    return NotFound(f"{route} is not served. Generation: POST {invocations}, {CHAT}, {COMPLETIONS}.")


def refuse_websocket(error: HeadraceError, upgrade: str | None) -> HeadraceError:
    """
    Return the error for a request whose header `Upgrade` asks for a WebSocket on a route that is served over HTTP.

    Codex tries WebSockets first: after a 426 it changes to HTTP at once, after a 405 it tries again for seven seconds.
    """
    if not isinstance(error, MethodNotAllowed) or (upgrade or "").lower() != "websocket":
        return error
    return UpgradeRequired(f"WebSockets are not served. {error.message}", allowed=error.allowed)


def is_foreign(method: str, path: str) -> bool:
    """Return whether an unsigned request on the platform is for another server's API, not for S3."""
    foreign = _foreign(path)
    return foreign is not None and method in foreign.methods


def _foreign(path: str) -> _Foreign | None:
    return next((foreign for foreign in _FOREIGN if foreign.paths.fullmatch(path)), None)
