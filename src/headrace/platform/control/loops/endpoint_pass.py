"""One pass of the reconciler over one endpoint and the inference components on it: see, plan, record, act."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.core.telemetry import get_logger
from headrace.platform.control.loops import store_access
from headrace.platform.control.loops.store_access import Snapshot
from headrace.platform.control.loops.timing import BUSY_PAUSE_S, IDLE_PAUSE_S, WATCH_PAUSE_S, DeadlineClock
from headrace.platform.control.loops.worker_manager import WorkerManager, WorkerSet
from headrace.platform.control.model.component import (
    INFERENCE_COMPONENT,
    ComponentRecord,
    ComponentRevision,
    ComponentStatus,
    owner_of,
)
from headrace.platform.control.model.endpoint import (
    ENDPOINT,
    JOB_ENDPOINT,
    EndpointRecord,
    EndpointRevision,
    EndpointStatus,
    HostInstance,
)
from headrace.platform.control.model.names import unreadable_message
from headrace.platform.control.model.worker import WorkerRecord, notices_of, placements_of, restarts_of
from headrace.platform.control.model.workload import Progress, ready_key
from headrace.platform.control.planning.deployment import Deployment
from headrace.platform.control.planning.endpoint import plan_endpoint, view_endpoint, view_workers
from headrace.platform.control.planning.plan import Plan, plan_removal
from headrace.platform.control.planning.rollout import num_ready
from headrace.platform.control.planning.worker_actions import RemoveRecord, end_workers
from headrace.platform.state.records import AnyKind, Conflict, Record, Unreadable
from headrace.platform.state.routes import ReadLoads
from headrace.platform.state.store import Store

AnyComponent = ComponentRecord | Unreadable
OnState = Callable[[EndpointRecord, str], None]
LOG_NAMES: dict[AnyKind, str] = {
    ENDPOINT: "endpoint",
    INFERENCE_COMPONENT: "component",
    JOB_ENDPOINT: "job_endpoint",
}
"""Names of the kinds in log events."""


class FailureLog:
    """The last failure of each endpoint and component, and of the whole pass."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """By the uid of the record; empty for a whole pass."""

    def note(self, record: Record[object, object] | Unreadable | None, error: Exception) -> None:
        """Log a failure of an endpoint or a component, or with None of a whole pass."""
        if self._is_news(record, repr(error)):
            get_logger().error("reconciler.failed", **_named(record), exc_info=error)

    def note_unreadable(self, record: Unreadable) -> None:
        if self._is_news(record, record.reason):
            get_logger().error("record.unreadable", **_named(record), reason=unreadable_message(record))

    def clear(self, record: Record[object, object] | Unreadable | None) -> None:
        """Forget the failure of a record that was reconciled without one."""
        self._known.pop(record.uid if record is not None else "", None)

    def _is_news(self, record: Record[object, object] | Unreadable | None, failure: str) -> bool:
        uid = record.uid if record is not None else ""
        is_news = self._known.get(uid) != failure
        self._known[uid] = failure
        return is_news


def _named(record: Record[object, object] | Unreadable | None) -> dict[str, str]:
    return {LOG_NAMES[record.kind]: record.name} if record is not None else {}


@dataclass(frozen=True, slots=True)
class EndpointPass:
    """A pass over one endpoint; the same object serves all endpoints."""

    store: Store
    workers: WorkerManager
    failures: FailureLog
    loads: ReadLoads
    clock: DeadlineClock
    on_state: OnState = lambda *_: None
    """Called from a thread with an endpoint and its new state."""

    async def run(
        self, record: EndpointRecord | Unreadable, workers: Sequence[WorkerRecord], snapshot: Snapshot
    ) -> float:
        """Plan, record and act once; return the seconds until the next pass. After a `Conflict`, run it again."""
        components = [
            component
            for component in snapshot.components
            if (owner := owner_of(component)) is not None and owner.endpoint_uid == record.uid
        ]
        # Copies by the uid of their component; workers of the endpoint's own models have an empty key.
        copies = store_access.grouped(
            workers, lambda worker: worker.spec.copy.component_uid if worker.spec.copy is not None else ""
        )
        if isinstance(record, Unreadable) and record.deleting_s is None:
            # Its components cannot be planned without it: those that are being deleted go, everything else stays.
            self.failures.note_unreadable(record)
            removals = [
                await self._remove_unreadable(component, copies.get(component.uid, [])) for component in components
            ]
            return min(removals, default=IDLE_PAUSE_S)
        for component in components:
            if isinstance(component, Unreadable):
                self.failures.note_unreadable(component)
            else:
                self.failures.clear(component)
        view = view_endpoint(record, components, copies, alarms=snapshot.alarms, loads=self.loads())
        plan = plan_endpoint(view, self.clock.read())
        # NOTE: the route comes first, so that an endpoint which is InService to DescribeEndpoint can be invoked.
        await store_access.publish(self.store, snapshot.routes.get(record.name), record.name, plan.route)
        own = copies.pop("", [])
        # The progress comes before the actions: after a crash between the two, the next pass plans them again.
        if plan.own.deployment is not None and isinstance(record, Record):
            record = await self._record_endpoint(record, plan.own.deployment, own, plan.instances)
        pauses_s = [await self._act(record, plan.own, own)]
        for component in components:
            placed = copies.pop(component.uid, [])
            if isinstance(component, Unreadable):
                pauses_s.append(await self._remove_unreadable(component, placed, endpoint_deleting_s=record.deleting_s))
            else:
                pauses_s.append(await self._act_on_component(component, plan.components[component.name], placed))
        # The copies that are left belong to components that are gone.
        pauses_s += [await self.end_workers(orphans) for orphans in copies.values()]
        return min(*pauses_s, IDLE_PAUSE_S)

    async def end_workers(self, workers: Sequence[WorkerRecord]) -> float:
        """End workers whose endpoint or component is gone; return the seconds until the next pass."""
        orphans = WorkerSet(records={worker.name: worker for worker in workers})
        try:
            for action in end_workers(view_workers(workers, {}), self.clock.read()):
                await self.workers.act(orphans, action)
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            get_logger().exception("reconciler.orphan_failed", workers=sorted(orphans.records))
        return BUSY_PAUSE_S

    async def _act_on_component(self, record: ComponentRecord, plan: Plan, copies: Sequence[WorkerRecord]) -> float:
        """Record and act for one component; its conflict does not delay the others."""
        try:
            if plan.deployment is not None:
                record = await self._record_component(record, plan.deployment, copies)
            return await self._act(record, plan, copies)
        except Conflict:
            return BUSY_PAUSE_S

    async def _remove_unreadable(
        self, record: AnyComponent, copies: Sequence[WorkerRecord], *, endpoint_deleting_s: float | None = None
    ) -> float:
        """Remove a component that cannot be planned, once it is being deleted; until then its copies are left alone."""
        deleting_s = record.deleting_s if record.deleting_s is not None else endpoint_deleting_s
        if deleting_s is None:
            return IDLE_PAUSE_S
        removal = plan_removal(deleting_s, view_workers(copies, self.loads()), self.clock.read())
        try:
            return await self._act(record, removal, copies)
        except Conflict:
            return BUSY_PAUSE_S

    async def _act(self, record: EndpointRecord | AnyComponent, plan: Plan, workers: Sequence[WorkerRecord]) -> float:
        """Execute the plan of an endpoint or a component; return the seconds until the next pass."""
        owned = WorkerSet(
            records={worker.name: worker for worker in workers},
            owner=record if isinstance(record, Record) else None,
            revisions=plan.deployment.revisions if plan.deployment is not None else {},
        )
        for action in plan.actions:
            if isinstance(action, RemoveRecord):
                await store_access.remove(self.store, record)
                name = LOG_NAMES[record.kind]
                get_logger().info(f"{name}.removed", **{name: record.name})
                if isinstance(record, Record) and record.kind is ENDPOINT:
                    await asyncio.to_thread(self.on_state, cast("EndpointRecord", record), "Deleted")
            else:
                await self.workers.act(owned, action)
        if plan.is_settled:
            return WATCH_PAUSE_S if workers else IDLE_PAUSE_S
        return BUSY_PAUSE_S

    async def _record_endpoint(
        self,
        record: EndpointRecord,
        deployment: Deployment,
        workers: Sequence[WorkerRecord],
        instances: Mapping[str, Sequence[HostInstance]],
    ) -> EndpointRecord:
        if self._log_news(record, deployment.progress) and record.kind is ENDPOINT:
            await asyncio.to_thread(self.on_state, record, deployment.progress.state.value)
        status = EndpointStatus(
            progress=deployment.progress,
            revisions=cast("dict[int, EndpointRevision]", deployment.revisions),
            ready=self._ready(deployment, workers),
            notices=notices_of(workers),
            placements=placements_of(workers),
            instances={variant: list(hosts) for variant, hosts in instances.items()},
        )
        return await store_access.write(self.store, record, status=status)

    async def _record_component(
        self, record: ComponentRecord, deployment: Deployment, copies: Sequence[WorkerRecord]
    ) -> ComponentRecord:
        self._log_news(record, deployment.progress)
        notices = notices_of(copies)
        for variant, texts in restarts_of(copies).items():
            notices.setdefault(variant, []).extend(texts)
        status = ComponentStatus(
            progress=deployment.progress,
            revisions=cast("dict[int, ComponentRevision]", deployment.revisions),
            ready=self._ready(deployment, copies),
            notices=notices,
        )
        return await store_access.write(self.store, record, status=status)

    def _ready(self, deployment: Deployment, workers: Sequence[WorkerRecord]) -> dict[str, int]:
        seen = view_workers(workers, self.loads())
        return {
            ready_key(workload.variant, number): num_ready(seen, (workload.variant, number))
            for number, revision in deployment.revisions.items()
            for workload in revision.workloads
        }

    def _log_news(self, record: EndpointRecord | ComponentRecord, progress: Progress) -> bool:
        """Log a new state, or a request that failed within one pass; return whether there is one."""
        known = record.status.progress
        reason = progress.failure_reason
        if known is not None and known.state is progress.state:
            earlier = known.observed_generation, known.failure_reason
            if not reason or earlier == (progress.observed_generation, reason):
                return False
        name = LOG_NAMES[record.kind]
        facts = {"state": progress.state.value, "reason": reason.partition("\n")[0]}
        get_logger().info(f"{name}.changed", **{name: record.name}, **facts)
        return True
