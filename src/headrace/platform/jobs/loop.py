"""
The loop of jobs of all kinds: it runs each job by the runner of its kind, records its end, and lets its workers go.

Level-triggered, like the reconciler: it decides by records, and a job that was running when the platform was killed
goes on, by what its runner keeps in the job's folder. The workers of a job are a `JOB_ENDPOINT`, which the reconciler
starts, observes and ends as it does those of an endpoint.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from headrace.core.errors import Unavailable
from headrace.core.files import Files
from headrace.core.telemetry import get_logger
from headrace.platform.control.loops import store_access
from headrace.platform.control.model.endpoint import JOB_ENDPOINT
from headrace.platform.control.model.jobs import ENDED, AnyJob, JobState, JobStatus, job_of_endpoint
from headrace.platform.gateway.objects import ObjectFailed
from headrace.platform.jobs.splitting import InputBroken
from headrace.platform.jobs.spool import JobFolder
from headrace.platform.state.records import AnyKind, Conflict, Fenced, Record
from headrace.platform.state.selection import Selection
from headrace.platform.state.store import Store

SWEEP_S: Final = 60.0
"""Seconds between two passes over all jobs; between them only new ones and those that run are read."""
RETRY_S: Final = 1.0
"""Seconds before a job that the database has interrupted goes on."""
_BURST_S: Final = 0.05
"""Writes within this time are handled by one pass."""
MAX_ENDED_JOBS: Final = 5000
"""Ended jobs of a kind that are kept; AWS has no operation that deletes most of them."""
MAX_REASON_CHARACTERS: Final = 1024
INTERNAL_ERROR: Final = "InternalServerError: We encountered an internal error. Please try again."


class JobFailed(Exception):
    """The job cannot run; the message is its FailureReason."""


class JobRunner(Protocol):
    async def run(self, job: AnyJob, folder: Path, jobs: "Jobs") -> str:
        """
        Run a job to its end; return its FailureReason, empty if it has none.

        A cancelled job goes on when it is run again, by what is in its folder. Raises `JobFailed`, `ObjectFailed` and
        `InputBroken`, which are about the job.
        """
        ...


_Key = tuple[AnyKind, str]


@dataclass(slots=True, kw_only=True)
class Jobs:
    store: Store
    runners: Mapping[AnyKind, JobRunner]
    files: Files
    clock: Callable[[], float] = time.time
    _tasks: "dict[str, tuple[_Key, asyncio.Task[None]]]" = field(default_factory=dict)
    """The running jobs, by the uid of their records."""
    _ended: set[_Key] = field(default_factory=set)
    """Jobs that have ended."""
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
                        get_logger().exception("job.pass_failed")
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
                task = asyncio.create_task(self._run(job), name=f"{job.kind}-{job.name}")
                self._tasks[job.uid] = (job.kind, job.name), task
        await self._remove_workers(job for job in jobs if job.spec.stop_requested_s is None)

    async def update(self, job: AnyJob, change: Callable[[JobStatus], JobStatus]) -> None:
        """Change the status of a job, whose spec a stop may change at any time."""

        def write() -> None:
            while True:
                record = self.store.get(job.kind, job.name)
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

    def _forget_done(self) -> None:
        """Forget tasks that have ended; a job whose end could not be recorded is run again by the next sweep."""
        for uid, (_, task) in list(self._tasks.items()):
            if task.done():
                del self._tasks[uid]
                if not task.cancelled() and (error := task.exception()) is not None:
                    get_logger().error("job.not_ended", exc_info=error)

    def _active_jobs(self) -> list[AnyJob]:
        """Return the jobs that have not ended. Ended ones may be many: they are not read in each pass."""
        now_s = self.clock()
        is_sweep = not 0 <= now_s - self._swept_s < SWEEP_S
        since_s = 0.0 if is_sweep else self._seen_s - SWEEP_S  # the clock may have been set back
        keys: list[_Key] = []
        for kind in self.runners:
            for entry in list(self.store.entries(kind, Selection(created_after_s=since_s))):
                self._seen_s = max(self._seen_s, entry.created_s)
                keys.append((kind, entry.name))
        keys += [key for key, _ in self._tasks.values()]
        found = [self.store.get(*key) for key in dict.fromkeys(keys) if key not in self._ended]
        jobs = [record for record in found if isinstance(record, Record)]
        self._ended |= {(job.kind, job.name) for job in jobs if job.status.state in ENDED}
        active = [job for job in jobs if job.status.state not in ENDED]
        if is_sweep:
            self._swept_s = now_s
            self._clean_up(keys, {job.uid for job in active})
        return active

    def _clean_up(self, keys: Iterable[_Key], active: set[str]) -> None:
        """Remove the oldest ended jobs beyond those that are kept, and folders of jobs that have ended."""
        keys = list(keys)
        for kind in self.runners:
            ended = [key for key in keys if key[0] is kind and key in self._ended]
            for key in ended[: max(0, len(ended) - MAX_ENDED_JOBS)]:
                if (record := self.store.get(*key)) is not None:
                    self.store.remove(record)
                self._ended.discard(key)
        root = self.files.root
        on_disk = [folder.name for folder in root.iterdir()] if root.exists() else []
        for name in {*self.files.names(root), *on_disk} - active:
            JobFolder(self.files, root / name).remove()

    async def _cancel(self, uids: Iterable[str]) -> None:
        tasks = [found[1] for uid in uids if (found := self._tasks.pop(uid, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _remove_workers(self, jobs: Iterable[AnyJob]) -> None:
        kept = {(job.kind.name, job.name) for job in jobs}
        for record in await asyncio.to_thread(self.store.list, JOB_ENDPOINT):
            if job_of_endpoint(record.name) not in kept and record.deleting_s is None:
                with suppress(Conflict):  # the write of the reconciler ends the wait for the next pass
                    await store_access.mark_deleting(self.store, record)

    async def _run(self, job: AnyJob) -> None:
        """Run a job to its end. A cancelled one goes on when it is run again."""
        while (reason := await self._reason(job)) is None:
            await asyncio.sleep(RETRY_S)
            with suppress(Unavailable):
                record = await asyncio.to_thread(self.store.get, job.kind, job.name)
                if not isinstance(record, Record) or record.uid != job.uid:
                    return
                job = record
        await self._end(job, "Failed" if reason else "Completed", reason)

    async def _reason(self, job: AnyJob) -> str | None:
        """Run a job; return why it has failed, empty if it has not. None: it goes on when the database does."""
        try:
            return await self.runners[job.kind].run(job, self.files.root / job.uid, self)
        except JobFailed as error:
            return str(error)
        except (ObjectFailed, InputBroken) as error:
            return f"ClientError: {error}"
        except Exception as error:  # noqa: BLE001 -- the edge: a bug fails one job
            if _is_outage(error):
                get_logger().warning("job.interrupted", kind=str(job.kind), job=job.name, reason=repr(error)[:500])
                return None
            get_logger().exception("job.crashed", kind=str(job.kind), job=job.name)
            return INTERNAL_ERROR

    async def _end(self, job: AnyJob, state: JobState, reason: str = "") -> None:
        reason = reason if len(reason) <= MAX_REASON_CHARACTERS else f"{reason[: MAX_REASON_CHARACTERS - 3]}..."
        await self.update(job, lambda status: replace(status, state=state, failure_reason=reason, ended_s=self.clock()))
        await asyncio.to_thread(JobFolder(self.files, self.files.root / job.uid).remove)
        get_logger().info("job.ended", kind=str(job.kind), job=job.name, state=state, reason=reason.partition("\n")[0])


def _is_outage(error: Exception) -> bool:
    """Return whether the database was away, and nothing else went wrong: no fault of the job."""
    if isinstance(error, ExceptionGroup):
        return all(map(_is_outage, error.exceptions))
    return isinstance(error, Unavailable)
