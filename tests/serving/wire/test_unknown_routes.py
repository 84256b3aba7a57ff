"""Errors of paths that are not served, in the format of the clients that request them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Busy, EngineFailed, MethodNotAllowed, Unauthorized, UpgradeRequired
from headrace.serving.wire.unknown_routes import (
    OPENAI_METHODS,
    is_foreign,
    refuse_websocket,
    render_error_for,
    unknown_route,
)

CHAT = "use POST /v1/chat/completions"
RESPONSES = "use POST /v1/responses with all items"
MESSAGES = "use POST /v1/messages"
FOREIGN = [
    ("GET", "/v1/responses/resp_1/events", "openai", RESPONSES),
    ("POST", "/v1/responses/compact", "openai", RESPONSES),
    ("POST", "/v1/conversations", "openai", RESPONSES),
    ("POST", "/v1/classify", "openai", "use POST /v1/embeddings, /v1/rerank or /v1/score"),
    ("POST", "/embeddings", "openai", "use POST /v1/embeddings"),
    ("POST", "/embed_sparse", "tgi", "use POST /v1/embeddings"),
    ("POST", "/v1/audio/transcriptions", "openai", CHAT),
    ("POST", "/v1/images/generations", "openai", CHAT),
    ("POST", "/v1/uploads", "openai", CHAT),
    ("GET", "/v1/files/a/parts", "openai", CHAT),
    ("GET", "/v1/messages/batches/a/parts", "anthropic", MESSAGES),
    ("POST", "/v1/complete", "anthropic", MESSAGES),
    ("POST", "/api/pull", "plain", "headrace serve MODEL"),
    ("DELETE", "/api/delete", "plain", "headrace serve MODEL"),
    ("POST", "/api/blobs/sha256:ab", "plain", "headrace serve MODEL"),
    ("POST", "/api/web_search", "plain", "/v1/chat/completions"),
    ("GET", "/v2/health/ready", "plain", "use GET /ping"),
    ("GET", "/v2/models/m", "plain", "use POST /invocations"),
    ("POST", "/v2/models/m/infer", "plain", "use POST /invocations"),
    ("POST", "/v2/models/m/versions/1/generate", "plain", "use POST /invocations"),
    ("POST", "/v1/models/m:predict", "plain", "use POST /invocations"),
    ("POST", "/predictions/m", "torchserve", "use POST /invocations"),
    ("POST", "/openai/deployments/gpt/chat/completions", "openai", "name the deployment in `model`"),
    ("POST", "/chat/completions", "openai", "end base_url with /v1"),
    ("POST", "/completions", "openai", "end base_url with /v1"),
    ("POST", "/completion", "openai", "end base_url with /v1"),
]
"""Method, path, form of the error, and what it says."""
OF_SERVERS = [
    ("POST", "/api/tags", "plain", "use GET"),
    ("GET", "/tokenizer_info", "openai", "only by model servers"),
    ("POST", "/tokenize", "tgi", "use POST /v1/messages/count_tokens"),
    ("POST", "/detokenize", "openai", "use POST /v1/messages/count_tokens"),
]
"""The same for routes that model servers serve, but not the platform."""


def message_of(form: str, body: bytes) -> str:
    """The text of an error in the member where clients of that format look for it."""
    read = json.loads(body)
    if form == "openai":
        assert set(read["error"]) == {"message", "type", "param", "code"}
        return str(read["error"]["message"])
    if form == "anthropic":
        assert (read["type"], set(read["error"])) == ("error", {"type", "message"})
        return str(read["error"]["message"])
    if form == "torchserve":
        assert (read["code"], read["type"]) == (404, "ResourceNotFoundException")
        return str(read["message"])
    assert set(read) == ({"error", "error_type"} if form == "tgi" else {"error"})
    return str(read["error"])


@pytest.mark.parametrize(("method", "path", "form", "said"), [*FOREIGN, *OF_SERVERS])
def test_another_servers_path_names_the_alternative_in_its_own_form(method, path, form, said):
    reply = render_error_for(path, unknown_route(method, path))
    assert reply.status == 404
    text = message_of(form, reply.body)
    assert text.startswith(f"{method} {path}: ")
    assert "not served" in text or "begin with /v1" in text
    assert said in text


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completion", "POST /v1/chat/completions"),
        ("/v1/chat/completions/", "POST /v1/chat/completions"),
        ("/v1/v1/chat/completions", "POST /v1/chat/completions"),
        ("/v1//chat/completions", "POST /v1/chat/completions"),
        ("/V1/Chat/Completions", "POST /v1/chat/completions"),
        ("/v1/completion", "POST /v1/completions"),
        ("/v1/response", "POST /v1/responses"),
        ("/v1/model", "GET /v1/models"),
        ("/v1/models/", "GET /v1/models"),
    ],
)
def test_a_misspelt_route_gets_a_suggestion(path, near):
    assert unknown_route("POST", path).message.endswith(f"Did you mean {near}?")


def test_any_other_route_names_the_generation_routes():
    said = unknown_route("GET", "/nowhere", invocations="/endpoints/NAME/invocations").message
    assert said.startswith("GET /nowhere is not served. Generation: POST /endpoints/NAME/invocations, /v1/chat")


def test_another_method_is_405_and_names_the_right_one():
    error = unknown_route("GET", "/v1/chat/completions", allowed=OPENAI_METHODS["/v1/chat/completions"])
    assert isinstance(error, MethodNotAllowed)
    assert (error.http_status, error.allowed) == (405, ("POST",))
    assert error.message == "GET /v1/chat/completions is not served; use POST."
    assert isinstance(unknown_route("GET", "/v1/responses/input_tokens", allowed=("POST",)), MethodNotAllowed)
    assert unknown_route("GET", "/api/chat", allowed=("POST",)).message == "GET /api/chat is not served; use POST."


def test_a_websocket_is_refused_so_that_codex_changes_to_http_at_once():
    wrong_method, unknown = unknown_route("GET", "/v1/responses", allowed=("POST",)), unknown_route("GET", "/nowhere")
    refused = refuse_websocket(wrong_method, "WebSocket")
    assert isinstance(refused, UpgradeRequired)
    assert (refused.http_status, refused.allowed) == (426, ("POST",))
    assert refuse_websocket(wrong_method, None) is refuse_websocket(wrong_method, "h2c") is wrong_method
    assert refuse_websocket(unknown, "websocket") is unknown


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Unauthorized("no"), 401, "authentication_error"),
        (Busy("full"), 429, "rate_limit_error"),
        (EngineFailed("broken"), 500, "api_error"),
    ],
)
def test_other_errors_at_such_a_path_have_the_same_form(error, status, kind):
    reply = render_error_for("/v1/messages", error)
    assert (reply.status, json.loads(reply.body)["error"]["type"]) == (status, kind)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/api/chat", True),
        ("GET", "/api/tags", True),
        ("GET", "/v2/models/m", True),
        ("GET", "/predictions/key", False),
        ("PUT", "/api/chat", False),
        ("GET", "/completions", False),
        ("GET", "/bucket/key", False),
        ("POST", "/bucket", False),
    ],
)
def test_only_requests_that_no_s3_client_sends_count_as_another_servers(method, path, expected):
    assert is_foreign(method, path) is expected


@given(st.text(max_size=300).map(lambda text: f"/{text}"))
def test_any_path_is_quoted_on_one_line_and_shortened(path):
    reply = render_error_for(path, unknown_route("GET", path))
    assert reply.status == 404
    assert len(unknown_route("GET", path).message) < 2000
    assert unknown_route("GET", path).message.isprintable()
