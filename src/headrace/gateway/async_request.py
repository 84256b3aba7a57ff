"""The stored form of an InvokeEndpointAsync request, and the headers that announce its outcome. Pure."""

from dataclasses import replace
from urllib.parse import quote
from uuid import uuid4

from headrace.gateway.async_files import PendingInvocation
from headrace.gateway.request import Invocation
from headrace.gateway.routing import is_for_components
from headrace.state.routes import Route
from headrace.wire.aws.errors import AwsError

MAX_INLINE_BYTES = 128_000
DEFAULT_TTL_S = 21_600.0
DEFAULT_TIMEOUT_S = 900.0


def pending_of(route: Route, invocation: Invocation, body: bytes, *, now_s: float) -> PendingInvocation:
    """
    Build the stored form of a request.

    Raises:
        AwsError: the endpoint is not asynchronous, its models are inference components, or the request does
            not have exactly one input.
    """
    output = route.async_output
    if output is None:
        raise AwsError(
            "ValidationError",
            f"Endpoint {route.endpoint} does not take asynchronous invocations: its configuration has no "
            "AsyncInferenceConfig.",
        )
    if is_for_components(route):  # it would wait for a replica until it expires
        raise AwsError(
            "ValidationError",
            f"Endpoint {route.endpoint} does not take asynchronous invocations: its models are inference components, "
            "and InvokeEndpointAsync cannot name one. Use InvokeEndpoint, or an endpoint whose variants have models.",
        )
    members = invocation.members
    input_uri = members.get("InputLocation")
    if (input_uri is None) == (not body):
        raise AwsError("ValidationError", "Provide exactly one of Body and InputLocation.")
    unique = uuid4().hex
    inference_id = invocation.trace.inference_id or unique
    name = members.get("Filename", f"{inference_id}.out")
    folders = [output.output_path, members.get("S3OutputPathExtension", "")]
    failure_uri = None
    if output.failure_path is not None:
        failure_uri = f"{output.failure_path.rstrip('/')}/{name.rpartition('.')[0] or name}-error.out"
    return PendingInvocation(
        id=f"{int(now_s * 1e6):017d}-{unique}",
        endpoint=route.endpoint,
        endpoint_uid=route.endpoint_uid,
        inference_id=inference_id,
        members=members,
        body=body if input_uri is None else None,
        input_uri=input_uri,
        output_uri="/".join([*(folder.strip("/") for folder in folders if folder.strip("/")), name]),
        failure_uri=failure_uri,
        accepted_s=now_s,
        expires_s=now_s + float(members.get("RequestTTLSeconds", DEFAULT_TTL_S)),
        timeout_s=float(members.get("InvocationTimeoutSeconds", DEFAULT_TIMEOUT_S)),
        trace=replace(invocation.trace, inference_id=inference_id),
    )


def location_headers(pending: PendingInvocation) -> list[tuple[str, str]]:
    """Return the response headers with the locations of the outcome."""
    headers = [("X-Amzn-SageMaker-OutputLocation", _in_header(pending.output_uri))]
    if pending.failure_uri is not None:
        headers.append(("X-Amzn-SageMaker-FailureLocation", _in_header(pending.failure_uri)))
    return headers


def _in_header(uri: str) -> str:
    """
    Return a location in a form that a header can hold.

    SDKs read a header as Latin-1 and do not decode it further, so a location of these characters is sent unchanged. Any
    other one is percent-encoded: `urllib.parse.unquote` restores it.
    """
    is_latin = uri.isprintable() and max(uri, default="") <= "\xff"
    return uri if is_latin else quote(uri, safe=":/")
