"""One pass of the reconciler over one endpoint and the inference components on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headrace.control.loops import store_access
from headrace.control.loops.failure_log import WORDS, Faults
from headrace.control.loops.garbage_collection import Leftovers
from headrace.control.loops.seen import alarm_reason, copies_by_component, placed_copies, see_component
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.wake_up import BUSY_PAUSE_S, IDLE_PAUSE_S, WATCH_PAUSE_S
from headrace.control.loops.worker_manager import Bench, WorkerHands, new_instance_id
from headrace.control.model.fleet import Limits, num_ready
from headrace.control.model.kinds import ENDPOINT
from headrace.control.model.names import arn_of
from headrace.control.model.progress import Progress, ready_key, status_json, view_endpoint
from headrace.control.model.reading import UnreadableRecord, read_endpoint
from headrace.control.model.worker_records import notices_of, view_worker
from headrace.control.planning.host import (
    Component,
    HostPlan,
    instances_json,
    plan_host,
    read_instances,
    with_components,
)
from headrace.control.planning.plan import Action, Plan, RemoveEndpoint, is_settled, plan_endpoint, plan_removal
from headrace.control.planning.rollout import Outside
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, Json, RawRecord
from headrace.state.signals import ReadLoads
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope


class EndpointPass:
    """The same for all endpoints."""

    def __init__(
        self,
        store: Store,
        hands: WorkerHands,
        leftovers: Leftovers,
        faults: Faults,
        *,
        aws_scope: AwsScope,
        limits: Limits,
        loads: ReadLoads,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._hands = hands
        self._leftovers = leftovers
        self._faults = faults
        self._aws_scope = aws_scope
        self._limits = limits
        self._loads = loads
        self._clock = clock
        self._log = get_logger()

    async def run(self, record: RawRecord, workers: Sequence[RawRecord], snapshot: Snapshot) -> float:
        """
        Plan, act and record once; returns after how many seconds to look again.

        Raises:
            UnreadableRecord: that of the endpoint.
            Conflict: somebody wrote meanwhile: look again.
        """
        now_s = self._clock()
        components = snapshot.components_by_endpoint().get(record.uid, [])
        copies = copies_by_component(workers)
        own = copies.pop("", [])
        plan = self._plan(record, own, snapshot, now_s=now_s)
        loads = self._loads()
        seen = {
            one.uid: self._see(one, copies.get(one.uid, []), snapshot, deleting_s=record.deleting_s, loads=loads)
            for one in components
        }
        hosted = self._plan_hosted(record, plan, seen, copies, now_s=now_s)
        # NOTE: the route comes first, so that an endpoint which is InService to DescribeEndpoint can be invoked.
        route = with_components(plan.route, hosted) if plan.route is not None else None
        await store_access.publish(self._store, snapshot.routes.get(record.name), record.name, route)
        if plan.deployment is not None:
            record = await self._record(record, plan, own, more=instances_json(hosted))
        is_last = not components and not any(copies.values())
        actions = plan if is_last else replace(plan, actions=_without_removal(plan))
        pauses = [await self._act(record, actions, own)]
        for one in components:
            its_own = copies.pop(one.uid, [])
            if seen[one.uid] is None:
                pauses.append(await self._unreadable(one, record, its_own))
            else:
                pauses.append(await self._component(one, hosted.plans[one.name], its_own))
        pauses += [await self._leftovers.end_workers(orphans) for orphans in copies.values()]
        return min(pauses)

    def _plan(self, record: RawRecord, workers: Sequence[RawRecord], snapshot: Snapshot, *, now_s: float) -> Plan:
        """What to do for an endpoint itself; to delete it, its record need not be readable."""
        loads = self._loads()
        seen = [view_worker(worker, num_requests=loads.get(worker.name, 0)) for worker in workers]
        if record.deleting_s is not None:
            return plan_removal(record.deleting_s, seen, now_s=now_s, limits=self._limits)
        view = read_endpoint(record)
        return plan_endpoint(
            view,
            seen,
            endpoint_arn=arn_of(self._aws_scope, ENDPOINT, view.name),
            now_s=now_s,
            limits=self._limits,
            outside=Outside(alarm=alarm_reason(view, snapshot.alarms)),
        )

    def _see(
        self,
        record: RawRecord,
        copies: Sequence[RawRecord],
        snapshot: Snapshot,
        *,
        deleting_s: float | None,
        loads: Mapping[str, int],
    ) -> Component | None:
        """An inference component; None: its record cannot be read, which is its own matter."""
        try:
            seen = see_component(record, copies, ringing=snapshot.alarms, deleting_s=deleting_s, loads=loads)
        except UnreadableRecord as error:
            self._faults.note(record, error)
            return None
        self._faults.clear(record)
        return seen

    def _plan_hosted(
        self,
        record: RawRecord,
        plan: Plan,
        components: Mapping[str, Component | None],
        copies: Mapping[str, Sequence[RawRecord]],
        *,
        now_s: float,
    ) -> HostPlan:
        return plan_host(
            plan.deployment,
            [one for one in components.values() if one is not None],
            instances={} if plan.deployment is None else read_instances(record.status),
            endpoint_arn=arn_of(self._aws_scope, ENDPOINT, record.name),
            now_s=now_s,
            limits=self._limits,
            new_id=new_instance_id,
            strangers=[
                copy
                for uid, one in components.items()
                if one is None
                for copy in placed_copies(uid, copies.get(uid, [])).values()
            ],
        )

    async def _unreadable(self, record: RawRecord, endpoint: RawRecord, workers: Sequence[RawRecord]) -> float:
        """A component whose record cannot be read: its copies are left alone until it is deleted."""
        deleting_s = record.deleting_s if record.deleting_s is not None else endpoint.deleting_s
        if deleting_s is None:
            return IDLE_PAUSE_S
        seen = [view_worker(worker) for worker in workers]
        removal = plan_removal(deleting_s, seen, now_s=self._clock(), limits=self._limits)
        return await self._component(record, removal, workers)

    async def _component(self, record: RawRecord, plan: Plan, workers: Sequence[RawRecord]) -> float:
        """One inference component; another one's conflict is not its own."""
        try:
            if plan.deployment is not None:
                record = await self._record(record, plan, workers)
            return await self._act(record, plan, workers, component=record)
        except Conflict:
            return BUSY_PAUSE_S

    async def _act(
        self,
        record: RawRecord,
        plan: Plan,
        workers: Sequence[RawRecord],
        *,
        component: RawRecord | None = None,
    ) -> float:
        """Do what was planned for an endpoint or a component; returns after how many seconds to look again."""
        bench = Bench(component=component, records={worker.name: worker for worker in workers})
        if plan.deployment is not None:
            bench.view, bench.versions = view_endpoint(record), plan.deployment.versions
        for action in plan.actions:
            if isinstance(action, RemoveEndpoint):
                await store_access.remove(self._store, record)
                self._log.info(f"{WORDS[record.kind]}.removed", **{WORDS[record.kind]: record.name})
            else:
                await self._hands.act(bench, action)
        if is_settled(plan, [view_worker(worker) for worker in workers]):
            return WATCH_PAUSE_S if workers else IDLE_PAUSE_S
        return BUSY_PAUSE_S

    async def _record(
        self, record: RawRecord, plan: Plan, workers: Sequence[RawRecord], *, more: Json | None = None
    ) -> RawRecord:
        """Write how far the endpoint, or the component, is."""
        assert plan.deployment is not None
        deployment, state = plan.deployment, plan.deployment.progress.state.value
        seen = [view_worker(worker) for worker in workers]
        ready = {
            ready_key(one.name, generation): num_ready(seen, (one.name, generation))
            for generation, version in deployment.versions.items()
            for one in version.variants
        }
        reason = deployment.progress.failure_reason.partition("\n")[0]
        if _is_news(record, deployment.progress):
            word = WORDS[record.kind]
            self._log.info(f"{word}.changed", **{word: record.name}, state=state, reason=reason)
        status = status_json(deployment.progress, deployment.versions, ready, notices_of(workers))
        return await store_access.write(self._store, record, status={**status, **(more or {})})

    async def run_deletions(self, record: RawRecord, workers: Sequence[RawRecord], snapshot: Snapshot) -> float:
        """Of the components of an endpoint whose record cannot be read; all else is left alone."""
        components, copies = snapshot.components_by_endpoint().get(record.uid, []), copies_by_component(workers)
        return min(
            [await self._unreadable(one, record, copies.get(one.uid, [])) for one in components] or [IDLE_PAUSE_S]
        )


def _is_news(record: RawRecord, progress: Progress) -> bool:
    """Whether the log tells of it: another state, or something that was asked for could not be had within one pass."""
    known: Json = record.status.get("progress", {})
    if known.get("state") != progress.state.value:
        return True
    earlier = known.get("observed"), known.get("failure_reason", "")
    return bool(progress.failure_reason) and earlier != (progress.observed, progress.failure_reason)


def _without_removal(plan: Plan) -> tuple[Action, ...]:
    """An endpoint waits for its components to go."""
    return tuple(action for action in plan.actions if not isinstance(action, RemoveEndpoint))
