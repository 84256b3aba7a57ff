"""
The worker manager: it applies the actions of a plan to workers, and records what is observed of them.

Every action may be repeated: a worker's record is created before its process, and an action on a worker that is gone
does nothing.
"""

import asyncio
import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from msgspec.structs import replace as replace_status

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import (
    Handle,
    InsufficientCapacity,
    Launcher,
    LaunchFailed,
    Observation,
    StartPending,
    WorkerPhase,
    WorkerSpec,
)
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.cluster.worker_exit import exit_reason
from headrace.platform.control.jumpstart.located import hints
from headrace.platform.control.loops import store_access
from headrace.platform.control.loops.adapter_loader import AdapterLoader
from headrace.platform.control.model.component import ComponentRecord
from headrace.platform.control.model.endpoint import EndpointRecord
from headrace.platform.control.model.names import new_instance_id
from headrace.platform.control.model.worker import (
    WORKER,
    ReplicaStatus,
    WorkerRecord,
    failed_log,
    launched_status,
    observed_status,
    replica_spec,
    waiting_status,
    worker_failure,
)
from headrace.platform.control.model.workload import Revision
from headrace.platform.control.planning import worker_actions as actions
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.worker_build import WorkerDefaults, build_worker
from headrace.platform.state.store import Store
from headrace.serving.artifacts.sources import ObjectGrant
from headrace.serving.wire.aws.errors import AwsError

_LAUNCHER_PATIENCE_S = 30.0
"""Timeout of a call to the launcher."""
_GRANTS_AGE_S = 60.0
"""Age at which the objects of a worker that waits for its start are listed again."""
_NUM_TAIL_LINES = 10


