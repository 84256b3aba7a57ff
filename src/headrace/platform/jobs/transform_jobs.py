"""
The loop of batch transform jobs: it starts workers for each job, runs it, records its end, and lets its workers go.

Level-triggered, like the reconciler: it decides by records, and a job that was running when the platform was killed
goes on (`jobs.spool`). The workers of a job are a `JOB_ENDPOINT`, which the reconciler starts, observes and ends as it
does those of an endpoint.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from headrace.core.telemetry import get_logger
from headrace.platform.control.loops import store_access
from headrace.platform.control.model.endpoint import JOB_ENDPOINT, EndpointRecord
from headrace.platform.control.model.transform_job import (
    ENDED,
    TRANSFORM_JOB,
    ExecutionParameters,
    JobState,
    TransformJobRecord,
    TransformJobStatus,
    asks_container,
    job_endpoint_name,
    job_endpoint_spec,
    resolve_parameters,
)
from headrace.platform.control.model.workload import State, failure_reason, visible_state
from headrace.platform.gateway.objects import ObjectFailed
from headrace.platform.gateway.routing import replicas_of
from headrace.platform.gateway.service import InvocationService
from headrace.platform.jobs.inputs import InputFile, Objects, find_inputs
from headrace.platform.jobs.splitting import InputBroken
from headrace.platform.jobs.spool import JobFolder
from headrace.platform.jobs.transform_run import BUSY_LIMIT_S, TransformRun
from headrace.platform.state.records import Conflict, Fenced, Record
from headrace.platform.state.routes import Replica
from headrace.platform.state.selection import Selection
from headrace.platform.state.store import Store
from headrace.serving.http.client import ClientRequest, send_once
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge
from headrace.serving.wire.aws.errors import AwsError

SWEEP_S: Final = 60.0
"""Seconds between two passes over all jobs; between them only new ones and those that run are read."""
_BURST_S: Final = 0.05
"""Writes within this time are handled by one pass."""
MAX_ENDED_JOBS: Final = 5000
"""Ended jobs that are kept; AWS has no operation that deletes one."""
MAX_REASON_CHARACTERS: Final = 1024
_PARAMETERS_TIMEOUT_S: Final = 5.0
_MAX_ASKED: Final = 3
_REPLICA_POLL_S: Final = 0.1
_MAX_PARAMETERS_BYTES: Final = 64 * 1024
_INTERNAL_ERROR: Final = "InternalServerError: We encountered an internal error. Please try again."


class _JobFailed(Exception):
    """The job cannot run; the message is its FailureReason."""


@dataclass(slots=True, kw_only=True)
class TransformJobs:
    store: Store
    service: InvocationService
    objects: Objects | None
    folder: Path
    clock: Callable[[], float] = time.time
    _tasks: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    """The running jobs, by the uid of their records."""
    _ended: set[str] = field(default_factory=set)
    """Names of jobs that have ended."""
    _seen_s: float = 0.0
    """When the newest known job was created."""
    _swept_s: float = float("-inf")

    async def run(self) -> None:
        """Run jobs until cancelled; those that run then go on when this is called again."""
        self._ended.clear()
        self._seen_s, self._swept_s = 0.0, float("-inf")
        try:
            with store_access.changes(self.store) as changed:
                while True:
                    changed.clear()
                    try:
                        await self.pass_once()
                    except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
                        get_logger().exception("transform.pass_failed")
                        await asyncio.sleep(1.0)
                        changed.set()
                    try:
                        async with asyncio.timeout(SWEEP_S):
                            await changed.wait()
                    except TimeoutError:
                        pass
                    await asyncio.sleep(_BURST_S)
        finally:
            await self._cancel(list(self._tasks))

    async def pass_once(self) -> None:
        """Start jobs that do not run, end those that were stopped, and remove the workers of those that have ended."""
        self._forget_done()
        jobs = await asyncio.to_thread(self._active_jobs)
        await self._cancel([uid for uid in self._tasks if uid not in {job.uid for job in jobs}])
        for job in jobs:
            if job.spec.stop_requested_s is not None:
                await self._cancel([job.uid])
                await self._end(job, "Stopped")
            elif job.uid not in self._tasks:
                self._tasks[job.uid] = asyncio.create_task(self._run(job), name=f"transform-{job.name}")
        await self._remove_workers(job.name for job in jobs if job.spec.stop_requested_s is None)

    def _forget_done(self) -> None:
        """Forget tasks that have ended; a job whose end could not be recorded is run again by the next sweep."""
        for uid, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[uid]
                if not task.cancelled() and (error := task.exception()) is not None:
                    get_logger().error("transform.not_ended", exc_info=error)

    def _active_jobs(self) -> list[TransformJobRecord]:
        """Return the jobs that have not ended. Ended ones may be many: they are not read in each pass."""
        now_s = self.clock()
        is_sweep = not 0 <= now_s - self._swept_s < SWEEP_S
        since_s = 0.0 if is_sweep else self._seen_s - SWEEP_S  # the clock may have been set back
        names = []
        for entry in list(self.store.entries(TRANSFORM_JOB, Selection(created_after_s=since_s))):
            self._seen_s = max(self._seen_s, entry.created_s)
            names.append(entry.name)
        names += [task.get_name().removeprefix("transform-") for task in self._tasks.values()]
        found = [self.store.get(TRANSFORM_JOB, name) for name in dict.fromkeys(names) if name not in self._ended]
        jobs = [record for record in found if isinstance(record, Record)]
        self._ended |= {job.name for job in jobs if job.status.state in ENDED}
        active = [job for job in jobs if job.status.state not in ENDED]
        if is_sweep:
            self._swept_s = now_s
            self._clean_up(names, {job.uid for job in active})
        return active

    def _clean_up(self, names: Iterable[str], active: set[str]) -> None:
        """Remove the oldest ended jobs beyond those that are kept, and folders of jobs that have ended."""
        ended = [name for name in names if name in self._ended]
        for name in ended[: max(0, len(ended) - MAX_ENDED_JOBS)]:
            if (record := self.store.get(TRANSFORM_JOB, name)) is not None:
                self.store.remove(record)
            self._ended.discard(name)
        for folder in self.folder.iterdir() if self.folder.exists() else ():
            if folder.name not in active:
                JobFolder(folder).remove()

    async def _cancel(self, uids: Iterable[str]) -> None:
        tasks = [task for uid in uids if (task := self._tasks.pop(uid, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _remove_workers(self, jobs: Iterable[str]) -> None:
        kept = {job_endpoint_name(name) for name in jobs}
        for record in await asyncio.to_thread(self.store.list, JOB_ENDPOINT):
            if record.name not in kept and record.deleting_s is None:
                with suppress(Conflict):  # the write of the reconciler ends the wait for the next pass
                    await store_access.mark_deleting(self.store, record)

    async def _run(self, job: TransformJobRecord) -> None:
        """Run a job to its end. A cancelled one goes on when it is run again."""
        try:
            reason = await self._work(job)
        except _JobFailed as error:
            reason = str(error)
        except (ObjectFailed, InputBroken) as error:
            reason = f"ClientError: {error}"
        except Exception:  # noqa: BLE001 -- the edge: a bug fails one job
            get_logger().exception("transform.crashed", job=job.name)
            reason = _INTERNAL_ERROR
        await self._end(job, "Failed" if reason else "Completed", reason)

    async def _work(self, job: TransformJobRecord) -> str:
        if self.objects is None:
            raise _JobFailed("ClientError: batch transform needs an object storage; none is configured.")
        folder = JobFolder(self.folder / job.uid)
        await self._start_workers(job)
        inputs = await self._inputs(job, folder, self.objects)
        await self._until_serving(job)
        parameters = await self._parameters(job)
        run = TransformRun(
            endpoint=job_endpoint_name(job.name),
            members=job.spec.members,
            parameters=parameters,
            service=self.service,
            objects=self.objects,
            folder=folder,
        )
        return await run.run(inputs)

    async def _inputs(self, job: TransformJobRecord, folder: JobFolder, objects: Objects) -> list[InputFile]:
        """Return the inputs, which are listed once: an object that comes later is no input."""
        inputs = await asyncio.to_thread(folder.read_inputs)
        if inputs is None:
            inputs = await find_inputs(job.spec.members, objects)
            await asyncio.to_thread(folder.write_inputs, inputs)
        return inputs

    async def _start_workers(self, job: TransformJobRecord) -> None:
        name = job_endpoint_name(job.name)

        def create() -> None:
            if self.store.get(JOB_ENDPOINT, name) is None:
                self.store.create(JOB_ENDPOINT, name, spec=job_endpoint_spec(job))

        await asyncio.to_thread(create)

    async def _until_serving(self, job: TransformJobRecord) -> EndpointRecord:
        name = job_endpoint_name(job.name)
        with store_access.changes(self.store) as changed:
            while True:
                changed.clear()
                record = await asyncio.to_thread(self.store.get, JOB_ENDPOINT, name)
                if not isinstance(record, Record):
                    raise _JobFailed(_INTERNAL_ERROR)
                state = visible_state(record)
                if state is State.FAILED:
                    raise _JobFailed(f"AlgorithmError: {failure_reason(record)}")
                if state is State.IN_SERVICE:
                    return record
                await changed.wait()

    async def _parameters(self, job: TransformJobRecord) -> ExecutionParameters:
        """Return the parameters of a job, which are recorded before its first request."""
        if job.status.parameters is not None:
            return job.status.parameters
        members = job.spec.members
        answer = await self._ask(job_endpoint_name(job.name)) if asks_container(members) else None
        parameters = resolve_parameters(members, answer)
        await self._write(job, lambda status: replace(status, parameters=parameters, started_s=self.clock()))
        get_logger().info(
            "transform.started",
            job=job.name,
            max_concurrent=parameters.max_concurrent,
            multi=parameters.is_multi_record,
        )
        return parameters

    async def _ask(self, endpoint: str) -> Any:
        """Return what a worker answers to `/execution-parameters`; None if it has no such page, or does not answer."""
        for _ in range(_MAX_ASKED):
            replica = await self._replica(endpoint)
            headers = (("Authorization", f"Bearer {replica.token}"),) if replica.token else ()
            request = ClientRequest(method="GET", path="/execution-parameters", headers=headers)
            try:
                async with asyncio.timeout(_PARAMETERS_TIMEOUT_S), send_once(replica.url, request) as response:
                    page = await response.read(_MAX_PARAMETERS_BYTES)
                    return json.loads(page) if response.status == 200 else None
            except (NoResponse, ResponseBroken, TimeoutError):
                await asyncio.sleep(_REPLICA_POLL_S)
            except (ResponseTooLarge, ValueError, RecursionError):
                return None
        return None

    async def _replica(self, endpoint: str) -> Replica:
        """Return a worker of a job; wait for it, as workers start again with the platform."""
        deadline_s = time.monotonic() + BUSY_LIMIT_S
        while time.monotonic() < deadline_s:
            with suppress(AwsError):
                route = await self.service.forwarder.route(endpoint)
                for variant in route.variants:
                    for replica in replicas_of(variant):
                        return replica
            await asyncio.sleep(_REPLICA_POLL_S)
        raise _JobFailed("AlgorithmError: the job has no worker that answers.")

    async def _end(self, job: TransformJobRecord, state: JobState, reason: str = "") -> None:
        reason = reason if len(reason) <= MAX_REASON_CHARACTERS else f"{reason[: MAX_REASON_CHARACTERS - 3]}..."

        def end(status: TransformJobStatus) -> TransformJobStatus:
            return replace(status, state=state, failure_reason=reason, ended_s=self.clock())

        await self._write(job, end)
        await asyncio.to_thread(JobFolder(self.folder / job.uid).remove)
        get_logger().info("transform.ended", job=job.name, state=state, reason=reason.partition("\n")[0])

    async def _write(self, job: TransformJobRecord, change: Callable[[TransformJobStatus], TransformJobStatus]) -> None:
        """Change the status of a job, whose spec a stop may change at any time."""

        def write() -> None:
            while True:
                record = self.store.get(TRANSFORM_JOB, job.name)
                if not isinstance(record, Record) or record.uid != job.uid or record.status.state in ENDED:
                    return
                try:
                    self.store.update(record, status=change(record.status))
                except Fenced:
                    raise
                except Conflict:
                    continue
                return

        await asyncio.to_thread(write)
