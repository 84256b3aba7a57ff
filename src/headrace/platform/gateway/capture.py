"""
Data capture: inputs and outputs of invocations, written to S3 in SageMaker's files and lines.

No request waits for its record: records are queued in memory up to a limit, beyond which they are counted as lost, and
files are written every few seconds. Answers without status 2xx and streams that broke off are not captured.
Source: SageMaker developer guide, "Capture data from real-time endpoint".
"""

import asyncio
import base64
import json
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.platform.gateway.metrics import CaptureEvent, GatewayMetrics, InvocationRecord
from headrace.platform.gateway.objects import ObjectFailed, S3Objects, retry_unavailable
from headrace.platform.state.routes import Capture, Route
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ClientResponse

MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Bodies in memory, of requests that run and of records that wait to be written."""
WRITE_S = 5.0
"""Seconds between two files of a variant."""
GIVE_UP_S = 600.0
"""Time after which records that the object storage does not take are lost."""
_ATTRIBUTES: Final = "x-amzn-sagemaker-custom-attributes"


@dataclass(slots=True, kw_only=True)
class CapturedInvocation:
    """The input and the output of a request, as far as they are captured."""

    capture: Capture
    endpoint: str
    record: InvocationRecord
    request: ClientRequest
    response: ClientResponse
    inferred_s: float
    output: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    is_lost: bool = False

    @property
    def prefix(self) -> str:
        """The folder of the files of its variant."""
        return f"{self.capture.destination.rstrip('/')}/{self.endpoint}/{self.record.variant}"


class DataCapture:
    """Captures the invocations of the endpoints whose configuration asks for it; used by the event loop's thread."""

    def __init__(
        self,
        objects: S3Objects,
        metrics: GatewayMetrics,
        *,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._objects = objects
        self._metrics = metrics
        self._draw = draw
        self._clock = clock
        self._queue: list[CapturedInvocation] = []
        self._num_bytes = 0
        self._is_queued = asyncio.Event()

    def begin(
        self, route: Route | None, record: InvocationRecord, request: ClientRequest, response: ClientResponse
    ) -> CapturedInvocation | None:
        """Begin to capture a request whose response has begun; None if it is not captured."""
        capture = None if route is None else route.capture
        if capture is None or not record.generates or not 200 <= response.status < 300:
            return None
        if 100 * self.event_of(record).point >= capture.percentage:
            return None
        invocation = CapturedInvocation(
            capture=capture,
            endpoint=record.endpoint,
            record=record,
            request=request,
            response=response,
            inferred_s=self._clock(),
        )
        self._hold(invocation, len(request.body) if capture.takes_input else 0)
        if capture.takes_output:

            def take(part: bytes) -> None:
                self._hold(invocation, len(part))
                if not invocation.is_lost:
                    invocation.output.append(part)

            response.copy_to(take)
        return invocation

    def event_of(self, record: InvocationRecord) -> CaptureEvent:
        """Return the event of a request; the first call draws it."""
        if record.event is None:
            record.event = CaptureEvent(str(uuid.uuid4()), self._draw())
        return record.event

    def end(self, invocation: CapturedInvocation) -> None:
        """Queue a captured request, unless its response is incomplete."""
        if not invocation.response.is_complete:
            self._release(invocation)
        elif invocation.is_lost:
            self._lose([invocation], "too many bytes wait to be written")
        else:
            self._queue.append(invocation)
            self._is_queued.set()

    async def run(self) -> None:
        """Write files until cancelled, and then the last ones."""
        try:
            while True:
                await self._is_queued.wait()
                await asyncio.sleep(WRITE_S)
                await self._write_all()
        finally:
            await asyncio.shield(self._write_all(until_s=self._clock()))

    async def _write_all(self, until_s: float | None = None) -> None:
        """Write all that is queued, each variant's records into one file."""
        self._is_queued.clear()
        give_up_s = self._clock() + GIVE_UP_S if until_s is None else until_s
        while self._queue:
            prefix = self._queue[0].prefix
            group = [invocation for invocation in self._queue if invocation.prefix == prefix]
            self._queue = [invocation for invocation in self._queue if invocation.prefix != prefix]
            try:
                await self._write(prefix, group, give_up_s)
            except asyncio.CancelledError:
                self._queue += group
                raise

    async def _write(self, prefix: str, group: Sequence[CapturedInvocation], give_up_s: float) -> None:
        uri = f"{prefix}/{file_name(group[0].inferred_s)}"
        body = await asyncio.to_thread(lines_of, group)
        try:
            await retry_unavailable(
                lambda: self._objects.put(uri, body, content_type="application/jsonlines"),
                until_s=give_up_s,
                now=self._clock,
            )
        except ObjectFailed as error:
            self._lose(group, str(error))
        else:
            self._metrics.captures_written += len(group)
            for invocation in group:
                self._release(invocation)

    def _hold(self, invocation: CapturedInvocation, num_bytes: int) -> None:
        invocation.num_bytes += num_bytes
        self._num_bytes += num_bytes
        invocation.is_lost |= self._num_bytes > MAX_QUEUED_BYTES

    def _release(self, invocation: CapturedInvocation) -> None:
        self._num_bytes -= invocation.num_bytes
        invocation.num_bytes = 0

    def _lose(self, group: Sequence[CapturedInvocation], reason: str) -> None:
        self._metrics.captures_lost += len(group)
        get_logger().warning("capture.lost", endpoint=group[0].endpoint, num_records=len(group), reason=reason)
        for invocation in group:
            self._release(invocation)


def file_name(inferred_s: float) -> str:
    """Return the place of a file below its variant: its hour, then minute, second, milliseconds and a unique id."""
    at = datetime.fromtimestamp(inferred_s, UTC)
    return f"{at:%Y/%m/%d/%H/%M-%S}-{at.microsecond // 1000:03d}-{uuid.uuid4()}.jsonl"


def lines_of(group: Sequence[CapturedInvocation]) -> bytes:
    return b"".join(line_of(invocation) for invocation in group)


def line_of(invocation: CapturedInvocation) -> bytes:
    """Return the line of a file for one invocation."""
    capture, record = invocation.capture, invocation.record
    headers = {name.lower(): value for name, value in invocation.request.headers}
    captured = {}
    if capture.takes_input:
        captured["endpointInput"] = _side("INPUT", headers, invocation.request.body, capture)
    if capture.takes_output:
        captured["endpointOutput"] = _side("OUTPUT", invocation.response.headers, b"".join(invocation.output), capture)
    metadata: dict[str, object] = {"eventId": record.event.id if record.event is not None else str(uuid.uuid4())}
    if _ATTRIBUTES in headers:
        metadata["customAttributes"] = [headers[_ATTRIBUTES]]
    if record.inference_id:
        metadata["inferenceId"] = record.inference_id
    metadata["inferenceTime"] = f"{datetime.fromtimestamp(invocation.inferred_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    line = {"captureData": captured, "eventMetadata": metadata, "eventVersion": "0"}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _side(mode: str, headers: Mapping[str, str], body: bytes, capture: Capture) -> dict[str, str]:
    content_type = headers.get("content-type", "")
    encoding, data = encoded(body, content_type, capture)
    return {"observedContentType": content_type, "mode": mode, "data": data, "encoding": encoding}


def encoded(body: bytes, content_type: str, capture: Capture) -> tuple[str, str]:
    """Return the encoding and the data of a body: text if the configuration names its type, else base64."""
    kind = content_type.partition(";")[0].strip().lower()
    for encoding, types in (("CSV", capture.csv_types), ("JSON", capture.json_types)):
        if kind in types:
            try:
                return encoding, body.decode()
            except UnicodeDecodeError:
                break
    return "BASE64", base64.b64encode(body).decode()
