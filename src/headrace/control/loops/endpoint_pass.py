"""One pass of the reconciler over one endpoint and the inference components on it: see, plan, record, act."""

from collections.abc import Mapping, Sequence
from typing import cast

from headrace.control.loops import store_access
from headrace.control.loops.deadline_clock import DeadlineClock
from headrace.control.loops.failure_log import LOG_NAMES, FailureLog
from headrace.control.loops.garbage_collection import GarbageCollector
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.wake_up import BUSY_PAUSE_S, IDLE_PAUSE_S, WATCH_PAUSE_S
from headrace.control.loops.worker_manager import WorkerManager, WorkerSet, new_instance_id
from headrace.control.model.component import (
    ComponentRecord,
    ComponentRevision,
    ComponentStatus,
)
from headrace.control.model.endpoint import EndpointRecord, EndpointRevision, EndpointStatus, HostInstance
from headrace.control.model.worker import WorkerRecord, WorkerView, notices_of, placements_of, restarts_of
from headrace.control.model.workload import Progress, ready_key
from headrace.control.planning.config import PassContext
from headrace.control.planning.deployment import Deployment
from headrace.control.planning.endpoint import plan_endpoint, view_endpoint, view_workers
from headrace.control.planning.plan import Plan, plan_removal
from headrace.control.planning.rollout import num_ready
from headrace.control.planning.worker_actions import RemoveRecord
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, Record, Unreadable
from headrace.state.signals import ReadLoads
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope

AnyComponent = ComponentRecord | Unreadable
Copies = Mapping[str, Sequence[WorkerRecord]]
"""Copies by the uid of their component."""


