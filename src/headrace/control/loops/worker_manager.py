"""
The reconciler's hands: does what a plan says to the workers, and writes down what is seen of them.

Everything may be done again: a worker's record is made before its process, and an action on something that is not
there any more does nothing.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cluster.launcher import (
    Handle,
    InsufficientCapacity,
    Launcher,
    LaunchFailed,
    Observation,
    StartPending,
    WorkerPhase,
    WorkerSpec,
)
from headrace.control.loops import store_access
from headrace.control.model.fleet import Limits
from headrace.control.model.kinds import WORKER
from headrace.control.model.log_reader import LogKeeper
from headrace.control.model.progress import EndpointView
from headrace.control.model.version import Version
from headrace.control.model.worker_records import (
    copy_spec_json,
    exit_words,
    failed_status,
    given_up_status,
    handle_of,
    launched_status,
    observed_status,
    waiting_status,
    worker_spec_json,
)
from headrace.control.planning.plan import Action, Drain, Forget, GiveUp, Launch, RemoveEndpoint, Start, Stop
from headrace.control.planning.worker_specs import WorkerDefaults, build_worker
from headrace.core.telemetry import get_logger
from headrace.state.records import Json, RawRecord
from headrace.state.store import Store
from headrace.wire.aws.errors import AwsError

_LAUNCHER_PATIENCE_S = 30.0
"""Longest that one call to the launcher may take."""
_NUM_TAIL_LINES = 10


@dataclass(slots=True)
class Bench:
    """The workers of one endpoint, or of one inference component, during one pass."""

    records: dict[str, RawRecord]
    """By worker name."""
    view: EndpointView | None = None
    """None: the endpoint is gone."""
    component: RawRecord | None = None
    """Whose copies they are, if they are not an endpoint's own."""
    versions: Mapping[int, Version] = field(default_factory=dict)


def new_instance_id() -> str:
    """As EC2 names instances."""
    return f"i-{secrets.token_hex(9)[:17]}"


