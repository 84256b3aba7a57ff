"""The clients of a run: they repeat requests until answered, and calls until acknowledged."""

import json
import random
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import httpx
from benchmarks.chaos.echo_server import answer_of
from benchmarks.chaos.history import BROKEN, CLEAR_ERRORS, DEADLINE_S, RIGHT, UNREADABLE, WRONG, Attempt, Request
from benchmarks.harness.platforms import Target
from botocore.eventstream import ParserError
from botocore.exceptions import BotoCoreError, ClientError, EventStreamError
from urllib3.exceptions import HTTPError

APIS = ("invoke", "stream", "openai")
_TIMEOUT_S = 70.0
_PAUSE_S = 0.2
_OF_S3 = frozenset({"InternalError"})
"""S3's code for "Please try again", such as while the disk is full. Source: S3 API reference, "Error responses"."""
_CONNECTION_ERRORS = (BotoCoreError, HTTPError, httpx.TransportError, OSError, ValueError)
"""HTTPError: an event stream that ends too early; ValueError: a corrupted answer that the client cannot parse."""


class Requester:
    """Sends requests by several APIs through all platforms, and judges their answers."""

    def __init__(self, targets: Sequence[Target], started_s: float) -> None:
        self._clients = [target.client("sagemaker-runtime") for target in targets]
        self._https = [
            httpx.Client(
                base_url=target.url,
                timeout=target.read_timeout_s,
                trust_env=False,
                headers={"Authorization": f"Bearer {target.key[1]}"},
                limits=httpx.Limits() if target.keeps_connections else httpx.Limits(max_keepalive_connections=0),
            )
            for target in targets
        ]
        self._started_s = started_s

    def request(self, number: int, endpoint: str, api: str) -> Request:
        """Send a request, and again while its connection breaks or the platform asks for patience."""
        deadline_s = time.monotonic() + DEADLINE_S
        attempts: list[Attempt] = []
        while True:
            attempts.append(self._attempt(number, len(attempts), endpoint, api))
            if attempts[-1].outcome in {RIGHT, WRONG} or time.monotonic() > deadline_s:
                return Request(number=number, attempts=tuple(attempts))
            time.sleep(_PAUSE_S)

    def _attempt(self, number: int, index: int, endpoint: str, api: str) -> Attempt:
        id_ = attempt_id(number, index)
        prompt = f"prompt {number}"
        body = json.dumps({"id": id_, "prompt": prompt, "stream": api != "invoke", "model": endpoint})
        began_s = time.monotonic() - self._started_s
        through = (number + index) % len(self._clients)
        outcome, detail = self._send(api, through, endpoint, body, answer_of(prompt))
        ended_s = time.monotonic() - self._started_s
        return Attempt(
            id=id_,
            api=api,
            endpoint=endpoint,
            began_s=began_s,
            ended_s=ended_s,
            outcome=outcome,
            detail=detail,
            through=through,
        )

    def _send(self, api: str, platform: int, endpoint: str, body: str, expected: str) -> tuple[str, str]:
        try:
            if api == "openai":
                return self._openai(self._https[platform], endpoint, body, expected)
            call = self._invoke if api == "invoke" else self._stream
            found = call(self._clients[platform], endpoint, body)
        except (ClientError, EventStreamError) as error:
            found_error = error.response["Error"]
            return found_error["Code"], found_error.get("Message", "")
        except _CONNECTION_ERRORS as error:
            return BROKEN, repr(error)[:300]
        except (AttributeError, LookupError, TypeError, ParserError) as error:  # bytes of the answer were changed
            return UNREADABLE, repr(error)[:300]
        return (RIGHT, "") if found == expected else (WRONG, f"{found[:80]!r}; expected {expected!r}")

    @staticmethod
    def _invoke(client: Any, endpoint: str, body: str) -> str:
        with client.invoke_endpoint(EndpointName=endpoint, Body=body, ContentType="application/json")["Body"] as answer:
            return str(json.loads(answer.read())["text"])

    @staticmethod
    def _stream(client: Any, endpoint: str, body: str) -> str:
        answer = client.invoke_endpoint_with_response_stream(
            EndpointName=endpoint, Body=body, ContentType="application/json"
        )
        with closing(answer["Body"]) as events:
            return b"".join(event["PayloadPart"]["Bytes"] for event in events).decode()

    @staticmethod
    def _openai(client: httpx.Client, endpoint: str, body: str, expected: str) -> tuple[str, str]:
        answer = client.post(
            f"/endpoints/{endpoint}/openai/v1/completions", content=body, headers={"Content-Type": "application/json"}
        )
        parts = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        is_refused = answer.status_code != httpx.codes.OK
        if is_refused or (parts and parts[-1].startswith("{")):
            error = (answer.json() if is_refused else json.loads(parts[-1]))["error"]
            return str(error.get("code") or error.get("type")), str(error.get("message"))
        found = "".join(parts)
        return (RIGHT, "") if found == f"{expected}[DONE]" else (WRONG, f"{found!r}; expected {expected!r}")

    def close(self) -> None:
        for client in (*self._clients, *self._https):
            client.close()


