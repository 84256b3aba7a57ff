"""
The limits of the gateway, and its errors for clients that get no answer from a model.

The texts are those of SageMaker's runtime.

Statuses: SDKs retry after a 5xx or a ThrottlingException and would run a model three times. So a failed model is a 424,
which they do not retry; a full worker is a 429 ModelNotReadyException, which they do not retry where the API's model
has it (InvokeEndpoint; for streams they wait and retry). Only if nothing has run yet (no replica, or the gateway itself
is full) are they told to retry.

Sources of the texts: answers of SageMaker that its users quote (aws/amazon-sagemaker-examples issues 293, 2815;
1026; aws/sagemaker-python-sdk issues 171, 2955, 4271).
"""

from dataclasses import dataclass

from headrace.core.client_text import shortened
from headrace.platform.cluster.launcher import NO_GRANTS, Grants
from headrace.platform.cluster.model_host.protocol import Reason
from headrace.platform.gateway.metrics import PRIMARY_CONTAINER
from headrace.platform.gateway.routing import (
    ComponentNeeded,
    ContainerNeeded,
    NotRoutable,
    TargetNeeded,
    UnknownContainer,
    UnknownVariant,
    UnservedMember,
)
from headrace.platform.state.routes import Route
from headrace.serving.wire.aws.errors import AwsError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The gateway's configuration. Source of the defaults: SageMaker guide, "How containers serve requests"."""

    account: str
    """Twelve digits; part of error messages and ARNs."""
    region: str
    max_body_bytes: int = 25 * MIB
    """Largest body of a request."""
    max_response_bytes: int = 25 * MIB
    """Largest response that is not streamed."""
    invocation_timeout_s: float = 60.0
    """Longest time from the request to the whole response, unless it is streamed."""
    stream_timeout_s: float = 480.0
    """Longest time from the request to the end of the stream."""
    max_in_flight: int = 4096
    """Requests in the gateway at the same time; further ones are throttled."""
    hold_timeout_s: float = 300.0
    """Longest time a request is held for a replica that starts or wakes from zero, before the model's own timeout."""
    max_held: int = 1024
    """Requests held for one endpoint; further ones are throttled."""
    max_held_in_all: int = 2048
    """Requests held for all endpoints together: half of `max_in_flight`, so that other endpoints are still served."""
    heartbeat_s: float = 15.0
    """Seconds between the SSE comments that keep the connection of a held streaming request open."""
    max_buffered_bytes: int = 1024 * MIB
    """Request bodies in memory at the same time."""
    stored_responses_bytes: int = 64 * MIB
    """Memory for stored responses of the Responses API. 0: none are stored."""
    stored_responses_age_s: float = 86400.0
    """Longest time that a response is stored."""
    max_async_waiting: int = 10_000
    max_async_response_bytes: int = 256 * MIB
    """Largest input, and largest response, of an asynchronous invocation; the input is held in memory."""
    grants: Grants = NO_GRANTS
    """Lets the instances of multi-model endpoints read their models."""
    log_url: str = (
        "https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
        "#logEventViewer:group=/aws/sagemaker/Endpoints/{endpoint}"
    )
    """URL of an endpoint's log; part of AWS's error message for a failed model."""


SERVERLESS_MAX_BYTES = 4 * MIB
"""Largest request and response of a serverless variant. Source: SageMaker guide, "Invoke a serverless endpoint"."""

MAX_MESSAGE_CHARACTERS = 2048
"""Maximum length of `Message` and `OriginalMessage`. Source: botocore sagemaker-runtime, shape Message."""

TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container {container}. Review the latency metrics for "
    "each container in Amazon CloudWatch, resolve the issue, and try again."
)
STREAM_TIMED_OUT = (
    "The model failed to finish sending the response within the timeout period allowed by Amazon SageMaker."
)
STREAM_BROKEN = (
    "The Transmission Control Protocol (TCP) connection between the client and the model was reset or closed."
)
TIME_EXCEEDED_CODE = "ModelInvocationTimeExceeded"
STREAM_BROKEN_CODE = "StreamBroken"


_UNSERVED = {
    "TargetModel": ("is not a multi-model endpoint", "target model"),
    "TargetContainerHostname": ("is not a multi-container endpoint", "target container hostname"),
    "EnableExplanations": ("does not have an explainer", "enable explanations"),
}
"""What an endpoint would need for a member, and the name of its header. AWS's text is known for the first."""