class WorkerHands:
    """Acts on workers through a launcher, and keeps their records."""

    def __init__(
        self,
        *,
        store: Store,
        launcher: Launcher,
        logs: LogKeeper,
        defaults: WorkerDefaults,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._logs = logs
        self._defaults = defaults
        self._limits = limits
        self._clock = clock
        self._log = get_logger()

    async def observe(self, record: RawRecord) -> RawRecord:
        """Look at a worker, and write what has changed."""
        handle = handle_of(record)
        if handle is None or record.status.get("phase") == WorkerPhase.EXITED.value:
            return record
        seen = await self._look(record.name, handle)
        if seen is None:
            return record
        now_s = self._clock()
        status = observed_status(record, seen, now_s=now_s)
        is_lost = seen.phase is WorkerPhase.EXITED and record.deleting_s is None and "failed_s" not in status
        if is_lost:
            status = await self._failed(
                record, status, why=exit_words(seen), is_permanent=bool(seen.message), ended_in=seen.ended_in
            )
        if status.get("phase") != record.status.get("phase"):
            self._log.info("worker.observed", worker=record.name, phase=seen.phase.value, exit_code=seen.exit_code)
        return await store_access.write(self._store, record, status=status)

    async def adopt(self, record: RawRecord, alive: Mapping[str, Handle]) -> RawRecord:
        """Note the handle of a worker that was started in an earlier life that ended before it could be written."""
        if handle_of(record) is not None or record.name not in alive:
            return record
        status = launched_status(record, alive[record.name], notices=(), now_s=self._clock())
        self._log.info("worker.adopted", worker=record.name)
        return await store_access.write(self._store, record, status=status)

    async def act(self, bench: Bench, action: Action) -> None:
        """Do one thing of a plan."""
        match action:
            case Start():
                await self._start(bench, action)
            case Launch(worker=name):
                await self._launch(bench, bench.records[name])
            case Drain(worker=name):
                await self._write(bench, name, is_deleting=True)
            case GiveUp(worker=name, why=why):
                record = bench.records[name]
                is_new = "ready_s" not in record.status
                status = given_up_status(record, now_s=self._clock())
                status = await self._failed(record, status, why=why, is_permanent=is_new)
                self._log.warning("worker.given_up", worker=name, why=why)
                await self._write(bench, name, status=status, is_deleting=True)
            case Stop(worker=name, grace_s=grace_s):
                await self._stop(bench, name, grace_s)
            case Forget(worker=name):
                await self._forget(bench, name)
            case RemoveEndpoint():
                raise AssertionError("the reconciler removes endpoints")

    async def alive(self) -> dict[str, Handle]:
        """All workers on the launcher's machines."""
        async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
            return await self._launcher.known()

    async def end_orphan(self, name: str, handle: Handle) -> bool:
        """Bring a process without a record to its end; True once it is gone."""
        seen = await self._look(name, handle)
        if seen is not None and seen.phase is WorkerPhase.EXITED:
            await self._launcher.forget(name)
            return True
        await self._launcher.stop(name, handle, grace_s=self._limits.stop_grace_s)
        return False

    async def _look(self, name: str, handle: Handle) -> Observation | None:
        if handle.launcher != self._launcher.name:
            message = f"it was started by the launcher {handle.launcher!r}, which is not in use any more."
            return Observation(phase=WorkerPhase.EXITED, message=message)
        try:
            async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
                return await self._launcher.poll(name, handle)
        except Exception as error:  # noqa: BLE001 -- an edge: one worker must not keep us from the others
            self._log.warning("worker.not_seen", worker=name, error=repr(error))
            return None

    async def _start(self, bench: Bench, action: Start) -> None:
        assert bench.view is not None
        own_id = new_instance_id()
        name = f"{bench.view.name}-{action.variant}-{own_id}"
        if bench.component is None:
            spec = worker_spec_json(
                bench.view, variant=action.variant, generation=action.generation, instance_id=own_id
            )
        else:
            spec = copy_spec_json(
                bench.component,
                variant=action.variant,
                generation=action.generation,
                copy_id=own_id,
                instance=action.instance,
            )
        record = await store_access.create(self._store, WORKER, name, spec)
        bench.records[name] = record
        await self._launch(bench, record)

    async def _launch(self, bench: Bench, record: RawRecord) -> None:
        """Start the process of a worker; what goes wrong is its failure, never ours."""
        version = bench.versions[record.spec["generation"]]
        try:
            built = build_worker(
                record.name, version=version, variant_name=record.spec["variant"], defaults=self._defaults
            )
            handle = await self._started(built.spec)
        except StartPending as error:
            status = waiting_status(record, why=str(error))
            if status == record.status:
                return
            self._log.info("worker.waiting", worker=record.name, why=str(error))
        except (LaunchFailed, AwsError, TimeoutError, OSError) as error:
            why = str(error) or f"it was not started within {_LAUNCHER_PATIENCE_S:g} s"
            status = {**record.status, "phase": WorkerPhase.EXITED.value, "phase_since_s": self._clock()}
            is_permanent, lacks_room = not isinstance(error, TimeoutError), isinstance(error, InsufficientCapacity)
            status = await self._failed(record, status, why=why, is_permanent=is_permanent, lacks_room=lacks_room)
            self._log.warning("worker.not_started", worker=record.name, why=why)
        else:
            status = launched_status(record, handle, notices=built.notices, now_s=self._clock())
            self._log.info("worker.started", worker=record.name, notices=built.notices)
        await self._write(bench, record.name, status=status)

    async def _started(self, spec: WorkerSpec) -> Handle:
        async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
            return await self._launcher.start(spec)

    async def _stop(self, bench: Bench, name: str, grace_s: float) -> None:
        record = bench.records[name]
        handle = handle_of(record)
        if handle is None:
            return
        try:
            async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
                await self._launcher.stop(name, handle, grace_s=grace_s)
        except Exception as error:  # noqa: BLE001 -- an edge: it is tried again, and deletion must end
            self._log.warning("worker.not_stopped", worker=name, error=repr(error))
            return
        if "stopping_s" not in record.status:
            self._log.info("worker.stopped", worker=name, grace_s=grace_s)
            await self._write(bench, name, status={**record.status, "stopping_s": self._clock()})

    async def _forget(self, bench: Bench, name: str) -> None:
        """Remove what is left of a worker but its log; a folder that cannot be removed does not keep its record."""
        await self._keep_log(bench.records[name])
        try:
            async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
                await self._launcher.forget(name)
        except Exception as error:  # noqa: BLE001 -- an edge: deletion must end
            self._log.warning("worker.folder_kept", worker=name, error=repr(error))
        await store_access.remove(self._store, bench.records.pop(name))

    async def _keep_log(self, record: RawRecord) -> None:
        spec = record.spec
        try:
            await asyncio.to_thread(
                self._logs.keep,
                record.name,
                log_group=spec["log_group"],
                log_stream=spec["log_stream"],
                created_s=record.created_s,
            )
        except (OSError, ValueError) as error:
            self._log.warning("worker.log_not_kept", worker=record.name, error=repr(error))

    async def _write(self, bench: Bench, name: str, *, status: Json | None = None, is_deleting: bool = False) -> None:
        record = bench.records[name]
        bench.records[name] = await store_access.write(self._store, record, status=status, is_deleting=is_deleting)

    async def _failed(
        self,
        record: RawRecord,
        status: Json,
        *,
        why: str,
        is_permanent: bool,
        lacks_room: bool = False,
        ended_in: WorkerPhase | None = None,
    ) -> Json:
        return failed_status(
            record,
            status,
            now_s=self._clock(),
            why=why,
            is_permanent=is_permanent and "ready_s" not in status,
            was_fetching=(ended_in or record.status.get("phase")) == WorkerPhase.FETCHING,
            lacks_room=lacks_room or "waiting" in status,
            log_tail=await self._log_tail(record.name),
        )

    async def _log_tail(self, name: str) -> Sequence[str]:
        try:
            events = await asyncio.to_thread(lambda: self._logs.read(name, limit=_NUM_TAIL_LINES, is_backward=True))
        except OSError as error:
            self._log.warning("worker.log_not_read", worker=name, error=repr(error))
            return ()
        return [event.message for event in events]
