"""
Call the model as SageMaker calls a container: `GET /ping`, then `POST /invocations` with a stream cut anywhere.

`LineIterator` joins the pieces into lines, as the iterator of the AWS samples does with the event stream of
`invoke_endpoint_with_response_stream`.
"""

import json
import os
from collections.abc import Iterable, Iterator

import httpx

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080")


class LineIterator:
    """The lines of a byte stream whose pieces may end anywhere, even inside a character."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._pieces:
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
        if rest:
            yield rest


def main() -> None:
    httpx.get(f"{URL}/ping").raise_for_status()
    payload = {
        "inputs": "The three primary colours are",
        "parameters": {"max_new_tokens": 24, "details": True},
        "stream": True,
    }
    with httpx.stream("POST", f"{URL}/invocations", json=payload, timeout=60) as response:
        response.raise_for_status()
        for line in LineIterator(response.iter_raw(chunk_size=7)):
            text = line.removeprefix(b"data:").strip()
            if text:
                event = json.loads(text)
                print(event["token"]["text"], end="", flush=True)
                if event.get("details"):
                    print("\n[finish reason:", event["details"]["finish_reason"] + "]")


main()
