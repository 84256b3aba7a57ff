"""
Requests and responses of a load in each dialect. Pure: values to bytes, stream lines to events.

Every dialect streams. A line is one line of server-sent events (`data: {...}`) or of JSON lines; fields that a server
omits (usage, details) are None here and never guessed.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from headrace.tools.bench.workload import Question


class Api(StrEnum):
    """The route and dialect of requests."""

    CHAT = "openai-chat"
    COMPLETIONS = "openai-completions"
    TGI = "tgi"
    SAGEMAKER = "sagemaker"


PATHS = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.TGI: "/generate_stream",
    Api.SAGEMAKER: "/invocations",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTemplate:
    """The fields that are the same in every request of a run."""

    api: Api
    model: str
    temperature: float = 0.0
    ignore_eos: bool = False
    """Ask the server to generate until `max_tokens` (an extension of vLLM, llama.cpp and Headrace; TGI has none)."""


def request_body(template: RequestTemplate, question: Question, max_tokens: int) -> bytes:
    """Return the JSON body of a request."""
    if template.api in {Api.CHAT, Api.COMPLETIONS}:
        return json.dumps(_openai_body(template, question, max_tokens)).encode()
    parameters: dict[str, Any] = {"max_new_tokens": max_tokens, "details": True}
    if template.temperature > 0:
        parameters |= {"do_sample": True, "temperature": template.temperature}
    if template.ignore_eos and template.api is Api.SAGEMAKER:
        parameters["ignore_eos_token"] = True
    body: dict[str, Any] = {"inputs": question.text, "parameters": parameters}
    if template.api is Api.SAGEMAKER:
        body["stream"] = True
    return json.dumps(body).encode()


def _openai_body(template: RequestTemplate, question: Question, max_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": template.model,
        "max_tokens": max_tokens,
        "temperature": template.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if template.ignore_eos:
        body["ignore_eos"] = True
    if template.api is Api.COMPLETIONS:
        return {**body, "prompt": question.text}
    return {**body, "messages": list(question.messages) or [{"role": "user", "content": question.text}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The content of one line of a stream."""

    text: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    is_last: bool = False
    """The answer is complete after this line."""
    error: str | None = None


class Unreadable(Exception):
    """The line does not have the requested format."""


def parse_line(line: bytes) -> Event | None:
    """
    Parse a line of a stream in any dialect; return None for lines without content (blank, comments, event names).

    Raises:
        Unreadable: the line is neither such a line nor JSON.
    """
    line = line.strip()
    if line.startswith(b"data:"):
        line = line[5:].lstrip()
        if line == b"[DONE]":
            return Event(is_last=True)
    elif not line.startswith(b"{"):
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return None
        raise Unreadable(f"a line of the stream is not JSON: {line[:80]!r}")
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise Unreadable(f"a line of the stream is not JSON: {line[:80]!r}") from error
    return _event(value)


def _event(value: Any) -> Event:
    if not isinstance(value, dict):
        raise Unreadable(f"a line of the stream is not an object: {str(value)[:80]}")
    if value.get("error"):
        return Event(error=error_text(value), is_last=True)
    if "choices" in value:
        return _openai_event(value)
    if "token" in value or "generated_text" in value:
        return _generate_event(value)
    if "outputs" in value:
        return Event(text="".join(map(str, value["outputs"])))
    raise Unreadable(f"a line of the stream has no choices, token or outputs: {sorted(value)}")


def _openai_event(value: dict[str, Any]) -> Event:
    usage = value.get("usage") or {}
    text = ""
    for choice in value["choices"]:
        delta = choice.get("delta")
        if delta is not None:
            text += delta.get("reasoning") or delta.get("reasoning_content") or ""
        text += (choice.get("text") if delta is None else delta.get("content")) or ""
    return Event(
        text=text,
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
    )


def _generate_event(value: dict[str, Any]) -> Event:
    """Return the event of TGI or LMI; they differ in `special` / `special_token` and the names inside `details`."""
    token = value.get("token") or {}
    details = value.get("details") or {}
    if details.get("finish_reason") == "error":
        return Event(error=str(details.get("error") or "the server ended the answer with an error"), is_last=True)
    return Event(
        text=_generated_piece(value, token),
        prompt_tokens=details.get("input_length"),
        output_tokens=details.get("generated_tokens"),
        is_last=value.get("generated_text") is not None,
    )


def _generated_piece(value: dict[str, Any], token: dict[str, Any]) -> str:
    """Return the new text: that of the token, or the whole text if the server does not stream."""
    if "token" not in value:
        return str(value.get("generated_text") or "")
    is_special = token.get("special") or token.get("special_token")
    return "" if is_special else str(token.get("text", ""))


def error_text(value: Any) -> str:
    """Return the message in an error body of any dialect, cut at 300 characters."""
    if isinstance(value, dict):
        inner = value.get("error") or value.get("message") or value.get("detail") or value
        if isinstance(inner, dict):
            inner = inner.get("message") or inner
        value = inner
    return str(value)[:300]
