"""One pass of the reconciler over one endpoint and the inference components on it: see, plan, record, act."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

from headrace.control.loops import store_access
from headrace.control.loops.failure_log import LOG_NAMES, FailureLog
from headrace.control.loops.garbage_collection import GarbageCollector
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.wake_up import BUSY_PAUSE_S, IDLE_PAUSE_S, WATCH_PAUSE_S
from headrace.control.loops.worker_manager import WorkerManager, WorkerSet, new_instance_id
from headrace.control.model.component import ComponentRecord, ComponentRevision, ComponentStatus
from headrace.control.model.endpoint import ENDPOINT, EndpointRecord, EndpointRevision, EndpointStatus, HostInstance
from headrace.control.model.names import arn_of
from headrace.control.model.worker import WorkerRecord, WorkerView, notices_of, view_worker
from headrace.control.model.workload import Deployable, Progress, ready_key
from headrace.control.planning.fleet import Limits, num_ready
from headrace.control.planning.host import Component, HostPlan, plan_host, with_components
from headrace.control.planning.placement import Placed
from headrace.control.planning.plan import Action, Plan, RemoveRecord, is_settled, plan_deployable, plan_removal
from headrace.control.planning.rollout import Deployment, ExternalConditions
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
        limits: Limits,
        loads: ReadLoads,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._workers = workers
        self._garbage = garbage
        self._failures = failures
        self._aws_scope = aws_scope
        self._limits = limits
        self._loads = loads
        self._clock = clock
        self._log = get_logger()

    async def run(
        self, record: EndpointRecord | Unreadable, workers: Sequence[WorkerRecord], snapshot: Snapshot
    ) -> float:
        """
        Plan, record and act once; returns after how many seconds to look again.

        Raises:
            Conflict: a record was written meanwhile: look again.
        """
        components = snapshot.components_by_endpoint().get(record.uid, [])
        copies = copies_by_component(workers)
        own = copies.pop("", [])
        if isinstance(record, Unreadable):
            if record.deleting_s is None:
                return await self._run_unreadable(record, components, copies)
            plan = plan_removal(record.deleting_s, self._see(own), now_s=self._clock(), limits=self._limits)
        else:
            plan = self._plan(record, own, snapshot.alarms)
        hosted = self._plan_hosted(record, plan, components, copies, snapshot.alarms)
        # NOTE: the route comes first, so that an endpoint which is InService to DescribeEndpoint can be invoked.
        route = with_components(plan.route, hosted) if plan.route is not None else None
        await store_access.publish(self._store, snapshot.routes.get(record.name), record.name, route)
        if plan.deployment is not None and isinstance(record, Record):
            record = await self._record_endpoint(record, plan.deployment, own, hosted.instances)
        is_last = not components and not any(copies.values())
        pause_s = await self._act(record, plan if is_last else _without_removal(plan), own)
        return min(pause_s, *await self._act_hosted(record.deleting_s, hosted, components, copies), IDLE_PAUSE_S)

    def _see(self, workers: Sequence[WorkerRecord]) -> list[WorkerView]:
        loads = self._loads()
        return [view_worker(worker, num_requests=loads.get(worker.name, 0)) for worker in workers]

    def _plan(self, record: EndpointRecord, workers: Sequence[WorkerRecord], alarms: Collection[str]) -> Plan:
        return plan_deployable(
            record,
            self._see(workers),
            endpoint_arn=arn_of(self._aws_scope, ENDPOINT, record.name),
            now_s=self._clock(),
            limits=self._limits,
            conditions=ExternalConditions(alarm=alarm_reason(record, alarms)),
        )

    def _plan_hosted(
        self,
        record: EndpointRecord | Unreadable,
        plan: Plan,
        components: Sequence[AnyComponent],
        copies: Copies,
        alarms: Collection[str],
    ) -> HostPlan:
        """Plan the components; copies of one that cannot be read stay where they are."""
        seen: list[Component] = []
        unreadable: list[Placed] = []
        for component in components:
            own = copies.get(component.uid, [])
            if isinstance(component, Unreadable):
                self._failures.note_unreadable(component)
                unreadable += placed_copies(component.uid, own).values()
            else:
                self._failures.clear(component)
                seen.append(self._see_component(component, own, alarms, endpoint_deleting_s=record.deleting_s))
        return plan_host(
            plan.deployment,
            seen,
            instances=record.status.instances if isinstance(record, Record) and plan.deployment is not None else {},
            endpoint_arn=arn_of(self._aws_scope, ENDPOINT, record.name),
            now_s=self._clock(),
            limits=self._limits,
            new_id=new_instance_id,
            unreadable=unreadable,
        )

    def _see_component(
        self,
        record: ComponentRecord,
        copies: Sequence[WorkerRecord],
        alarms: Collection[str],
        *,
        endpoint_deleting_s: float | None,
    ) -> Component:
        if record.deleting_s is None and endpoint_deleting_s is not None:
            record = replace(record, deleting_s=endpoint_deleting_s)
        return Component(
            record=record,
            workers=self._see(copies),
            placed=placed_copies(record.name, copies),
            alarm=alarm_reason(record, alarms),
        )

    async def _act_hosted(
        self, deleting_s: float | None, hosted: HostPlan, components: Sequence[AnyComponent], copies: Copies
    ) -> list[float]:
        """Record and act for each component; end the copies of components that are gone."""
        pauses = []
        for component in components:
            own = copies.get(component.uid, [])
            if isinstance(component, Unreadable):
                pauses.append(await self._remove_unreadable(component, own, endpoint_deleting_s=deleting_s))
            else:
                pauses.append(await self._act_component(component, hosted.plans[component.name], own))
        known = {component.uid for component in components}
        orphaned = [workers for uid, workers in copies.items() if uid not in known]
        return [*pauses, *[await self._garbage.end_workers(workers) for workers in orphaned]]

    async def _act_component(self, record: ComponentRecord, plan: Plan, copies: Sequence[WorkerRecord]) -> float:
        """Record and act for one component; its conflict does not delay the others."""
        try:
            if plan.deployment is not None:
                record = await self._record_component(record, plan.deployment, copies)
            return await self._act(record, plan, copies)
        except Conflict:
            return BUSY_PAUSE_S

    async def _run_unreadable(self, record: Unreadable, components: Sequence[AnyComponent], copies: Copies) -> float:
        """Remove components that are being deleted; everything else of an unreadable endpoint is left alone."""
        self._failures.note_unreadable(record)
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
        removal = plan_removal(deleting_s, self._see(copies), now_s=self._clock(), limits=self._limits)
        try:
            return await self._act(record, removal, copies)
        except Conflict:
            return BUSY_PAUSE_S

    async def _act(self, record: EndpointRecord | AnyComponent, plan: Plan, workers: Sequence[WorkerRecord]) -> float:
        """Do what was planned for an endpoint or a component; returns after how many seconds to look again."""
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
        if is_settled(plan, self._see(workers)):
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
            notices=notices_of(copies),
        )
        return await store_access.write(self._store, record, status=status)

    def _ready(self, deployment: Deployment, workers: Sequence[WorkerRecord]) -> dict[str, int]:
        seen = self._see(workers)
        return {
            ready_key(workload.variant, number): num_ready(seen, (workload.variant, number))
            for number, revision in deployment.revisions.items()
            for workload in revision.workloads
        }

    def _log_news(self, record: EndpointRecord | ComponentRecord, progress: Progress) -> None:
        """Log another state, or a request that could not be fulfilled within one pass."""
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
    """Return workers by the uid of their component; those of the endpoint's own models by an empty one."""
    grouped: dict[str, list[WorkerRecord]] = {}
    for worker in workers:
        copy = worker.spec.copy
        grouped.setdefault(copy.component_uid if copy is not None else "", []).append(worker)
    return grouped


def placed_copies(component: str, workers: Sequence[WorkerRecord]) -> dict[str, Placed]:
    """Return the places of a component's copies that have not ended, by their names."""
    return {
        worker.name: Placed(component=component, instance=worker.spec.copy.instance, need=worker.spec.copy.need)
        for worker in workers
        if worker.spec.copy is not None and not view_worker(worker).is_gone
    }


def alarm_reason(record: Deployable, alarms: Collection[str]) -> str:
    """Return why an update is rolled back, if one of its alarms demands it; else empty."""
    progress = record.status.progress
    number = progress.target if progress is not None else None
    revision = record.spec.revision if number is None else record.status.revisions[number]
    names = [name for name in revision.rollback_alarms if name in alarms]
    return f"Alarm {', '.join(names)} of AutoRollbackConfiguration is in ALARM." if names else ""


def _without_removal(plan: Plan) -> Plan:
    """Return the plan of an endpoint that waits for its components to go."""
    actions: tuple[Action, ...] = tuple(action for action in plan.actions if not isinstance(action, RemoveRecord))
    return replace(plan, actions=actions)
