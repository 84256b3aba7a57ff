"""Responses as user code returns them: a body of any type, or a stream of parts."""

import itertools
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from headrace_handler.contract import Cancelled, Headers, Reply

_log = logging.getLogger(__name__)

_END = object()


class UnsupportedOutput(Exception):
    """User code returned a value that is neither a body nor JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int = 200
    phrase: str = ""
    headers: Headers = ()
    body: Any = b""
    """Bytes, text, an iterator of parts, or what is written as JSON."""

    @classmethod
    def of_text(cls, status: int, text: str, content_type: str = "text/plain") -> "Response":
        return cls(status=status, headers=[("Content-Type", content_type)], body=text.encode())


def encode(value: Any) -> bytes | bytearray | memoryview:
    """
    Return a body's bytes; model servers write what is neither bytes nor text as JSON.

    Raises `UnsupportedOutput`: JSON cannot express the value.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, indent=2).encode()
    except (TypeError, ValueError) as error:
        raise UnsupportedOutput(str(error)) from error


def prefetch(response: Response) -> Response:
    """Encode the body, or fetch the first part of a stream, so that an error can still change the status."""
    if not isinstance(response.body, Iterator):
        body = encode(response.body)
        return response if body is response.body else replace(response, body=body)
    first = next(response.body, _END)
    if first is _END:
        return replace(response, body=b"")
    return replace(response, body=_Stream(encode(first), response.body))


class _Stream:
    def __init__(self, first: bytes | bytearray | memoryview, rest: Iterator[Any]) -> None:
        self._rest = rest
        self._parts = itertools.chain([first], map(encode, rest))

    def send(self, reply: Reply) -> None:
        try:
            for part in self._parts:
                reply.data(part)
        except Cancelled:
            return
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            _log.exception("The stream broke")
            reply.abort(f"{type(error).__name__}: {error}")
        else:
            reply.end()
        finally:
            close = getattr(self._rest, "close", None)
            if close is not None:
                close()


def send(reply: Reply, response: Response) -> None:
    """Send a response that `prefetch` has prepared."""
    reply.head(response.status, response.headers, phrase=response.phrase)
    if isinstance(response.body, _Stream):
        response.body.send(reply)
        return
    reply.end(response.body)


def gson(value: dict[str, Any]) -> str:
    """Return an object as the Java model servers print it, with the characters of HTML escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.translate({ord(character): f"\\u{ord(character):04x}" for character in "<>&='\u2028\u2029"})


def server_error(status: int, message: str, kind: str = "InternalServerException") -> Response:
    """Return an error as Multi Model Server and TorchServe word it."""
    text = gson({"code": status, "type": kind, "message": message})
    return Response.of_text(status, text, "application/json")
