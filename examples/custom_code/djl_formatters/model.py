"""Formatters for questions: a body of one's own, and an answer in one object or a line for each part."""

import json

from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def read(decoded_payload: dict, **_) -> dict:
    """Make the engine's payload of {"question": ..., "words": ..., "stream": ...}."""
    return {
        "messages": [{"role": "user", "content": decoded_payload["question"]}],
        "max_tokens": int(decoded_payload.get("words", 32)),
        "stream": bool(decoded_payload.get("stream")),
    }


@output_formatter
def write(response):
    """Change a whole response, or an event of a stream, which is a string."""
    if not isinstance(response, str):
        return {"answer": response.choices[0].message.content, "tokens": response.usage.completion_tokens}
    data = response.removeprefix("data: ").strip()
    if data == "[DONE]":
        return {"done": True}
    choices = json.loads(data)["choices"]
    return {"part": choices[0]["delta"].get("content", "")} if choices else ""
