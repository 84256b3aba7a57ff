"""A worker that answers chats, and OpenAI's client for it."""

import json

import openai

from tests.waiting import WAIT_S

from .conftest import Running
from .workers import Exchange

MESSAGES = [{"role": "user", "content": "hi"}]


def event(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: %b\n\n" % json.dumps({"id": "1", "object": "chat.completion.chunk", "choices": [choice]}).encode()


async def chat(exchange: Exchange) -> None:
    """Stream three words, or answer with the request."""
    asked = json.loads(exchange.asked.body)
    if asked.get("stream"):
        exchange.start(content_type="text/event-stream; charset=utf-8", cache_control="no-cache", server="secret")
        for word in ("one", "two", "three"):
            exchange.chunk(event(word))
        exchange.chunk(b"data: [DONE]\n\n")
        exchange.end()
        return
    choice = {"index": 0, "message": {"role": "assistant", "content": asked["model"]}, "finish_reason": "stop"}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    exchange.whole(json.dumps(body).encode(), content_type="application/json")


def response_event(number: int, kind: str, **fields: object) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields}).encode()
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def client_of_openai(gateway: Running, base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}{base}", api_key="secret-key", timeout=WAIT_S)
