"""
The APIs that the console calls, on a real port, with what a test puts behind them.

The resources behind them are those of `fake_resources`.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from headrace.platform.gateway.traffic_history import TrafficHistory
from headrace.platform.host.access_keys import AccessKeys
from headrace.platform.host.console import ConsoleSources, console_app, needs_key
from headrace.platform.host.machines import Machine
from headrace.serving.http.asgi import ASGIApp
from headrace.serving.http.tls import bind, url_of
from tests.platform.host.fake_resources import ACCOUNT, NOW_S, FakeResources, Refused
from tests.prompt_server import PromptServer
from tests.waiting import WAIT_S

GIB = 1 << 30
IDENTITY = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    f"<Account>{ACCOUNT}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
)
COMPONENT_PATH = "/endpoints/{endpoint}/inference-components/{component}/openai"
_SERVICES = {"SageMaker": "sagemaker", "Logs_20140328": "logs"}


@dataclass
class FakePlatform(FakeResources):
    """The platform's resources behind HTTP, with models that answer by script."""

    history: TrafficHistory = field(default_factory=TrafficHistory)
    workers: list[dict[str, Any]] = field(default_factory=list)
    """Workers, as the home page lists them."""
    stored: list[dict[str, Any]] = field(default_factory=list)
    """Models on the disk."""
    aliases: list[dict[str, Any]] = field(default_factory=list)
    """Models that can be downloaded by a short name."""
    uses: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Model resource → what uses it."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Endpoint → why fewer workers serve than it should have."""
    keys: AccessKeys | None = None
    """The access keys that the console manages; none: it manages none."""
    control: ASGIApp | None = None
    """Answers Application Auto Scaling and CloudWatch; none: there is nothing scaled."""
    key: str | None = None
    words: tuple[str, ...] = ("one ", "two ", "three")
    delay_s: float = 0.0
    num_held: int = 0
    """The last words of an answer, which are sent when a test sets this to zero."""
    prompts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of each OpenAI request."""
    components_asked: list[str | None] = field(default_factory=list)
    """Inference component of each OpenAI request, if its path names one."""
    num_aborted: int = 0
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Model → what `GET /v1/models` tells of it."""
    url: str = ""

    def overview(self, endpoint: str) -> dict[str, Any]:
        """The overview of an endpoint's components for the console."""
        nothing = {"components": [], "hosts": [], "workers": [], "trouble": self.troubles.get(endpoint, "")}
        return {**nothing, **self.overviews.get(endpoint, {})}

    def sources(self) -> ConsoleSources:
        """The parts that the console shows; tests change the fields behind them."""
        return ConsoleSources(
            components=self.overview,
            counts=self.counts,
            home=self.home,
            models=lambda: {
                "models": self.stored,
                "aliases": self.aliases,
                "packed_bytes": 0,
                "free_memory_bytes": 4 * GIB,
            },
            machine=lambda: Machine(num_cores=8, load=2.5, memory_bytes=16 * GIB, free_memory_bytes=4 * GIB),
            uses=lambda: self.uses,
            keys=self.keys,
        )

    def counts(self, names: Sequence[str]) -> dict[str, Any]:
        """The instances of endpoints, all of their variants together."""
        fields = {"current": "CurrentInstanceCount", "desired": "DesiredInstanceCount"}
        variants = {name: self.endpoints[name]["ProductionVariants"] for name in names if name in self.endpoints}
        return {
            name: {
                **{count: sum(variant[field] for variant in own) for count, field in fields.items()},
                "trouble": self.troubles.get(name, ""),
            }
            for name, own in variants.items()
        }

    def home(self) -> dict[str, Any]:
        """The state of the whole platform."""
        states = [endpoint["EndpointStatus"] for endpoint in self.endpoints.values()]
        return {
            "platform": {"version": "1.2.3", "uptime_s": 90, "region": "us-east-1", "asks_for_keys": False},
            "endpoints": {state: states.count(state) for state in states},
            "instances": {"current": len(states), "desired": len(states)},
            "num_workers": len(self.workers),
            "workers": self.workers,
            "tokens_per_s": 12.5 if self.workers else None,
            "num_waiting": 0 if self.workers else None,
        }

    def asked(self, operation: str) -> list[dict[str, Any]]:
        """The parameters of all calls of an operation."""
        return [parameters for name, parameters in self.calls if name == operation]

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Poll until `fact()` is true."""
        deadline_s = time.monotonic() + WAIT_S
        while not fact():
            assert time.monotonic() < deadline_s, f"never happened: {what}"
            time.sleep(0.005)

    # HTTP

    async def api(self, request: Request) -> Response:
        """`POST /`."""
        target = request.headers.get("x-amz-target")
        if target is None:
            form = await request.body()
            assert form.startswith(b"Action=GetCallerIdentity")
            return Response(IDENTITY, media_type="text/xml")
        assert request.headers["content-type"] == "application/x-amz-json-1.1"
        prefix, _, operation = target.partition(".")
        if prefix not in _SERVICES:
            self.calls.append((operation, {}))
            return self._scaling(operation)
        try:
            parameters = await request.json()
            answer = self.call(_SERVICES[prefix], operation, parameters)
        except Refused as error:
            body = {"__type": error.code, "message": error.message}
            return JSONResponse(body, error.status, headers={"x-amzn-errortype": error.code})
        return Response(b"" if answer is None else json.dumps(answer), media_type="application/x-amz-json-1.1")

    def _scaling(self, operation: str) -> Any:
        """A played control plane's answer, or that there is nothing."""
        if self.control is not None:
            return self.control
        empty = {
            "DescribeScalableTargets": {"ScalableTargets": []},
            "DescribeScalingPolicies": {"ScalingPolicies": []},
            "DescribeScalingActivities": {"ScalingActivities": []},
            "GetMetricData": {"MetricDataResults": []},
        }
        return JSONResponse(empty[operation])

    async def health(self, _request: Request) -> Response:
        """`GET /health`."""
        return JSONResponse({"region": "us-east-1", "asks_for_keys": self.key is not None})

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions` and `/v1/completions`."""
        body = await request.json()
        self.prompts.append((request.url.path, body))
        self.components_asked.append(request.path_params.get("component"))
        if body["model"] not in self.endpoints and "component" not in request.path_params:
            return JSONResponse({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
        return StreamingResponse(self._events(is_chat="chat" in request.url.path), media_type="text/event-stream")

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        name = request.path_params["name"]
        return JSONResponse({"id": name, "object": "model", **self.facts.get(name, {})})

    async def _events(self, *, is_chat: bool) -> AsyncIterator[bytes]:
        try:
            for number, word in enumerate(self.words):
                while self.num_held and number >= len(self.words) - self.num_held:
                    await asyncio.sleep(0.005)
                choice = {"delta": {"content": word}} if is_chat else {"text": word}
                yield event({"choices": [{**choice, "finish_reason": None}]})
                await asyncio.sleep(self.delay_s)
            yield event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
            yield event({"choices": [], "usage": {"completion_tokens": len(self.words)}})
            yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.num_aborted += 1
            raise


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@contextmanager
def serving(platform: FakePlatform) -> Iterator[FakePlatform]:
    """Serve until the block ends."""
    app = Starlette(
        routes=[
            Route("/", platform.api, methods=["POST"]),
            Route("/health", platform.health, methods=["GET"]),
            Route("/v1/models/{name}", platform.model, methods=["GET"]),
            Route("/v1/chat/completions", platform.chat, methods=["POST"]),
            Route("/v1/completions", platform.chat, methods=["POST"]),
            Route(f"{COMPONENT_PATH}/v1/chat/completions", platform.chat, methods=["POST"]),
            Mount("/", console_app(_Current(platform), platform.sources(), clock=lambda: NOW_S)),  # type: ignore[arg-type]
        ]
    )

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        given = dict(scope["headers"]).get(b"authorization")
        is_open = path.startswith("/console") and not needs_key(path)
        if platform.key is None or is_open or given == f"Bearer {platform.key}".encode():
            await app(scope, receive, send)
        else:
            body = {"__type": "MissingAuthenticationTokenException", "message": "A key is wanted."}
            await JSONResponse(body, 403)(scope, receive, send)

    server = PromptServer(uvicorn.Config(guarded, lifespan="off", log_config=None, access_log=False))
    listener = bind("127.0.0.1", 0)
    platform.url = url_of(listener)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield platform
    finally:
        server.stop()
        thread.join(WAIT_S)
        listener.close()
    assert not thread.is_alive()


class _Current:
    """The history of the moment: tests bring a fresh one each."""

    def __init__(self, platform: FakePlatform) -> None:
        self._platform = platform

    def series(self, *given: Any, **named: Any) -> Any:
        return self._platform.history.series(*given, **named)

    def rates(self, *given: Any, **named: Any) -> Any:
        return self._platform.history.rates(*given, **named)

    def requests_per_s(self, *given: Any, **named: Any) -> Any:
        return self._platform.history.requests_per_s(*given, **named)
