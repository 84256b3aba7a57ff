"""
The head of a runtime request: endpoint, API and SageMaker's headers, checked by botocore's model.

Only documented headers reach a worker. Source: botocore sagemaker-runtime/2017-05-13.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from botocore.model import StructureShape

from headrace.core.tracing import TraceContext
from headrace.platform.cluster.model_host.protocol import TARGET_HEADER
from headrace.serving.http.background import BACKGROUND, BACKGROUND_HEADERS, PRIORITY_HEADER
from headrace.serving.wire.aws import scalars, services, validation
from headrace.serving.wire.aws.members import MEMBERS

Api = Literal["InvokeEndpoint", "InvokeEndpointWithResponseStream", "InvokeEndpointAsync"]

_PATH = re.compile(r"/endpoints/([^/]+)/(invocations|invocations-response-stream|async-invocations)/?")
_APIS: dict[str, Api] = {
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
    "async-invocations": "InvokeEndpointAsync",
}
_NOT_FORWARDED = frozenset({"EndpointName", "Body", "ContentType", "Accept", "InferenceId"})
"""Members that reach the worker in another way, or not at all."""
_FOR_PLATFORM = frozenset(
    {"InputLocation", "S3OutputPathExtension", "Filename", "RequestTTLSeconds", "InvocationTimeoutSeconds"}
)
"""Members of the asynchronous API for the platform itself."""

_ENCODING, _ENCODING_HEADER = "ContentEncoding", "content-encoding"
"""A header that is no member of the API: without it, a worker would take a compressed body for a broken one."""

_TARGET_MODEL = "TargetModel"
"""A member of InvokeEndpoint alone; the header names the model of a stream, too, as language models stream."""

RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A request for an endpoint, without its body."""

    api: Api
    endpoint: str
    members: dict[str, str] = field(default_factory=dict)
    """The API's input members from headers, by their names in botocore's model, and `ContentEncoding`."""
    trace: TraceContext = field(default_factory=TraceContext)
    """The ids of the request."""
    is_background: bool = False
    """The engine of the worker runs all other requests first."""
    attempt: str = ""
    """The number of the attempt, from the header `amz-sdk-request` of an SDK."""

    @property
    def session_id(self) -> str | None:
        return self.members.get("SessionId")

    @property
    def unserved_member(self) -> str | None:
        """A member that addresses something that no endpoint has."""
        refused = MEMBERS["sagemaker-runtime"][f"{self.api}Input"].refused
        return next((member for member in refused if member in self.members), None)

    @property
    def prefix_id(self) -> str:
        """An id that separates unrelated requests with the same prefix."""
        return self.members.get("PrefixAwareId", "")

    def worker_headers(self) -> tuple[tuple[str, str], ...]:
        names = {_TARGET_MODEL: TARGET_HEADER, **_canonical_names(self.api), _ENCODING: _ENCODING_HEADER}
        headers = [("Accept", self.members.get("Accept", "*/*")), ("X-Amzn-SageMaker-Forwarded-Api", self.api)]
        if "ContentType" in self.members:
            headers.append(("Content-Type", self.members["ContentType"]))
        headers.extend(
            (names[member], value)
            for member, value in self.members.items()
            if member not in _NOT_FORWARDED and member not in _FOR_PLATFORM
        )
        if self.is_background:
            headers.extend(BACKGROUND_HEADERS.items())
        return (*headers, *self.trace.headers())


def match(path: str) -> tuple[str, Api] | None:
    """Return endpoint and API of a path of the runtime service; None if it is another path."""
    found = _PATH.fullmatch(path)
    return None if found is None else (found[1], _APIS[found[2]])


def read(endpoint: str, api: Api, headers: RawHeaders, trace: TraceContext) -> Invocation:
    """Read and check the head of a request; raise `AwsError`, with AWS's text, if it breaks the API's model."""
    members_by_header = _members(api)
    members: dict[str, str] = {}
    encoding: dict[str, str] = {}
    attempt, is_background = "", False
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        member = members_by_header.get(name)
        if member is not None:
            members[member] = _text(raw_value).strip()
        elif name == _ENCODING_HEADER:
            encoding[_ENCODING] = raw_value.decode("latin-1")
        elif name == PRIORITY_HEADER:
            is_background = raw_value == BACKGROUND.encode()
        elif name == "amz-sdk-request":
            attempt = raw_value.decode("latin-1")
    operation = services.operation("sagemaker-runtime", api)
    shape = _input_shape(api)
    values = {
        name: scalars.from_text(text, shape.members[name], name)
        for name, text in members.items()
        if name in shape.members
    }
    validation.check(operation, {"EndpointName": endpoint, "Body": b"", **values})
    if _TARGET_MODEL in members and _TARGET_MODEL not in shape.members:
        only = {"EndpointName": endpoint, "Body": b"", _TARGET_MODEL: members[_TARGET_MODEL]}
        validation.check(services.operation("sagemaker-runtime", "InvokeEndpoint"), only)
    return Invocation(
        api=api,
        endpoint=endpoint,
        members=members | encoding,
        trace=trace,
        is_background=is_background,
        attempt=attempt,
    )


def _text(value: bytes) -> str:
    """
    Decode a header: SDKs send UTF-8, some programs Latin-1.

    Only `InputLocation` can have more than ASCII: the patterns of the members for the worker refuse it.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


@cache
def _members(api: Api) -> dict[str, str]:
    also = {} if api == "InvokeEndpointAsync" else {_TARGET_MODEL: TARGET_HEADER}
    return {name.lower(): member for member, name in (also | _canonical_names(api)).items()}


@cache
def _canonical_names(api: Api) -> dict[str, str]:
    return {
        name: member.serialization["name"]
        for name, member in _input_shape(api).members.items()
        if member.serialization.get("location") == "header"
    }


@cache
def _input_shape(api: Api) -> StructureShape:
    shape = services.operation("sagemaker-runtime", api).input_shape
    assert shape is not None
    return shape