@dataclass(slots=True)
class WorkerSet:
    """The workers of one endpoint, or of one inference component, during one pass."""

    records: dict[str, WorkerRecord]
    """By worker name."""
    owner: EndpointRecord | ComponentRecord | None = None
    """The endpoint or component; None if it is gone or cannot be read."""
    revisions: Mapping[int, Revision] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class WorkerManager:
    """Acts on workers through a launcher, and writes their records."""

    store: Store
    launcher: Launcher
    logs: PlatformLogs
    adapters: AdapterLoader
    defaults: WorkerDefaults
    config: ReconcilerConfig
    clock: Callable[[], float]
    _unseen: set[str] = field(default_factory=set)
    """Workers that could not be observed the last time."""
    _grants: dict[str, tuple[float, tuple[ObjectGrant, ...]]] = field(default_factory=dict)
    """Worker that waits for its start → when its objects were listed, and these."""

    async def observe(self, record: WorkerRecord) -> WorkerRecord:
        handle = record.status.handle
        if handle is None or record.status.phase is WorkerPhase.EXITED:
            return record
        seen = await self._look(record.name, handle)
        if seen is None:
            return record
        now_s = self.clock()
        status = observed_status(record.status, seen, now_s=now_s)
        is_lost = seen.phase is WorkerPhase.EXITED and record.deleting_s is None and status.failed_s is None
        if is_lost and not seen.is_blameless:
            is_permanent = bool(seen.message) and not seen.was_lost
            status = await self._failed(
                record, status, why=exit_reason(seen), is_permanent=is_permanent, ended_in=seen.ended_in
            )
        if status.phase is not record.status.phase:
            facts = {"message": seen.message} if seen.is_blameless else {}
            get_logger().info(
                "worker.observed", worker=record.name, phase=seen.phase.value, exit_code=seen.exit_code, **facts
            )
        return await store_access.write(self.store, record, status=status)

    async def adopt(self, record: WorkerRecord, alive: Mapping[str, Handle]) -> WorkerRecord:
        """Record the handle of a worker if the platform ended between the worker's start and that write."""
        if record.status.handle is not None or record.name not in alive:
            return record
        status = launched_status(record.status, alive[record.name], notices=(), now_s=self.clock())
        get_logger().info("worker.adopted", worker=record.name)
        return await store_access.write(self.store, record, status=status)

    async def drop_prefix_caches(self, endpoint_uids: Container[str]) -> None:
        """Remove the prefix caches of endpoints that are gone."""
        folders = self.defaults.prefix_caches
        if folders is not None:
            await asyncio.to_thread(remove_others, folders, endpoint_uids)

    async def act(self, owned: WorkerSet, action: actions.Action) -> None:
        match action:
            case actions.Start():
                await self._start(owned, action)
            case actions.Launch(worker=name):
                await self._launch(owned, owned.records[name])
            case actions.Drain(worker=name):
                await self._write(owned, name, is_deleting=True)
            case actions.GiveUp(worker=name, why=why):
                record = owned.records[name]
                status = record.status
                if status.handle is None:  # it was never started: there is no process to wait for
                    status = replace_status(status, phase=WorkerPhase.EXITED, phase_since_s=self.clock())
                status = await self._failed(record, status, why=why, is_permanent=True)
                get_logger().warning("worker.given_up", worker=name, why=why)
                await self._write(owned, name, status=status, is_deleting=True)
            case actions.Stop(worker=name, grace_s=grace_s):
                await self._stop(owned, name, grace_s)
            case actions.Forget(worker=name):
                await self._forget(owned, name)
            case actions.LoadAdapter() | actions.UnloadAdapter():
                self.adapters.act(action)
            case actions.RemoveRecord():
                raise AssertionError("the endpoint pass removes endpoints and components")

    async def alive(self) -> dict[str, Handle]:
        """Return all workers on the launcher's machines."""
        async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
            return await self.launcher.known()

    async def end_orphan(self, name: str, handle: Handle) -> bool:
        """Stop a process without a record; return whether it is gone."""
        seen = await self._look(name, handle)
        if seen is not None and seen.phase is WorkerPhase.EXITED:
            await self.launcher.forget(name)
            return True
        await self.launcher.stop(name, handle, grace_s=self.config.stop_grace_s)
        return False

    async def _look(self, name: str, handle: Handle) -> Observation | None:
        if handle.launcher != self.launcher.name:
            message = f"it was started by the launcher {handle.launcher!r}, which is not in use any more."
            return Observation(phase=WorkerPhase.EXITED, message=message)
        try:
            async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
                seen = await self.launcher.poll(name, handle)
        except Exception as error:  # noqa: BLE001 -- an edge: one worker must not delay the others
            if name not in self._unseen:
                get_logger().warning("worker.not_seen", worker=name, error=repr(error))
            self._unseen.add(name)
            return None
        self._unseen.discard(name)
        return seen

    async def _start(self, owned: WorkerSet, action: actions.Start) -> None:
        assert owned.owner is not None
        instance_id = new_instance_id()
        name = f"{owned.owner.name}-{action.fleet[0]}-{instance_id}"
        spec = replica_spec(owned.owner, action.fleet, instance_id, placed_on=action.instance)
        record = await asyncio.to_thread(lambda: self.store.create(WORKER, name, spec=spec))
        owned.records[name] = record
        await self._launch(owned, record)

    async def _launch(self, owned: WorkerSet, record: WorkerRecord) -> None:
        """Start the process of a worker; a failure is recorded as the worker's own."""
        workload = owned.revisions[record.spec.revision].workload(record.spec.variant)
        assert workload is not None
        try:
            spec = record.spec
            group = f"{spec.copy.component if spec.copy is not None else spec.endpoint}/{spec.variant}"
            built = build_worker(
                record.name,
                workload,
                self.defaults,
                group=group,
                revision=spec.revision,
                endpoint_uid=spec.endpoint_uid,
            )
            granted = await self._granted(built.spec)
            async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
                handle = await self.launcher.start(granted)
            self._grants.pop(record.name, None)
        except (StartPending, TimeoutError) as error:
            why = str(error) or f"The launcher did not answer within {_LAUNCHER_PATIENCE_S:g} s."
            status = waiting_status(record.status, why=why)
            if status == record.status:
                return
            get_logger().info("worker.waiting", worker=record.name, why=why)
        except (LaunchFailed, AwsError, OSError) as error:
            why, lacks_room = str(error), isinstance(error, InsufficientCapacity)
            status = replace_status(record.status, phase=WorkerPhase.EXITED, phase_since_s=self.clock())
            status = await self._failed(record, status, why=why, is_permanent=True, lacks_room=lacks_room)
            get_logger().warning("worker.not_started", worker=record.name, why=why)
        else:
            status = launched_status(record.status, handle, notices=built.notices, now_s=self.clock())
            get_logger().info("worker.started", worker=record.name, notices=built.notices)
        await self._write(owned, record.name, status=status)

    async def _granted(self, spec: WorkerSpec) -> WorkerSpec:
        """Return the specification with what the worker may read, listed again only now and then while it waits."""
        now_s = self.clock()
        granted_s, grants = self._grants.pop(spec.name, (0.0, ()))
        if now_s - granted_s > _GRANTS_AGE_S:
            granted_s, grants = now_s, await asyncio.to_thread(self.defaults.grants.for_worker, spec)
        self._grants[spec.name] = granted_s, grants
        return replace(spec, grants=grants)

    async def _stop(self, owned: WorkerSet, name: str, grace_s: float) -> None:
        record = owned.records[name]
        handle = record.status.handle
        if handle is None:
            return
        try:
            async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
                await self.launcher.stop(name, handle, grace_s=grace_s)
        except Exception as error:  # noqa: BLE001 -- an edge: it is tried again, and deletion must end
            get_logger().warning("worker.not_stopped", worker=name, error=repr(error))
            return
        if record.status.stopping_s is None:
            get_logger().info("worker.stopped", worker=name, grace_s=grace_s)
            await self._write(owned, name, status=replace_status(record.status, stopping_s=self.clock()))

    async def _forget(self, owned: WorkerSet, name: str) -> None:
        """Remove everything of a worker except its log; its record is removed even if its folder cannot be."""
        self._grants.pop(name, None)
        await self._keep_log(owned.records[name])
        try:
            async with asyncio.timeout(_LAUNCHER_PATIENCE_S):
                await self.launcher.forget(name)
        except Exception as error:  # noqa: BLE001 -- an edge: deletion must end
            get_logger().warning("worker.folder_kept", worker=name, error=repr(error))
        await store_access.remove(self.store, owned.records.pop(name))

    async def _keep_log(self, record: WorkerRecord) -> None:
        spec = record.spec
        try:
            for log, stream in spec.logs(record.name).items():
                keep = partial(self.logs.keep, log, log_group=spec.log_group, log_stream=stream)
                await asyncio.to_thread(keep, created_s=record.created_s)
        except (OSError, ValueError) as error:
            get_logger().warning("worker.log_not_kept", worker=record.name, error=repr(error))

    async def _write(
        self, owned: WorkerSet, name: str, *, status: ReplicaStatus | None = None, is_deleting: bool = False
    ) -> None:
        record = owned.records[name]
        owned.records[name] = await store_access.write(self.store, record, status=status, is_deleting=is_deleting)

    async def _failed(
        self,
        record: WorkerRecord,
        status: ReplicaStatus,
        *,
        why: str,
        is_permanent: bool,
        lacks_room: bool = False,
        ended_in: WorkerPhase | None = None,
    ) -> ReplicaStatus:
        log = failed_log(record.name, status.container)
        read = partial(self.logs.read, log, limit=_NUM_TAIL_LINES, is_backward=True)
        try:
            log_tail = [event.message for event in await asyncio.to_thread(read)]
        except OSError as error:
            get_logger().warning("worker.log_not_read", worker=record.name, error=repr(error))
            log_tail = []
        failure = worker_failure(
            record,
            why=" ".join(filter(None, (why, *hints(record.status.notices)))),
            ended_in=ended_in or record.status.phase,
            lacks_room=lacks_room or bool(status.waiting),
            log_tail=log_tail,
            container=status.container,
        )
        # Once it has been ready, another worker may succeed.
        is_permanent = is_permanent and status.ready_s is None
        return replace_status(status, failed_s=self.clock(), failure=failure, is_permanent=is_permanent)


def remove_others(folders: Path, names: Container[str]) -> None:
    """Remove the folders of other names; a worker that still runs may make its own again, until the next call."""
    for folder in folders.iterdir() if folders.is_dir() else ():
        if folder.name not in names:
            shutil.rmtree(folder, ignore_errors=True)
