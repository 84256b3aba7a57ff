"""Requests of clients to a model server, or through a platform to one: streams, cancels and errors."""

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

import httpx
from benchmarks.soak.load import Activity, Unexpected

TIMEOUT_S = 300.0
"""Patience on a machine that other programs use, too; the soak judges growth, not latency."""
_TOPICS = ("the sea", "a lighthouse", "rain in the city", "bread", "a long train", "the moon", "an old clock", "tea")
_TOO_LONG = "word " * 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClient:
    """A client of one model by OpenAI's API and SageMaker's."""

    http: httpx.Client
    model: str
    invocations: str
    """The path of SageMaker's invocations."""
    bad_request: tuple[int, ...] = (400, 413, 422, 424)
    """Statuses that a request with an error of the client's may get."""

    def activities(self) -> Sequence[Activity]:
        return (
            Activity(name="stream", pause_s=1.5, act=self._stream),
            Activity(name="whole answer", pause_s=4, act=self._whole),
            Activity(name="cancel", pause_s=4, act=self._cancel),
            Activity(name="hang up in a request", pause_s=10, act=self._hang_up),
            Activity(name="bad JSON", pause_s=8, act=self._bad_json),
            Activity(name="unknown path", pause_s=15, act=self._unknown_path),
            Activity(name="too long", pause_s=20, act=self._too_long),
        )

    def complete(self, model: str) -> None:
        """Send one short request to a model, and check its answer."""
        body = {"model": model, "prompt": "The sea is", "max_tokens": 4, "temperature": 0}
        answer = _checked(self.http.post("/v1/completions", json=body), (200,))
        if not answer.json()["choices"][0]["text"]:
            raise Unexpected(f"an answer without text: {answer.text[:300]}")

    def _chat(self, random: Random) -> dict[str, object]:
        content = f"Write {random.randint(1, 9)} sentences about {random.choice(_TOPICS)}. {random.random()}"
        messages = [{"role": "user", "content": content * random.choice((1, 1, 1, 8))}]
        return {"model": self.model, "messages": messages, "max_tokens": random.randint(8, 64), "stream": True}

    def _stream(self, random: Random) -> None:
        with self.http.stream("POST", "/v1/chat/completions", json=self._chat(random)) as answer:
            content = answer.read()
        _checked(answer, (200,))
        if not content.rstrip().endswith(b"data: [DONE]") or b'"error"' in content:
            raise Unexpected(f"a stream without its end, or with an error: {content[-300:]!r}")

    def _whole(self, random: Random) -> None:
        tokens = random.randint(1, 32)
        body = {"inputs": f"About {random.choice(_TOPICS)}:", "parameters": {"max_new_tokens": tokens}}
        answer = _checked(self.http.post(self.invocations, json=body), (200,))
        if b"generated_text" not in answer.content:
            raise Unexpected(f"an answer without text: {answer.text[:300]}")

    def _cancel(self, random: Random) -> None:
        body = {**self._chat(random), "max_tokens": 1000, "ignore_eos": True}
        with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                _checked(answer, (200,))
            parts = answer.iter_raw()
            for _ in range(random.randint(1, 12)):
                next(parts)

    def _hang_up(self, random: Random) -> None:
        target = urlsplit(str(self.http.base_url))
        content = json.dumps(self._chat(random)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Length: {len(content)}\r\n"
        key = self.http.headers.get("authorization")
        kind = f"Authorization: {key}\r\n" if key else ""
        kind += "Content-Type: application/json\r\n\r\n"
        with socket.create_connection((target.hostname or "", target.port or 80), timeout=TIMEOUT_S) as client:
            client.sendall(head.encode() + kind.encode() + content[: random.randrange(len(content))])

    def _bad_json(self, random: Random) -> None:
        content = '{"inputs": "' + "x" * random.randint(0, 5000)
        headers = {"Content-Type": "application/json"}
        _checked(self.http.post(self.invocations, content=content, headers=headers), self.bad_request)

    def _unknown_path(self, random: Random) -> None:
        _checked(self.http.get(f"/nosuch-{random.randrange(10**6)}"), (404,))

    def _too_long(self, random: Random) -> None:
        body = {"model": self.model, "prompt": f"{random.random()} {_TOO_LONG}"}
        _checked(self.http.post("/v1/completions", json=body), self.bad_request)


def _checked(answer: httpx.Response, statuses: tuple[int, ...]) -> httpx.Response:
    if answer.status_code not in statuses:
        raise Unexpected(f"status {answer.status_code}, expected one of {statuses}: {answer.text[:300]}")
    return answer
