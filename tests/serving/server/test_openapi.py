"""The description of the server: every route is in it, and its examples are answered."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.serving.http.pages import DOCS_PATH
from headrace.serving.server.app import app_of
from headrace.serving.wire.openapi.document import Operation, render_openapi
from headrace.serving.wire.openapi.operations import SERVER_OPERATIONS, with_model
from headrace.testing.echo import EchoBackend

from .conftest import Echo, serving

EXAMPLES = [operation for operation in with_model(SERVER_OPERATIONS, "echo") if operation.example]
POOLING = {"/v1/embeddings", "/api/embed", "/api/embeddings", "/embed", "/embed_all", "/similarity"}
SCORING = {"/predict", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"}
GENERATING = [operation for operation in EXAMPLES if operation.path not in POOLING | SCORING]


SAID = 'So. <think> Hm. </think> Use <tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
SAYS = [{"role": "user", "content": SAID}]
WEATHER = {"name": "weather", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": WEATHER}]
STREAM = {"stream": True}
CHAT_MORE = {"tools": TOOLS, "logprobs": True, "top_logprobs": 2, "n": 2}
TGI_MORE = {"details": True, "decoder_input_details": True, "top_n_tokens": 2, "do_sample": True, "best_of": 2}
RICHER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": SAYS, **CHAT_MORE}),
    ("/v1/chat/completions", {"messages": SAYS, **CHAT_MORE, **STREAM, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": SAYS, "stop": ["Use"]}),
    ("/v1/chat/completions", {"messages": SAYS, "max_tokens": 1}),
    ("/v1/completions", {"prompt": SAID, "logprobs": 2, "echo": True, "stop": ["Use"]}),
    ("/v1/completions", {"prompt": SAID, "logprobs": 0, **STREAM, "stream_options": {"include_usage": True}}),
    ("/v1/responses", {"input": SAID, "tools": [{"type": "function", **WEATHER}], "metadata": {"a": "b"}}),
    ("/v1/responses", {"input": SAID, "tools": [{"type": "function", **WEATHER}], **STREAM}),
    ("/v1/responses", {"input": SAID, "max_output_tokens": 16, **STREAM}),
    ("/v1/messages", {"messages": SAYS, "tools": [{"name": "weather", "input_schema": {"type": "object"}}]}),
    ("/v1/messages", {"messages": SAYS, "max_tokens": 1, **STREAM}),
    ("/v1/messages", {"messages": SAYS, "tools": [{"name": "weather", "input_schema": {"type": "object"}}], **STREAM}),
    ("/api/chat", {"messages": SAYS, "tools": TOOLS}),
    ("/api/chat", {"messages": SAYS, "think": True, "stream": False}),
    ("/api/generate", {"prompt": SAID}),
    ("/api/generate", {"prompt": ""}),
    ("/generate", {"inputs": SAID, "parameters": TGI_MORE}),
    ("/generate_stream", {"inputs": SAID, "parameters": {"details": True, "top_n_tokens": 2}}),
    ("/invocations", {"messages": SAYS, "max_tokens": 2, **STREAM}),
    ("/invocations", {"inputs": SAID, **STREAM}),
    ("/tokenize", {"inputs": SAID}),
    ("/tokenize", {"prompt": SAID, "return_token_strs": True}),
    ("/", {"inputs": SAID, **STREAM}),
)
PAGES = ("/v1/models", "/v1/models/echo", "/api/tags", "/api/ps", "/api/version", "/ping", "/info", "/tokenizer_info")


@cache
def document() -> dict[str, Any]:
    """The description, in which no schema of a response allows fields that it does not name."""
    read: dict[str, Any] = json.loads(render_openapi(SERVER_OPERATIONS, title="", version="", description=""))
    for name, schema in read["components"]["schemas"].items():
        if "properties" in schema and name != "TokenizerFacts":  # it has whatever a tokenizer has
            schema["additionalProperties"] = False
    return read


def check(method: str, path: str, answer: httpx.Response, *, code: str = "200") -> None:
    """Check a response against its schema: each event of a stream, or the whole body."""
    kind = answer.headers["content-type"].split(";")[0]
    content = document()["paths"][path][method.lower()]["responses"][code]["content"]
    validator = Draft202012Validator({**content[kind]["schema"], "components": document()["components"]})
    for value in values_of(kind, answer.text):
        validator.validate(value)


def values_of(kind: str, text: str) -> Iterator[object]:
    if kind == "application/json":
        yield json.loads(text)
        return
    prefix = "data:" if kind == "text/event-stream" else ""
    for line in text.splitlines():
        if line.startswith(prefix) and line.strip() and not line.endswith("[DONE]"):
            yield json.loads(line.removeprefix(prefix))


def described(operations: tuple[Operation, ...]) -> set[tuple[str, str]]:
    return {(operation.method, operation.path) for operation in operations}


def test_every_route_is_described_and_every_description_is_a_route(echo):
    routes = [route for route in app_of(echo.service).routes if isinstance(route, Route)]
    served = {
        (method, route.path)
        for route in routes
        for method in (route.methods or ()) - {"HEAD"}
        if not route.path.startswith(("/web/", DOCS_PATH))
    }
    assert served == described(SERVER_OPERATIONS)


@pytest.mark.parametrize("operation", GENERATING, ids=lambda operation: operation.path)
def test_examples_are_answered(echo, operation):
    answer = echo.client.request(operation.method, operation.path, json=operation.example)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].split(";")[0] in operation.produces
    check(operation.method, operation.path, answer)


@pytest.fixture(scope="module")
def reasoning() -> Iterator[Echo]:
    """A server whose answers have reasoning, logprobs and calls of tools."""
    with serving(EchoBackend(answer_format=REASONING_TAGS)) as echo:
        yield echo


@pytest.mark.parametrize(("path", "fields"), RICHER, ids=lambda value: value if isinstance(value, str) else "")
def test_all_fields_of_responses_and_events_are_described(reasoning, path, fields):
    named = {"max_tokens": 64} if path == "/v1/messages" and "max_tokens" not in fields else {}
    model = {"model": "echo"} if path.startswith(("/v1", "/api")) else {}
    answer = reasoning.post(path, {**model, **named, **fields})
    assert answer.status_code == 200, answer.text
    check("POST", path, answer)


def test_pages_about_the_server_are_described(reasoning):
    for path in PAGES:
        described_as = path.replace("/echo", "/{name}")
        check("GET", described_as, reasoning.client.get(path))


def test_stored_responses_are_described(reasoning):
    made = reasoning.post("/v1/responses", {"model": "echo", "input": SAID}).json()
    stored = f"/v1/responses/{made['id']}"
    check("GET", "/v1/responses/{id}/input_items", reasoning.client.get(f"{stored}/input_items"))
    check("GET", "/v1/responses/{id}", reasoning.client.get(stored))
    check("DELETE", "/v1/responses/{id}", reasoning.client.delete(stored))


def test_errors_are_described(reasoning):
    for operation in GENERATING:
        answer = reasoning.client.request(operation.method, operation.path, content=b"[")
        assert answer.status_code >= 400
        check(operation.method, operation.path, answer, code="default")


def test_examples_for_embeddings_and_scores_are_answered():
    for paths, labels in ((POOLING, ()), (SCORING, ("relevant",))):
        with serving(EchoBackend(max_model_len=64, generates=False, labels=labels)) as echo:
            for operation in EXAMPLES:
                if operation.path in paths:
                    answer = echo.post(operation.path, operation.example)
                    assert answer.status_code == 200, (operation.path, answer.text)
                    check(operation.method, operation.path, answer)


def test_the_document_names_the_model_and_needs_no_key():
    with serving(api_key="s3cret") as echo:
        document = echo.client.get("/openapi.json").json()
        page = echo.client.get("/docs")
        files = [echo.client.get(f"/docs/{name}").status_code for name in ("api.js", "swagger-ui.css")]
    example = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert document["openapi"].startswith("3.1")
    assert example["model"] == "echo"
    assert (page.status_code, files) == (200, [200, 200])
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_without_pages_the_document_is_still_served():
    with serving(web=False) as echo:
        assert echo.client.get("/openapi.json").status_code == 200
        assert echo.client.get("/docs").status_code == 404
