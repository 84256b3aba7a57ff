"""
Run one batch transform job: read, split, invoke, filter, assemble and store its objects.

Requests of several objects are in flight together, so that many small objects fill the engine as one large one does. An
object that fails has no output, and the others go on. Source: SageMaker developer guide, "Batch transform".
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Final
from uuid import uuid4

from headrace.core.client_text import shortened
from headrace.core.telemetry import get_logger
from headrace.platform.control.model.transform_job import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, ExecutionParameters
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.objects import ObjectFailed, retry_unavailable
from headrace.platform.gateway.routing import RoutingQuery
from headrace.platform.gateway.service import InvocationService
from headrace.platform.jobs.batch_capture import InferenceIds
from headrace.platform.jobs.inputs import InputFile, Objects, read_bodies
from headrace.platform.jobs.processing import Processing, ProcessingFailed
from headrace.platform.jobs.splitting import InputBroken, Splitter
from headrace.platform.jobs.spool import JobFolder, Spool
from headrace.platform.state.records import Json
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ResponseBroken, ResponseTooLarge
from headrace.serving.wire.aws.errors import AwsError

BUSY_PAUSE_S: Final = 0.5
"""Pause before a request is sent again."""
BUSY_LIMIT_S: Final = 1800.0
"""Longest time without a worker that takes a request: longer than a worker may take to fetch its files and start."""
MAX_OPEN_FILES: Final = 64
"""Objects whose requests are in flight, or whose output is being stored."""
_MAX_SAID: Final = 300
_NOT_NOW: Final = frozenset({"ModelNotReadyException", "ServiceUnavailable", "ThrottlingException"})


class RequestFailed(Exception):
    """A request has failed for good: `str` is a FailureReason."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")


class _TryAgain(Exception):
    """A request has failed; the message says how. The same request may succeed."""


@dataclass(slots=True, kw_only=True)
class _OpenFile:
    """An input object whose requests are in flight, or whose output is being stored."""

    file: InputFile
    spool: Spool
    num_open: int = 1
    """Requests without an answer, and one until all have been sent."""
    is_answered: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""
    content_type: str = "application/octet-stream"

    def close_one(self) -> None:
        self.num_open -= 1
        if not self.num_open:
            self.is_answered.set()