class UnknownTarget(AwsError):
    """There is no such endpoint or inference component."""


class NotServing(AwsError):
    """The endpoint exists, but does not serve yet or has failed. To AWS's clients it does not exist."""

    def __init__(self, message: str, *, endpoint: str, status: str) -> None:
        super().__init__("ValidationError", message)
        self.endpoint = endpoint
        self.endpoint_status = status


class NoCapacity(AwsError):
    """No replica can answer now, and nothing has run. CloudWatch counts these for inference components."""


class ErrorTexts:
    """A factory of errors whose texts name the account, the region or the limits."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config

    def endpoint_not_found(self, endpoint: str) -> AwsError:
        return UnknownTarget("ValidationError", self._not_found(endpoint))

    def endpoint_not_serving(self, route: Route) -> AwsError:
        return NotServing(self._not_found(route.endpoint), endpoint=route.endpoint, status=route.status)

    def not_routable(self, endpoint: str, error: NotRoutable) -> AwsError:
        """Return the error for a part that the endpoint does not have."""
        match error:
            case UnservedMember():
                what, header = _UNSERVED[str(error)]
                text = f"Endpoint {endpoint} {what} and does not support {header} header."
            case TargetNeeded():
                text = f"The request to multi-model endpoint {endpoint} is missing a target model header."
            case UnknownVariant():
                text = f"Variant {shortened(str(error))} not found for Request"
            case UnknownContainer():
                text = f"Target container hostname {shortened(str(error))} not found in endpoint {endpoint}."
            case ContainerNeeded():
                text = (
                    f"Endpoint {endpoint} is a multi-container endpoint with direct invocation and requires the target "
                    "container hostname header."
                )
            case ComponentNeeded():
                text = (
                    "Inference Component Name header is required for endpoints to which you plan to deploy inference "
                    "components. Please include Inference Component Name header or consider using SageMaker models."
                )
            case _:
                name = shortened(str(error))
                text = f"Inference Component {name} of account {self._config.account} not found."
                return UnknownTarget("ValidationError", text)
        return _invalid(text)

    def session_lost(self, session_id: str) -> AwsError:
        return _invalid(
            f"The session {session_id} has ended, because the instance that had it is gone. Open a new one with the "
            "session id NEW_SESSION."
        )

    def no_replica(self, endpoint: str) -> AwsError:
        """All replicas are starting or gone. Nothing ran: SDKs may retry."""
        return NoCapacity(
            "ServiceUnavailable",
            f"Endpoint {endpoint} has no instance that can answer now. It is being started; try again.",
        )

    def asleep(self, endpoint: str) -> AwsError:
        """A request that generates nothing wakes no endpoint that is scaled to zero."""
        return NoCapacity(
            "ServiceUnavailable",
            f"Endpoint {endpoint} is scaled to zero. A request that generates starts it; this one does not.",
        )

    def no_copy(self) -> AwsError:
        return NoCapacity(
            "ValidationError",
            "Inference Component has no capacity to process this request. ApplicationAutoScaling may be in-progress "
            "(if configured) or try to increase the capacity by invoking UpdateInferenceComponentRuntimeConfig API.",
        )

    def too_many_wait(self, endpoint: str) -> AwsError:
        """The wait queue is full. Nothing ran: SDKs wait and retry."""
        return NoCapacity(
            "ThrottlingException",
            f"Endpoint {endpoint} is being started, and as many requests as may wait for it do: at most "
            f"{self._config.max_held} for one endpoint (max_held), {self._config.max_held_in_all} for all together. "
            "Try again later.",
        )

    def concurrency_exceeded(self, endpoint: str, max_concurrency: int) -> AwsError:
        """All requests that a serverless endpoint may serve are in flight. Nothing ran: SDKs wait and retry."""
        return AwsError(
            "ThrottlingException",
            f"Rate exceeded: serverless endpoint {endpoint} has {max_concurrency} requests in flight, which is its "
            "MaxConcurrency. Try again later, or update the endpoint with a larger one.",
        )

    def oversize_body(self, request_id: str) -> AwsError:
        """A request to a serverless endpoint is larger than AWS's limit for them."""
        return _invalid(f"Request {request_id} has oversize body.")

    def waited_too_long(self, endpoint: str, component: str | None = None) -> AwsError:
        """A held request found no replica in time. Nothing ran: SDKs may retry."""
        missing = f"Endpoint {endpoint} had no instance"
        if component is not None:
            missing = f"Inference component {component} of endpoint {endpoint} had no copy"
        return NoCapacity(
            "ServiceUnavailable",
            f"{missing} that could answer for {self._config.hold_timeout_s:g} s (hold_timeout_s). "
            "Look at its status and its log, and try again.",
        )

    def overloaded(self, what: str) -> AwsError:
        """The gateway is at its own limits. Nothing ran: SDKs wait and retry."""
        return AwsError(
            "ThrottlingException", f"The platform holds {what}, which is all that it takes. Try again later."
        )

    def body_too_large(self, max_bytes: int) -> AwsError:
        """AWS's code for it is the status."""
        return AwsError("413", f"HTTP content length exceeded {max_bytes} bytes.", status=413)

    def no_response(self, endpoint: str) -> AwsError:
        """No worker could be reached, or each one died before it answered."""
        return self._model_error(
            endpoint,
            0,
            f"Amazon SageMaker could not get a response from the {endpoint} endpoint. This can occur when CPU or "
            "memory utilization is high. To check your utilization, see Amazon CloudWatch. To fix this problem, use "
            "an instance type with more CPU capacity or memory.",
            PRIMARY_CONTAINER,
        )

    def timed_out(self, endpoint: str, container: str) -> AwsError:
        return self._model_error(endpoint, 0, TIMED_OUT.format(container=container), container)

    def incomplete_response(self, endpoint: str, status: int, container: str) -> AwsError:
        """The response broke off, or is too large to be held in memory."""
        return self._model_error(endpoint, status, None, container)

    def model_not_found(self, location: str, why: str) -> AwsError:
        """There is no such target model, or it cannot be read."""
        bucket, _, key = location.removeprefix("s3://").partition("/")
        what = f"bucket: {bucket}, key: {key}" if location.startswith("s3://") else location
        return _invalid(
            f"Failed to download model data({what}). Please ensure that there is an object located at the URL and that "
            f"the role passed to CreateModel has permissions to download the model. {why}".rstrip()
        )

    def refused(
        self, endpoint: str, status: int, body: bytes, container: str, reason: Reason | None = None
    ) -> AwsError:
        """A container's 4xx or 5xx response, whose text is quoted; `reason`: its target model is not loaded."""
        said = body.decode("utf-8", errors="replace")
        if reason in ("not-ready", "unknown"):
            return AwsError("ModelNotReadyException", "The target model is still being loaded. Wait and try again.")
        if reason == "not-fetched":
            return _invalid(_cut(f"Failed to download model data of the target model: {said}"))
        if status == 429:
            return AwsError("ModelNotReadyException", _cut(f"The model takes no more requests now: {said}"))
        return self._model_error(endpoint, status, said, container)

    def _not_found(self, endpoint: str) -> str:
        return f"Endpoint {shortened(endpoint)} of account {self._config.account} not found."

    def _model_error(self, endpoint: str, status: int, said: str | None, container: str) -> AwsError:
        """Return a ModelError that quotes what a container said; None: it did not say all of it."""
        region, account = self._config.region, self._config.account
        url = self._config.log_url.format(region=region, endpoint=endpoint)
        see = f"See {url} in account {account} for more information."
        text = f"Received {'client' if 400 <= status < 500 else 'server'} error ({status}) from {container}"
        if said is None:
            text = f"{text} and could not load the entire response body."
        else:
            room = MAX_MESSAGE_CHARACTERS - len(text) - len(see) - 19
            text = f'{text} with message "{_cut(said, room)}".'
        group = f"log-group:/aws/sagemaker/Endpoints/{endpoint}"
        members = {
            "OriginalStatusCode": status,
            "OriginalMessage": _cut(said or ""),
            "LogStreamArn": f"arn:aws:logs:{region}:{account}:{group}",
        }
        return AwsError("ModelError", f"{text} {see}", members=members)


def _invalid(message: str) -> AwsError:
    return AwsError("ValidationError", message)


def _cut(text: str, max_characters: int = MAX_MESSAGE_CHARACTERS) -> str:
    return text if len(text) <= max_characters else text[: max(0, max_characters - 3)] + "..."