class EndpointPass:
    """A pass over one endpoint; the same object serves all endpoints."""

    def __init__(
        self,
        store: Store,
        workers: WorkerManager,
        garbage: GarbageCollector,
        failures: FailureLog,
        *,
        aws_scope: AwsScope,
        loads: ReadLoads,
        clock: DeadlineClock,
    ) -> None:
        self._store = store
        self._workers = workers
        self._garbage = garbage
        self._failures = failures
        self._aws_scope = aws_scope
        self._loads = loads
        self._clock = clock
        self._log = get_logger()

    async def run(
        self, record: EndpointRecord | Unreadable, workers: Sequence[WorkerRecord], snapshot: Snapshot
    ) -> float:
        """
        Plan, record and act once; return the seconds until the next pass.

        Raises:
            Conflict: a record was written meanwhile; run another pass.
        """
        components = snapshot.components_by_endpoint().get(record.uid, [])
        copies = copies_by_component(workers)
        if isinstance(record, Unreadable) and record.deleting_s is None:
            self._failures.note_unreadable(record)
            return await self._remove_deleted(components, copies)
        self._note_failures(components)
        view = view_endpoint(record, components, copies, alarms=snapshot.alarms, loads=self._loads())
        plan = plan_endpoint(view, self._context())
        # NOTE: the route comes first, so that an endpoint which is InService to DescribeEndpoint can be invoked.
        await store_access.publish(self._store, snapshot.routes.get(record.name), record.name, plan.route)
        own = copies.pop("", [])
        if plan.own.deployment is not None and isinstance(record, Record):
            record = await self._record_endpoint(record, plan.own.deployment, own, plan.instances)
        pause_s = await self._act(record, plan.own, own)
        pauses_s = await self._act_on_components(record.deleting_s, plan.components, components, copies)
        return min(pause_s, *pauses_s, IDLE_PAUSE_S)

    def _note_failures(self, components: Sequence[AnyComponent]) -> None:
        """Log components that cannot be decoded, and forget the failures of those that can."""
        for component in components:
            if isinstance(component, Unreadable):
                self._failures.note_unreadable(component)
            else:
                self._failures.clear(component)

    def _context(self) -> PassContext:
        now_s, config = self._clock.read()
        return PassContext(
            aws_scope=self._aws_scope,
            now_s=now_s,
            config=config,
            new_id=new_instance_id,
        )

    async def _act_on_components(
        self, deleting_s: float | None, plans: Mapping[str, Plan], components: Sequence[AnyComponent], copies: Copies
    ) -> list[float]:
        """Record and act for each component; end the copies of components that are gone."""
        pauses = []
        for component in components:
            own = copies.get(component.uid, [])
            if isinstance(component, Unreadable):
                pauses.append(await self._remove_unreadable(component, own, endpoint_deleting_s=deleting_s))
            else:
                pauses.append(await self._act_on_component(component, plans[component.name], own))
        known = {component.uid for component in components}
        orphaned = [workers for uid, workers in copies.items() if uid not in known]
        return [*pauses, *[await self._garbage.end_workers(workers) for workers in orphaned]]

    async def _act_on_component(self, record: ComponentRecord, plan: Plan, copies: Sequence[WorkerRecord]) -> float:
        """Record and act for one component; its conflict does not delay the others."""
        try:
            if plan.deployment is not None:
                record = await self._record_component(record, plan.deployment, copies)
            return await self._act(record, plan, copies)
        except Conflict:
            return BUSY_PAUSE_S

    async def _remove_deleted(self, components: Sequence[AnyComponent], copies: Copies) -> float:
        """Remove components that are being deleted; everything else of an unreadable endpoint is left alone."""
        return min(
            [await self._remove_unreadable(component, copies.get(component.uid, [])) for component in components]
            or [IDLE_PAUSE_S]
        )

    async def _remove_unreadable(
        self, record: AnyComponent, copies: Sequence[WorkerRecord], *, endpoint_deleting_s: float | None = None
    ) -> float:
        """Remove a component that cannot be planned, once it is being deleted; until then its copies are left alone."""
        deleting_s = record.deleting_s if record.deleting_s is not None else endpoint_deleting_s
        if deleting_s is None:
            return IDLE_PAUSE_S
        now_s, config = self._clock.read()
        removal = plan_removal(deleting_s, self._view(copies), now_s=now_s, config=config)
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
                await store_access.remove(self._store, record)
                name = LOG_NAMES[record.kind]
                self._log.info(f"{name}.removed", **{name: record.name})
            else:
                await self._workers.act(owned, action)
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
        self._log_news(record, deployment.progress)
        status = EndpointStatus(
            progress=deployment.progress,
            revisions=cast("dict[int, EndpointRevision]", deployment.revisions),
            ready=self._ready(deployment, workers),
            notices=notices_of(workers),
            placements=placements_of(workers),
            instances={variant: list(hosts) for variant, hosts in instances.items()},
        )
        return await store_access.write(self._store, record, status=status)

    async def _record_component(
        self, record: ComponentRecord, deployment: Deployment, copies: Sequence[WorkerRecord]
    ) -> ComponentRecord:
        self._log_news(record, deployment.progress)
        status = ComponentStatus(
            progress=deployment.progress,
            revisions=cast("dict[int, ComponentRevision]", deployment.revisions),
            ready=self._ready(deployment, copies),
            notices=_together(notices_of(copies), restarts_of(copies)),
        )
        return await store_access.write(self._store, record, status=status)

    def _view(self, workers: Sequence[WorkerRecord]) -> list[WorkerView]:
        return view_workers(workers, self._loads())

    def _ready(self, deployment: Deployment, workers: Sequence[WorkerRecord]) -> dict[str, int]:
        seen = self._view(workers)
        return {
            ready_key(workload.variant, number): num_ready(seen, (workload.variant, number))
            for number, revision in deployment.revisions.items()
            for workload in revision.workloads
        }

    def _log_news(self, record: EndpointRecord | ComponentRecord, progress: Progress) -> None:
        """Log a new state, or a request that failed within one pass."""
        known = record.status.progress
        reason = progress.failure_reason
        if known is not None and known.state is progress.state:
            earlier = known.observed_generation, known.failure_reason
            if not reason or earlier == (progress.observed_generation, reason):
                return
        name = LOG_NAMES[record.kind]
        facts = {"state": progress.state.value, "reason": reason.partition("\n")[0]}
        self._log.info(f"{name}.changed", **{name: record.name}, **facts)


def copies_by_component(workers: Sequence[WorkerRecord]) -> dict[str, list[WorkerRecord]]:
    """Group workers by the uid of their component; those of the endpoint's own models have an empty key."""
    grouped: dict[str, list[WorkerRecord]] = {}
    for worker in workers:
        copy = worker.spec.copy
        grouped.setdefault(copy.component_uid if copy is not None else "", []).append(worker)
    return grouped


def _together(*texts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the sentences of several sources by variant."""
    variants = dict.fromkeys(variant for source in texts for variant in source)
    return {variant: [text for source in texts for text in source.get(variant, ())] for variant in variants}