def attempt_id(number: int, index: int) -> str:
    """Return an id that does not become another one when a byte of it is changed."""
    text = f"{number}-{index}"
    return f"{text}-{zlib.crc32(text.encode()):08x}"


class Load:
    """Threads that send requests until it is closed."""

    def __init__(
        self,
        targets: Sequence[Target],
        endpoints: Sequence[str],
        *,
        seed: int,
        num_threads: int,
        pause_s: float,
        apis: Sequence[str] = APIS,
    ) -> None:
        self.started_s = time.monotonic()
        self.requests: list[Request] = []
        self._targets = targets
        self._endpoints = endpoints
        self._pause_s = pause_s
        self._apis = apis
        self._failures: list[str] = []
        self._is_over = threading.Event()
        self._num_threads = num_threads
        self._threads = [
            threading.Thread(target=self._run, args=(index, random.Random(seed * 1000 + index)), daemon=True)
            for index in range(num_threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_over.set()

    def close(self) -> list[str]:
        """Wait for the requests in flight; return a sentence for each thread that hangs or has failed."""
        self.end()
        deadline_s = time.monotonic() + DEADLINE_S + 2 * _TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        hanging = [f"A request of thread {thread.name} hangs." for thread in self._threads if thread.is_alive()]
        return [*self._failures, *hanging]

    def _run(self, index: int, chooser: random.Random) -> None:
        try:
            self._send_all(index, chooser)
        except Exception as error:  # noqa: BLE001 -- a client that ends would only look like less load
            self._failures.append(f"Client {index} failed: {error!r}.")

    def _send_all(self, index: int, chooser: random.Random) -> None:
        requester = Requester(self._targets, self.started_s)
        number = index
        while not self._is_over.is_set():
            endpoint, api = chooser.choice(self._endpoints), chooser.choice(self._apis)
            self.requests.append(requester.request(number, endpoint, api))
            number += self._num_threads
            self._is_over.wait(chooser.uniform(0, 2 * self._pause_s))
        requester.close()


class NeverAcknowledged(Exception):
    """A call that was not acknowledged within its deadline."""


class Refused(Exception):
    """A call that the platform refused for good."""


class Caller:
    """Repeats AWS calls through all platforms until one acknowledges them."""

    def __init__(self, service: str, targets: Sequence[Target]) -> None:
        self._clients = [target.client(service) for target in targets]
        self._turn = 0
        self.unclear: list[str] = []
        """Errors that tell a client nothing."""

    def call(self, operation: str, *, done: str = "", **parameters: Any) -> Any:
        """
        Call until acknowledged.

        Args:
            operation: the method of the client.
            done: a part of the error by which the platform says, after a broken call, that the call was applied.
            parameters: of the operation.

        Raises:
            NeverAcknowledged: not within the deadline.
            Refused: the platform refuses it.
        """
        deadline_s, is_repeated, last = time.monotonic() + 2 * DEADLINE_S, False, ""
        while time.monotonic() < deadline_s:
            self._turn += 1
            client = self._clients[self._turn % len(self._clients)]
            try:
                return getattr(client, operation)(**parameters)
            except ClientError as error:
                status, last = error.response["ResponseMetadata"]["HTTPStatusCode"], str(error)
                if is_repeated and done and done in last:
                    return {}
                if status < 429:
                    raise Refused(last) from error
                if status == 500 and error.response["Error"]["Code"] not in CLEAR_ERRORS | _OF_S3:
                    self.unclear.append(f"{operation} failed with an unclear error: {last}")
            except _CONNECTION_ERRORS as error:
                last = repr(error)
            is_repeated = True
            time.sleep(_PAUSE_S)
        raise NeverAcknowledged(f"{operation} {parameters} was never acknowledged: {last}")

    def close(self) -> None:
        for client in self._clients:
            client.close()


def in_thread(name: str, work: Callable[[], None], failures: list[str]) -> threading.Thread:
    """Run `work` in a thread; a call that is never acknowledged is a failure of the run."""

    def run() -> None:
        try:
            work()
        except (NeverAcknowledged, Refused) as error:
            failures.append(str(error))
        except Exception as error:  # noqa: BLE001 -- a thread that ends would only look like fewer changes
            failures.append(f"The thread of the {name} failed: {error!r}.")

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def read_body(answer: Any) -> bytes:
    with suppress(KeyError), answer["Body"] as body:
        return bytes(body.read())
    return b""
