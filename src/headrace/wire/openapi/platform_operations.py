"""The operations of a platform that its clients call without an AWS SDK, and SageMaker's runtime."""

from collections.abc import Iterator
from dataclasses import replace

from headrace.wire.openapi.operations import JSON, OPENAPI_PATH, Api, Operation
from headrace.wire.openapi.server_answers import PlatformHealth, TargetGroup
from headrace.wire.openapi.server_operations import SERVER_OPERATIONS
from headrace.wire.unknown_routes import MODELS, OPENAI_METHODS, RESPONSES

RUNTIME = Api("SageMaker runtime", "The invocation of endpoints; clients of AWS sign these requests.", "AwsError")
PLATFORM = Api("Platform", "Health, metrics and this description.", "TypedError")

_NAME = "/endpoints/{name}"
_INPUTS = {"inputs": "red, green, blue,", "parameters": {"max_new_tokens": 16}}


def _gateway() -> Iterator[Operation]:
    """Yield the routes below `/v1`: the model is the endpoint that `model` names."""
    for operation in SERVER_OPERATIONS:
        if operation.path in OPENAI_METHODS or operation.path.startswith((f"{MODELS}/", f"{RESPONSES}/")):
            example = {**operation.example, "model": "ENDPOINT"} if operation.bodies else {}
            yield replace(operation, example=example)


def _runtime() -> Iterator[Operation]:
    invocations = next(operation for operation in SERVER_OPERATIONS if operation.path == "/invocations")
    for path, summary, produces in (
        (f"{_NAME}/invocations", "Invoke an endpoint (InvokeEndpoint).", JSON),
        (
            f"{_NAME}/invocations-response-stream",
            "Invoke an endpoint and stream its response (InvokeEndpointWithResponseStream).",
            ("application/vnd.amazon.eventstream",),
        ),
    ):
        yield replace(
            invocations,
            api=RUNTIME,
            path=path,
            summary=f"{summary} The response is that of the endpoint's model server.",
            produces=produces,
            example=_INPUTS,
            answers=(),
            events=(),
        )


def _platform() -> Iterator[Operation]:
    for path, summary, answers, is_open in (
        ("/health", "Return the state of the platform.", (PlatformHealth,), True),
        ("/metrics", "Return the gateway's metrics for Prometheus.", (), False),
        ("/metrics/targets", "List the workers for Prometheus' service discovery.", (list[TargetGroup],), False),
        ("/metrics/workers/{worker}", "Return the metrics of a worker for Prometheus.", (), False),
        (OPENAPI_PATH, "Return this description.", (dict[str, object],), True),
    ):
        yield Operation(
            api=PLATFORM,
            method="GET",
            path=path,
            summary=summary,
            produces=JSON if answers else ("text/plain",),
            answers=answers,
            is_open=is_open,
        )


PLATFORM_OPERATIONS = (*_gateway(), *_runtime(), *_platform())