@dataclass(slots=True, kw_only=True)
class TransformRun:
    endpoint: str
    members: Json
    parameters: ExecutionParameters
    started_s: float
    """When the job started."""
    service: InvocationService
    objects: Objects
    folder: JobFolder
    _processing: Processing = field(init=False)
    _ids: InferenceIds | None = field(init=False)
    _room: asyncio.Semaphore = field(init=False)
    _files: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_OPEN_FILES))

    def __post_init__(self) -> None:
        parameters, instances = self.parameters, self.members["TransformResources"]["InstanceCount"]
        self._processing = Processing.of(self.members, is_multi_record=parameters.is_multi_record)
        self._ids = InferenceIds.of(self.members, is_by_line=self._processing.is_by_line, started_s=self.started_s)
        self._room = asyncio.Semaphore(parameters.max_concurrent * instances)

    async def run(self, inputs: Sequence[InputFile]) -> str:
        """Run to the end of all objects; return the FailureReason, empty if all have an output."""
        ended = await asyncio.to_thread(self.folder.ended)
        async with asyncio.TaskGroup() as tasks:
            for number, file in enumerate(inputs):
                if number in ended:
                    continue
                await self._files.acquire()
                spool = await asyncio.to_thread(self.folder.spool, number)
                work = _OpenFile(file=file, spool=spool)
                await self._send_all(work, tasks)
                tasks.create_task(self._finish(work))
        return _summary(await asyncio.to_thread(self.folder.ended), len(inputs))

    async def _send_all(self, work: _OpenFile, tasks: asyncio.TaskGroup) -> None:
        """Start the requests for an object, each as soon as there is room for it."""
        source = self.members["TransformInput"]
        splitter = Splitter(
            source.get("SplitType", "None"),
            is_multi_record=self.parameters.is_multi_record,
            max_bytes=self.parameters.max_batch_bytes,
        )
        bodies = read_bodies(work.file, self.objects, splitter, is_gzip=source.get("CompressionType", "None") == "Gzip")
        number = 0
        try:
            async for body in bodies:
                if number not in work.spool:
                    await self._room.acquire()
                    work.num_open += 1
                    tasks.create_task(self._answer(work, number, body))
                if work.failure:
                    break
                number += 1
        except (ObjectFailed, InputBroken) as error:
            self._fail(work, f"ClientError: {error}")
        finally:
            work.close_one()

    async def _answer(self, work: _OpenFile, number: int, body: bytes) -> None:
        """Get the answer to one request, and keep it."""
        try:
            if work.failure:
                return
            answer = await self._invoke_with_retries(await asyncio.to_thread(self._processing.request, body), work)
            await asyncio.to_thread(lambda: work.spool.add(number, self._kept(body, answer)))
        except (RequestFailed, ProcessingFailed) as error:
            self._fail(work, str(error) if isinstance(error, RequestFailed) else f"ClientError: {error}")
        except OSError as error:
            self._fail(work, f"InternalServerError: the answer cannot be kept on disk: {error.strerror}.")
        finally:
            self._room.release()
            work.close_one()

    def _kept(self, body: bytes, answer: bytes) -> bytes:
        """Return what is kept of an answer. Raises `ProcessingFailed`."""
        result = self._processing.result(body, answer)
        return result if self._ids is None else self._ids.append(result)

    def _fail(self, work: _OpenFile, why: str) -> None:
        if not work.failure:
            kind, _, rest = why.partition(": ")
            work.failure = f"{kind}: {work.file.uri.removeprefix('s3://')}: {rest}"
            get_logger().warning("transform.file_failed", job=self.endpoint, uri=work.file.uri, why=rest)

    async def _finish(self, work: _OpenFile) -> None:
        """Store the output of an object once all of its answers are there, or note why there is none."""
        try:
            await work.is_answered.wait()
            if not work.failure:
                await self._store(work)
            await asyncio.to_thread(work.spool.end, work.failure)
        finally:
            self._files.release()

    async def _store(self, work: _OpenFile) -> None:
        by_line = self.members["TransformOutput"].get("AssembleWith", "None") == "Line"
        try:
            with contextlib.ExitStack() as stack:
                assembled = work.spool.assembled(by_line=by_line)
                output = await asyncio.to_thread(stack.enter_context, assembled)
                put = partial(self.objects.put, work.file.output_uri, output, content_type=work.content_type)
                await retry_unavailable(put)
        except ObjectFailed as error:
            self._fail(work, f"ClientError: {error}")
        except OSError as error:
            self._fail(work, f"InternalServerError: the output cannot be assembled on disk: {error.strerror}.")

    async def _invoke_with_retries(self, body: bytes, work: _OpenFile) -> bytes:
        client: Mapping[str, int] = self.members.get("ModelClientConfig") or {}
        retries = client.get("InvocationsMaxRetries", DEFAULT_RETRIES)
        timeout_s = client.get("InvocationsTimeoutInSeconds", DEFAULT_TIMEOUT_S)
        busy_since_s: float | None = None
        while True:
            try:
                return await self._invoke(body, work, timeout_s)
            except AwsError as error:
                if error.code not in _NOT_NOW:
                    raise RequestFailed("AlgorithmError", error.message) from None
                busy_since_s = perf_counter() if busy_since_s is None else busy_since_s
                if perf_counter() - busy_since_s > BUSY_LIMIT_S:
                    raise RequestFailed("AlgorithmError", error.message) from None
            except _TryAgain as error:
                retries, busy_since_s = retries - 1, None
                if retries < 0:
                    raise RequestFailed("AlgorithmError", str(error)) from None
            await asyncio.sleep(BUSY_PAUSE_S)

    async def _invoke(self, body: bytes, work: _OpenFile, timeout_s: int) -> bytes:
        """Send a request to a worker once, and return its answer."""
        request_id = str(uuid4())
        record = InvocationRecord(
            request_id=request_id, api="TransformJob", endpoint=self.endpoint, started_s=perf_counter()
        )
        headers = {
            "Accept": self.members["TransformOutput"].get("Accept", "*/*"),
            "Content-Type": self.members["TransformInput"].get("ContentType", ""),
            "X-Amzn-RequestId": request_id,
        }
        request = ClientRequest(headers=tuple((name, text) for name, text in headers.items() if text), body=body)
        max_bytes = self.service.config.max_async_response_bytes
        try:
            invoked = self.service.invoke(self.endpoint, RoutingQuery(), request, record, timeout_s=timeout_s)
            async with invoked as response:
                answer = await response.read(max_bytes)
                status = response.status
                work.content_type = response.headers.get("content-type", work.content_type)
        except TimeoutError:
            message = f"Model server did not respond to /invocations request within {timeout_s} seconds"
            raise _TryAgain(message) from None
        except ResponseTooLarge:
            raise RequestFailed("ClientError", f"The response has more than {max_bytes} bytes.") from None
        except ResponseBroken:
            raise _TryAgain("Unable to get response from algorithm") from None
        except AwsError as error:
            if error.code == "ModelError":  # its worker ended
                raise _TryAgain("Unable to get response from algorithm") from None
            raise
        if 200 <= status < 300:
            return answer
        said = shortened(answer[:_MAX_SAID].decode("utf-8", errors="replace"))
        message = f"Bad HTTP status received from algorithm: {status}. It said: {said}"
        if status == 429:
            raise AwsError("ModelNotReadyException", message)
        if status >= 500:
            raise _TryAgain(message)
        raise RequestFailed("ClientError", message)


def _summary(ended: Mapping[int, str], num_files: int) -> str:
    """Return the FailureReason of a job: that of its first failed object, and how many there are."""
    failures = [why for _, why in sorted(ended.items()) if why]
    if not failures:
        return ""
    return failures[0] if num_files == 1 else f"{failures[0]} ({len(failures)} of {num_files} objects failed.)"
