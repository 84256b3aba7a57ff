"""
Errors for paths that are not served: they name the route to use instead, in the error format of the path's clients.

The model server and the platform share one table. On the platform every other path is a bucket's, so a request counts
as one for another API only if no S3 client would send it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, MethodNotAllowed, NotFound
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
RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
TOKENIZER_INFO = "/tokenizer_info"
VERSION = "/version"
OPENAI_METHODS = {
    **dict.fromkeys(
        (CHAT, COMPLETIONS, RESPONSES, INPUT_TOKENS, EMBEDDINGS, RERANK, SCORE, MESSAGES, COUNT_TOKENS), ("POST",)
    ),
    MODELS: ("GET", "HEAD"),
}
"""Routes below `/v1` whose body names the model, and the list of models; on the server and on the platform."""

_MAX_NEAR_CHARACTERS = 100

Render = Callable[[HeadraceError], ErrorReply]


@dataclass(frozen=True, slots=True)
class _Foreign:
    """The paths of an API that is not served."""

    paths: str
    """A regular expression; a slash may follow."""
    render: Render
    hint: str
    is_read: bool = False
    """True if a GET cannot come from an S3 client, because the path is not a bucket and key."""
    is_of_servers: bool = False
    """True if model servers serve the paths, but the platform does not."""


_OPENAI = openai.render_error
_PLAIN = ollama.render_error
"""Ollama, Triton and KServe have the same format."""
_USE_CHAT = f"use POST {CHAT}"
_USE_INVOCATIONS = "use POST {invocations}"
_TOKENIZER = "The tokenizer is not served here, only by model servers"
_OLLAMA = "Ollama's API is not served here, only by model servers"
_FOREIGN: Sequence[_Foreign] = (
    _Foreign(
        r"/v1/responses/(?!input_tokens$).+|/v1/conversations(?:/.*)?",
        _OPENAI,
        f"This part of the Responses API is not served, or responses are not stored here; use POST {RESPONSES} "
        "with all items of the conversation.",
        is_read=True,
    ),
    _Foreign(
        r"/v1/messages/batches.*|/v1/complete",
        anthropic.render_error,
        f"This part of Anthropic's API is not served; use POST {MESSAGES}.",
        is_read=True,
    ),
    _Foreign(
        r"(?:/v1)?/(?:pooling|classify)|/embeddings|/score|/v2/rerank",
        _OPENAI,
        f"This route is not served; use POST {EMBEDDINGS}, {RERANK} or {SCORE}.",
    ),
    _Foreign(
        r"/(?:embed|embed_all|embed_sparse|rerank|predict|similarity)",
        tei.render_error,
        f"This route of TEI is not served; use POST {EMBEDDINGS} or {RERANK}, or send TEI's body to {{invocations}}.",
        is_of_servers=True,
    ),
    _Foreign(TOKENIZER_INFO, _OPENAI, f"{_TOKENIZER}.", is_read=True, is_of_servers=True),
    _Foreign(DETOKENIZE, _OPENAI, f"{_TOKENIZER}; use POST {COUNT_TOKENS} to count tokens.", is_of_servers=True),
    _Foreign(TOKENIZE, tgi.render_error, f"{_TOKENIZER}; use POST {COUNT_TOKENS} to count tokens.", is_of_servers=True),
    _Foreign(
        r"/v1/(?:audio|images|videos|moderations|files|uploads|batches|assistants|threads|fine_tuning|realtime)(?:/.*)?",
        _OPENAI,
        f"This part of OpenAI's API is not served, only generated text; {_USE_CHAT} or {COMPLETIONS}.",
        is_read=True,
    ),
    _Foreign(
        r"/api/(?:chat|generate)",
        _PLAIN,
        f"{_OLLAMA}; {_USE_CHAT}, which its clients also support with the base URL .../v1.",
        is_of_servers=True,
    ),
    _Foreign(r"/api/(?:tags|ps|version)", _PLAIN, f"{_OLLAMA}; use GET {MODELS}.", is_read=True, is_of_servers=True),
    _Foreign(
        r"/api/(?:show|embed|embeddings)",
        _PLAIN,
        f"{_OLLAMA}; use GET {MODELS}, POST {CHAT} and {EMBEDDINGS}.",
        is_of_servers=True,
    ),
    _Foreign(
        r"/api/(?:pull|push|create|copy|delete|blobs/.+)",
        _PLAIN,
        "This part of Ollama's API is not served: a server has the model that it was started with. Use "
        "`headrace serve MODEL`, or `headrace deploy MODEL` on a platform.",
    ),
    _Foreign(
        r"/api/(?:me|signout|web_search|web_fetch)",
        _PLAIN,
        f"Accounts and searches of Ollama's cloud are not served, only generated text; {_USE_CHAT}.",
    ),
    _Foreign(
        r"/v2/(?:health/(?:ready|live))",
        _PLAIN,
        "The API of Triton and KServe (v2) is not served; use GET /ping.",
        is_read=True,
    ),
    _Foreign(
        r"/v2(?:/models(?:/.*)?|/repository/.*)?",
        _PLAIN,
        f"The API of Triton and KServe (v2) is not served; {_USE_INVOCATIONS} or {CHAT}.",
        is_read=True,
    ),
    _Foreign(
        r"/v1/models/[^/]+:(?:predict|explain)",
        _PLAIN,
        f"The API of TensorFlow Serving and KServe (v1) is not served; {_USE_INVOCATIONS} or {CHAT}.",
    ),
    _Foreign(
        r"/predictions/.+",
        torchserve.render_error,
        f"TorchServe's inference API is not served; {_USE_INVOCATIONS}, with the dialect `torchserve`.",
    ),
    _Foreign(
        r"/openai/deployments/[^/]+/.+",
        _OPENAI,
        f"Azure's paths are not served; {_USE_CHAT} and name the deployment in `model` "
        "(OpenAI's SDKs: the class OpenAI in place of AzureOpenAI).",
    ),
    _Foreign(
        r"/(?:chat/completions|completions|completion)",
        _OPENAI,
        f"OpenAI's routes begin with /v1; use POST {CHAT} or {COMPLETIONS} (OpenAI's SDKs: end base_url with /v1).",
    ),
)


_PATTERNS = [(re.compile(rf"(?:{foreign.paths})/?", re.ASCII), foreign) for foreign in _FOREIGN]


def render_error_for(path: str, error: HeadraceError, *, default: Render = tgi.render_error) -> ErrorReply:
    """Render an error in the format of the clients that request such a path; below `/v1` that is OpenAI's."""
    foreign = _foreign(path)
    if foreign is not None:
        return foreign.render(error)
    if path in {MESSAGES, COUNT_TOKENS}:
        return anthropic.render_error(error)
    return _OPENAI(error) if path.startswith("/v1/") else default(error)


def error_event_for(path: str, error: HeadraceError) -> bytes:
    """Render an error inside a stream of server-sent events, in the format of the clients that request such a path."""
    if path == MESSAGES:
        return anthropic.error_event(error)
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


def is_foreign(method: str, path: str) -> bool:
    """Return whether an unsigned request on the platform is for another server's API, not for S3."""
    foreign = _foreign(path)
    return foreign is not None and (method == "POST" or (foreign.is_read and method in {"GET", "HEAD"}))


def _foreign(path: str) -> _Foreign | None:
    return next((foreign for paths, foreign in _PATTERNS if paths.fullmatch(path)), None)
