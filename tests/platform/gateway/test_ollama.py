"""Ollama's API on endpoints."""

import json

import pytest

from .conftest import Running
from .workers import Exchange


async def ollama(exchange: Exchange) -> None:
    """Stream two lines, answer with the request, or break a stream."""
    asked = json.loads(exchange.asked.body)
    if asked.get("stream") is False:
        exchange.whole(exchange.asked.body, content_type="application/json")
        return
    exchange.start(content_type="application/x-ndjson")
    exchange.chunk(b'{"response":"one"}\n')
    await exchange.flush()
    if asked.get("prompt") == "break":
        exchange.die()
    else:
        exchange.chunk(b'{"done":true}\n')
        exchange.end()


@pytest.mark.parametrize("body", [{"model": "ep"}, {"model": "ep:latest"}, {"name": "ep"}])
def test_a_model_is_an_endpoint_with_or_without_a_tag(gateway: Running, body: dict[str, str]) -> None:
    worker = gateway.serve(ollama)
    for path in ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"):
        answer = gateway.client.post(path, json={**body, "stream": False})
        assert (answer.status_code, answer.json()) == (200, {**body, "stream": False}), "passed on unchanged"
        assert worker.asked[-1].path == path


def test_streams_are_passed_on_and_a_broken_one_ends_with_an_error(gateway: Running) -> None:
    gateway.serve(ollama)
    answer = gateway.client.post("/api/generate", json={"model": "ep"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.content == b'{"response":"one"}\n{"done":true}\n'
    with gateway.client.stream("POST", "/api/generate", json={"model": "ep", "prompt": "break"}) as stream:
        lines = list(stream.iter_lines())
    assert "broke in the middle" in json.loads(lines[-1])["error"]


def test_errors_are_ollamas(gateway: Running) -> None:
    gateway.serve(ollama)
    unknown = gateway.client.post("/api/chat", json={"model": "nowhere"})
    assert unknown.status_code == 404
    assert "`nowhere` does not exist" in unknown.json()["error"]
    missing = gateway.client.post("/api/chat", json={})
    assert (missing.status_code, "`model` is missing" in missing.json()["error"]) == (400, True)


def test_models_are_listed_with_tags(gateway: Running) -> None:
    gateway.serve(ollama)
    (tag,) = gateway.client.get("/api/tags").json()["models"]
    assert (tag["name"], tag["model"]) == ("ep:latest", "ep:latest")
    (running,) = gateway.client.get("/api/ps").json()["models"]
    assert (running["name"], running["expires_at"]) == ("ep:latest", "2300-01-01T00:00:00Z")
    assert gateway.client.get("/api/version").json()["version"]
