"""
The APIs that the console calls, on a real port, with what a test puts behind them.

What the page sends is checked against botocore's models, and so is what it is answered.
"""

# ruff: noqa: N802, N803 -- operations and their parameters have AWS's names

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import uvicorn
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from headrace.platform.gateway.traffic_history import TrafficHistory
from headrace.platform.host.access_keys import AccessKeys
from headrace.platform.host.console import ConsoleSources, console_app, needs_key
from headrace.serving.http.asgi import ASGIApp
from headrace.serving.http.tls import bind, url_of
from tests.prompt_server import PromptServer
from tests.waiting import WAIT_S

ACCOUNT = "123456789012"
NOW_S = 1_790_000_000.0
GIB = 1 << 30
IDENTITY = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    f"<Account>{ACCOUNT}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"
)
COMPONENT_PATH = "/endpoints/{endpoint}/inference-components/{component}/openai"
_SERVICES = {"SageMaker": "sagemaker", "Logs_20140328": "logs"}
_SORTED = {"Name": "EndpointName", "CreationTime": "CreationTime", "Status": "EndpointStatus"}


class Refused(Exception):
    """An AWS error."""

    def __init__(self, message: str, *, code: str = "ValidationException", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.code, self.status = message, code, status


@dataclass
class FakePlatform:
    """The resources of the platform, and the calls that it received."""

    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    """Stream → lines, of the endpoint that is asked about."""
    history: TrafficHistory = field(default_factory=TrafficHistory)
    overviews: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Endpoint → its components and where they are."""
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
    refusals: dict[str, Refused] = field(default_factory=dict)
    """Operation → what it answers from now on."""
    words: tuple[str, ...] = ("one ", "two ", "three")
    delay_s: float = 0.0
    num_held: int = 0
    """The last words of an answer, which are sent when a test sets this to zero."""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    prompts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of each OpenAI request."""
    components_asked: list[str | None] = field(default_factory=list)
    """Inference component of each OpenAI request, if its path names one."""
    num_aborted: int = 0
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Specification and number of copies of inference components."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Model → what `GET /v1/models` tells of it."""
    url: str = ""

    def add(self, name: str, status: str = "InService", **more: Any) -> dict[str, Any]:
        """An endpoint with one variant."""
        variant = {
            "VariantName": "AllTraffic",
            "CurrentWeight": 1.0,
            "DesiredWeight": 1.0,
            "CurrentInstanceCount": 1,
            "DesiredInstanceCount": 2,
            "DeployedImages": [{"SpecifiedImage": "tgi:3.3.6"}],
        }
        self.configs[name] = {"variants": [{"VariantName": "AllTraffic", "ModelName": name}], "tags": []}
        self.models[name] = {}
        self.endpoints[name] = {
            "EndpointName": name,
            "EndpointArn": arn("endpoint", name),
            "EndpointConfigName": name,
            "EndpointStatus": status,
            "CreationTime": NOW_S + len(self.endpoints),
            "LastModifiedTime": NOW_S + len(self.endpoints),
            "ProductionVariants": [variant],
            **more,
        }
        return self.endpoints[name]

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
            "machine": {
                "num_cores": 8,
                "load": 2.5,
                "memory_bytes": 16 * GIB,
                "free_memory_bytes": 4 * GIB,
                "gpus": [],
                "cluster": "local",
            },
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
            answer = self._call(_SERVICES[prefix], operation, parameters)
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

    def _call(self, service: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        model = service_model(service).operation_model(operation)
        report = ParamValidator().validate(parameters, model.input_shape)
        assert not report.has_errors(), report.generate_report()
        self.calls.append((operation, parameters))
        if operation in self.refusals:
            raise self.refusals[operation]
        answer: dict[str, Any] | None = getattr(self, f"_{operation}")(**parameters)
        if answer is not None:
            report = ParamValidator().validate(answer, model.output_shape)
            assert not report.has_errors(), report.generate_report()
        return answer

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

    # The operations

    def _ListEndpoints(
        self,
        *,
        MaxResults: int,
        SortBy: str,
        SortOrder: str,
        NameContains: str = "",
        StatusEquals: str = "",
        NextToken: str = "0",
    ) -> dict[str, Any]:
        fitting = [
            endpoint
            for endpoint in self.endpoints.values()
            if NameContains in endpoint["EndpointName"] and StatusEquals in ("", endpoint["EndpointStatus"])
        ]
        fitting.sort(key=lambda endpoint: endpoint[_SORTED[SortBy]], reverse=SortOrder == "Descending")
        start = int(NextToken)
        names = ("EndpointName", "EndpointArn", "EndpointStatus", "CreationTime", "LastModifiedTime")
        page = [{name: endpoint[name] for name in names} for endpoint in fitting[start : start + MaxResults]]
        more = {"NextToken": str(start + MaxResults)} if start + MaxResults < len(fitting) else {}
        return {"Endpoints": page, **more}

    def _DescribeEndpoint(self, *, EndpointName: str) -> dict[str, Any]:
        return _found(self.endpoints, "endpoint", EndpointName)

    def _DescribeEndpointConfig(self, *, EndpointConfigName: str) -> dict[str, Any]:
        config = _found(self.configs, "endpoint-config", EndpointConfigName)
        return {
            "EndpointConfigName": EndpointConfigName,
            "EndpointConfigArn": arn("endpoint-config", EndpointConfigName),
            "ProductionVariants": config["variants"],
            "CreationTime": NOW_S,
            **config.get("others", {}),
        }

    def _DescribeModel(self, *, ModelName: str) -> dict[str, Any]:
        model = {name: value for name, value in _found(self.models, "model", ModelName).items() if name != "Tags"}
        return {"ModelName": ModelName, "ModelArn": arn("model", ModelName), "CreationTime": NOW_S, **model}

    def _ListModels(self, *, MaxResults: int, SortBy: str, SortOrder: str, NextToken: str = "0") -> dict[str, Any]:
        assert (SortBy, SortOrder) == ("CreationTime", "Descending")
        start, names = int(NextToken), list(self.models)[::-1]
        page = [
            {"ModelName": name, "ModelArn": arn("model", name), "CreationTime": NOW_S}
            for name in names[start : start + MaxResults]
        ]
        more = {"NextToken": str(start + MaxResults)} if start + MaxResults < len(names) else {}
        return {"Models": page, **more}

    def _ListTags(self, *, ResourceArn: str) -> dict[str, Any]:
        name = ResourceArn.rpartition("/")[2]
        return {"Tags": self.models[name].get("Tags", []) if ":model/" in ResourceArn else self.configs[name]["tags"]}

    def _CreateModel(self, *, ModelName: str, **more: Any) -> dict[str, Any]:
        if ModelName in self.models:
            raise Refused(f'Cannot create already existing model "{arn("model", ModelName)}".')
        self.models[ModelName] = more
        return {"ModelArn": arn("model", ModelName)}

    def _CreateEndpointConfig(
        self,
        *,
        EndpointConfigName: str,
        ProductionVariants: list[Any],
        Tags: list[Any],
        **others: Any,
    ) -> dict[str, Any]:
        self.configs[EndpointConfigName] = {"variants": ProductionVariants, "tags": Tags, "others": others}
        return {"EndpointConfigArn": arn("endpoint-config", EndpointConfigName)}

    def _CreateEndpoint(self, *, EndpointName: str, EndpointConfigName: str, Tags: list[Any]) -> dict[str, Any]:
        configs, models = dict(self.configs), dict(self.models)
        assert Tags
        self.add(EndpointName, "Creating")["EndpointConfigName"] = EndpointConfigName
        self.configs, self.models = configs, models
        return {"EndpointArn": arn("endpoint", EndpointName)}

    def _UpdateEndpointWeightsAndCapacities(
        self, *, EndpointName: str, DesiredWeightsAndCapacities: list[dict[str, Any]]
    ) -> dict[str, Any]:
        [wanted] = DesiredWeightsAndCapacities
        [variant] = _found(self.endpoints, "endpoint", EndpointName)["ProductionVariants"]
        variant["DesiredInstanceCount"] = wanted["DesiredInstanceCount"]
        return {"EndpointArn": arn("endpoint", EndpointName)}

    def _DeleteEndpoint(self, *, EndpointName: str) -> None:
        _found(self.endpoints, "endpoint", EndpointName)
        del self.endpoints[EndpointName]

    def _DeleteEndpointConfig(self, *, EndpointConfigName: str) -> None:
        _found(self.configs, "endpoint-config", EndpointConfigName)
        del self.configs[EndpointConfigName]

    def _DeleteModel(self, *, ModelName: str) -> None:
        _found(self.models, "model", ModelName)
        del self.models[ModelName]

    def _CreateInferenceComponent(self, *, InferenceComponentName: str, **more: Any) -> dict[str, Any]:
        copies = {"DesiredCopyCount": more["RuntimeConfig"]["CopyCount"]}
        self.components[InferenceComponentName] = {"Specification": more["Specification"], "RuntimeConfig": copies}
        return {"InferenceComponentArn": arn("inference-component", InferenceComponentName)}

    def _DescribeInferenceComponent(self, *, InferenceComponentName: str) -> dict[str, Any]:
        names = ("inference-component", InferenceComponentName)
        return {
            "InferenceComponentName": InferenceComponentName,
            "InferenceComponentArn": arn(*names),
            "EndpointName": "host",
            "EndpointArn": arn("endpoint", "host"),
            "VariantName": "AllTraffic",
            "CreationTime": NOW_S,
            "LastModifiedTime": NOW_S,
            **_found(self.components, *names),
        }

    def _UpdateInferenceComponent(
        self, *, InferenceComponentName: str, Specification: dict[str, Any], RuntimeConfig: dict[str, Any]
    ) -> dict[str, Any]:
        copies = {"DesiredCopyCount": RuntimeConfig["CopyCount"]}
        self.components[InferenceComponentName] = {"Specification": Specification, "RuntimeConfig": copies}
        return {"InferenceComponentArn": arn("inference-component", InferenceComponentName)}

    def _UpdateInferenceComponentRuntimeConfig(
        self, *, InferenceComponentName: str, DesiredRuntimeConfig: dict[str, Any]
    ) -> dict[str, Any]:
        for overview in self.overviews.values():
            for component in overview["components"]:
                if component["name"] == InferenceComponentName:
                    component["desired"] = DesiredRuntimeConfig["CopyCount"]
        return {"InferenceComponentArn": arn("inference-component", InferenceComponentName)}

    def _DeleteInferenceComponent(self, *, InferenceComponentName: str) -> None:
        self.components.pop(InferenceComponentName, None)
        for overview in self.overviews.values():
            overview["components"] = [
                component for component in overview["components"] if component["name"] != InferenceComponentName
            ]

    def _DescribeLogStreams(self, *, logGroupName: str, **_order: Any) -> dict[str, Any]:
        assert logGroupName.startswith(("/aws/sagemaker/Endpoints/", "/aws/sagemaker/InferenceComponents/"))
        if not self.logs:
            raise Refused("The specified log group does not exist.", code="ResourceNotFoundException")
        return {"logStreams": [{"logStreamName": name} for name in self.logs]}

    def _GetLogEvents(
        self,
        *,
        logGroupName: str,
        logStreamName: str,
        startFromHead: bool,
        nextToken: str | None = None,
        limit: int = 10_000,
    ) -> dict[str, Any]:
        assert logGroupName
        lines = self.logs[logStreamName]
        start = int(nextToken) if nextToken else max(0, len(lines) - limit)
        assert startFromHead == (nextToken is not None)
        at_ms = int(NOW_S * 1000)
        events = [{"timestamp": at_ms + number, "message": lines[number]} for number in range(start, len(lines))]
        return {"events": events, "nextForwardToken": str(len(lines)), "nextBackwardToken": "0"}


def arn(kind: str, name: str) -> str:
    return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:{kind}/{name}"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@cache
def service_model(name: str) -> ServiceModel:
    return ServiceModel(Loader().load_service_model(name, "service-2"))


def _found(records: dict[str, dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    if name not in records:
        raise Refused(f'Could not find {kind} "{arn(kind, name)}".')
    return records[name]


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
