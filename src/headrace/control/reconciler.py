"""
Makes true what was asked: reads the store, plans, acts, records.

Level-triggered: a pass decides by what is, not by what has happened, so that it may be interrupted anywhere and begin
again, after kill -9 of the platform too.

It answers no request. The only owner of endpoint statuses, workers and routes.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from headrace.cluster.launcher import Handle, Launcher
from headrace.control import store_access
from headrace.control.components.host import Component, HostPlan, instances_json, plan_host, read_instances
from headrace.control.components.seen import alarm_reason, copies_by_component, placed_copies, see_component
from headrace.control.deployment import Outside
from headrace.control.fleet import Limits, num_ready
from headrace.control.log_reader import LogReader
from headrace.control.names import Site, arn_of
from headrace.control.plan import Action, Plan, RemoveEndpoint, is_settled, plan_endpoint, plan_orphans, plan_removal
from headrace.control.progress import ready_key, status_json, view_endpoint
from headrace.control.readiness import Rest, starting_among
from headrace.control.reading import UnreadableRecord, read_endpoint
from headrace.control.store_access import Snapshot
from headrace.control.worker_reading import unreadable_reason
from headrace.control.worker_records import notices_of, view_worker
from headrace.control.worker_specs import WorkerDefaults
from headrace.control.workers import Bench, WorkerHands, new_instance_id
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, Json, Kind, Record
from headrace.state.routes import route_to_json
from headrace.state.store import Store

BUSY_PAUSE_S = 0.2
"""Between two looks while something is under way."""
WATCH_PAUSE_S = 0.5
"""Between two looks at workers that serve."""
IDLE_PAUSE_S = 10.0
"""With nothing to watch; a write to the store ends every pause."""
SWEEP_S = 30.0
"""Between two searches for processes that nobody knows."""
_BURST_S = 0.02
"""Writes that come so close together are answered by one pass."""

_EVENTS = {Kind.ENDPOINT: "endpoint", Kind.INFERENCE_COMPONENT: "component"}
"""What the log calls them."""


class Reconciler:
    """One task; `run` until cancelled. Workers run on after that."""

    def __init__(
        self,
        *,
        store: Store,
        launcher: Launcher,
        logs: LogReader,
        site: Site,
        defaults: WorkerDefaults,
        limits: Limits | None = None,
        loads: Callable[[], Mapping[str, int]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Begin; nothing happens before `run`.

        Args:
            store: what is asked, and where it is written what is.
            launcher: starts and stops workers.
            logs: for the reasons of failures.
            site: account and region.
            defaults: of workers.
            limits: how patient to be.
            loads: worker -> requests that run on it; workers that have none may be left out.
            clock: seconds since 1970.
        """
        self._store = store
        self._site = site
        self._limits = replace(limits or Limits(), awake_since_s=clock())
        self._loads = loads
        self._clock = clock
        self._hands = WorkerHands(
            store=store, launcher=launcher, logs=logs, defaults=defaults, limits=self._limits, clock=clock
        )
        self.rest = Rest(clock=clock)
        """Between two looks."""
        self._swept_s: float | None = None
        self._orphans: dict[str, Handle] = {}
        self._faults: dict[str, str] = {}
        """By the uid of the endpoint or component: what went wrong in the last pass; by an empty one: with all."""
        self._log = get_logger()

    async def run(self) -> None:
        """Reconcile, for ever."""
        with store_access.changes(self._store) as changed:
            while True:
                changed.clear()
                try:
                    pause_s = await self.pass_once()
                    self._faults.pop("", None)
                except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
                    self._note_fault(None, error)
                    pause_s = WATCH_PAUSE_S
                await self.rest.take(changed, pause_s)
                await asyncio.sleep(_BURST_S)

    async def pass_once(self) -> float:
        """Read, plan, act and record once for everything; returns after how many seconds to look again."""
        snapshot = await store_access.read_all(self._store)
        alive = await self._alive_if_due(snapshot)
        snapshot = await self._look(snapshot, alive)
        self.rest.starting = starting_among(snapshot.workers)
        workers = snapshot.workers_by_endpoint()
        endpoints = {record.uid: record for record in snapshot.endpoints}
        pauses = await asyncio.gather(
            *(self._guarded(record, workers.get(uid, []), snapshot) for uid, record in endpoints.items())
        )
        for uid, orphans in workers.items():
            if uid not in endpoints:
                pauses.append(await self._end_orphans(orphans))
        await self._drop_components(snapshot)
        await self._drop_routes(snapshot)
        if alive is not None:
            pauses.append(await self._sweep(alive, snapshot))
        return min(pauses, default=IDLE_PAUSE_S)

    async def _look(self, snapshot: Snapshot, alive: dict[str, Handle] | None) -> Snapshot:
        """The same snapshot, with what is seen of the workers now."""

        async def look(record: Record) -> Record | None:
            if why := unreadable_reason(record):
                await self._drop_worker(record, why)
                return None
            with suppress(Conflict):
                if alive is not None:
                    record = await self._hands.adopt(record, alive)
                return await self._hands.observe(record)
            return record

        seen = await asyncio.gather(*(look(record) for record in snapshot.workers))
        return replace(snapshot, workers=[record for record in seen if record is not None])

    async def _drop_worker(self, record: Record, why: str) -> None:
        """Forget a worker whose record cannot be read; its process is an orphan then."""
        self._log.error("worker.unreadable", worker=record.name, why=why)
        self._swept_s = None
        with suppress(Conflict):
            await store_access.remove(self._store, record)

    async def _guarded(self, record: Record, workers: Sequence[Record], snapshot: Snapshot) -> float:
        """One endpoint; what goes wrong with it is its own matter, and is tried again."""
        try:
            pause_s = await self._reconcile(record, workers, snapshot)
        except Conflict:
            return BUSY_PAUSE_S
        except UnreadableRecord as error:
            self._note_fault(record, error)
            return await self._only_deletions(record, workers, snapshot)
        except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
            self._note_fault(record, error)
            return WATCH_PAUSE_S
        self._faults.pop(record.uid, None)
        return pause_s

    async def _only_deletions(self, record: Record, workers: Sequence[Record], snapshot: Snapshot) -> float:
        """Of the components of an endpoint whose record cannot be read; all else is left alone."""
        components, copies = snapshot.components_by_endpoint().get(record.uid, []), copies_by_component(workers)
        return min(
            [await self._unreadable(one, record, copies.get(one.uid, [])) for one in components] or [IDLE_PAUSE_S]
        )

    def _note_fault(self, record: Record | None, error: Exception) -> None:
        """Log what went wrong with an endpoint or a component, or at all; once for as long as it is the same."""
        uid = record.uid if record is not None else ""
        if self._faults.get(uid) != repr(error):
            self._faults[uid] = repr(error)
            whose = {_EVENTS[record.kind]: record.name} if record is not None else {}
            if isinstance(error, UnreadableRecord):
                self._log.error("record.unreadable", **whose, reason=str(error))
            else:
                self._log.error("reconciler.failed", **whose, exc_info=error)

    async def _reconcile(self, record: Record, workers: Sequence[Record], snapshot: Snapshot) -> float:
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
        route = replace(plan.route, components=hosted.routes) if plan.route is not None else None
        published = route_to_json(route) if route is not None else None
        await store_access.publish(self._store, snapshot.routes.get(record.name), record.name, published)
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
        pauses += [await self._end_orphans(orphans) for orphans in copies.values()]
        return min(pauses)

    def _plan(self, record: Record, workers: Sequence[Record], snapshot: Snapshot, *, now_s: float) -> Plan:
        """What to do for an endpoint itself; to delete it, its record need not be readable."""
        loads = self._loads()
        seen = [view_worker(worker, num_requests=loads.get(worker.name, 0)) for worker in workers]
        if record.deleting_s is not None:
            return plan_removal(record.deleting_s, seen, now_s=now_s, limits=self._limits)
        view = read_endpoint(record)
        return plan_endpoint(
            view,
            seen,
            endpoint_arn=arn_of(self._site, Kind.ENDPOINT, view.name),
            now_s=now_s,
            limits=self._limits,
            outside=Outside(alarm=alarm_reason(view, snapshot.alarms)),
        )

    def _see(
        self,
        record: Record,
        copies: Sequence[Record],
        snapshot: Snapshot,
        *,
        deleting_s: float | None,
        loads: Mapping[str, int],
    ) -> Component | None:
        """An inference component; None: its record cannot be read, which is its own matter."""
        try:
            seen = see_component(record, copies, ringing=snapshot.alarms, deleting_s=deleting_s, loads=loads)
        except UnreadableRecord as error:
            self._note_fault(record, error)
            return None
        self._faults.pop(record.uid, None)
        return seen

    def _plan_hosted(
        self,
        record: Record,
        plan: Plan,
        components: Mapping[str, Component | None],
        copies: Mapping[str, Sequence[Record]],
        *,
        now_s: float,
    ) -> HostPlan:
        return plan_host(
            plan.deployment,
            [one for one in components.values() if one is not None],
            instances={} if plan.deployment is None else read_instances(record.status),
            endpoint_arn=arn_of(self._site, Kind.ENDPOINT, record.name),
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

    async def _unreadable(self, record: Record, endpoint: Record, workers: Sequence[Record]) -> float:
        """A component whose record cannot be read: its copies are left alone until it is deleted."""
        deleting_s = record.deleting_s if record.deleting_s is not None else endpoint.deleting_s
        if deleting_s is None:
            return IDLE_PAUSE_S
        seen = [view_worker(worker) for worker in workers]
        removal = plan_removal(deleting_s, seen, now_s=self._clock(), limits=self._limits)
        return await self._component(record, removal, workers)

    async def _component(self, record: Record, plan: Plan, workers: Sequence[Record]) -> float:
        """One inference component; another one's conflict is not its own."""
        try:
            if plan.deployment is not None:
                record = await self._record(record, plan, workers)
            return await self._act(record, plan, workers, component=record)
        except Conflict:
            return BUSY_PAUSE_S

    async def _act(
        self,
        record: Record,
        plan: Plan,
        workers: Sequence[Record],
        *,
        component: Record | None = None,
    ) -> float:
        """Do what was planned for an endpoint or a component; returns after how many seconds to look again."""
        bench = Bench(component=component, records={worker.name: worker for worker in workers})
        if plan.deployment is not None:
            bench.view, bench.versions = view_endpoint(record), plan.deployment.versions
        for action in plan.actions:
            if isinstance(action, RemoveEndpoint):
                await store_access.remove(self._store, record)
                self._log.info(f"{_EVENTS[record.kind]}.removed", **{_EVENTS[record.kind]: record.name})
            else:
                await self._hands.act(bench, action)
        if is_settled(plan, [view_worker(worker) for worker in workers]):
            return WATCH_PAUSE_S if workers else IDLE_PAUSE_S
        return BUSY_PAUSE_S

    async def _record(
        self, record: Record, plan: Plan, workers: Sequence[Record], *, more: Json | None = None
    ) -> Record:
        """Write how far the endpoint, or the component, is."""
        assert plan.deployment is not None
        deployment, state = plan.deployment, plan.deployment.progress.state.value
        seen = [view_worker(worker) for worker in workers]
        ready = {
            ready_key(one.name, generation): num_ready(seen, (one.name, generation))
            for generation, version in deployment.versions.items()
            for one in version.variants
        }
        if record.status.get("progress", {}).get("state") != state:
            reason = deployment.progress.failure_reason.partition("\n")[0]
            word = _EVENTS[record.kind]
            self._log.info(f"{word}.changed", **{word: record.name}, state=state, reason=reason)
        status = status_json(deployment.progress, deployment.versions, ready, notices_of(workers))
        return await store_access.write(self._store, record, status={**status, **(more or {})})

    async def _drop_components(self, snapshot: Snapshot) -> None:
        """Components whose endpoint is gone; their copies are orphans."""
        living = {record.uid for record in snapshot.endpoints}
        for component in snapshot.components:
            uid = component.spec.get("endpoint_uid")
            if uid not in living and (uid is not None or component.deleting_s is not None):
                with suppress(Conflict):
                    await store_access.remove(self._store, component)

    async def _end_orphans(self, workers: Sequence[Record]) -> float:
        """Workers whose endpoint is gone."""
        bench = Bench(records={worker.name: worker for worker in workers})
        seen = [view_worker(worker) for worker in workers]
        try:
            for action in plan_orphans(seen, now_s=self._clock(), limits=self._limits):
                await self._hands.act(bench, action)
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            self._log.exception("reconciler.orphan_failed", workers=sorted(bench.records))
        return BUSY_PAUSE_S

    async def _drop_routes(self, snapshot: Snapshot) -> None:
        """Routes of endpoints that are gone."""
        living = {record.name for record in snapshot.endpoints}
        for name, route in snapshot.routes.items():
            if name not in living:
                with suppress(Conflict):
                    await store_access.remove(self._store, route)

    async def _alive_if_due(self, snapshot: Snapshot) -> dict[str, Handle] | None:
        """The launcher's own list: at the start, now and again, and where a worker's record has no process yet."""
        now_s = self._clock()
        is_recent = self._swept_s is not None and now_s - self._swept_s < SWEEP_S
        if is_recent and all(record.status for record in snapshot.workers):
            return None
        self._swept_s = now_s
        try:
            return await self._hands.alive()
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            self._log.exception("reconciler.sweep_failed")
            return None

    async def _sweep(self, alive: dict[str, Handle], snapshot: Snapshot) -> float:
        """End processes that no record knows."""
        recorded = {record.name for record in snapshot.workers}
        for name, handle in alive.items():
            if name not in recorded and name not in self._orphans:
                self._log.warning("worker.orphaned", worker=name)
                self._orphans[name] = handle
        for name, handle in list(self._orphans.items()):
            if await self._hands.end_orphan(name, handle):
                del self._orphans[name]
        if not self._orphans:
            return IDLE_PAUSE_S
        self._swept_s = None
        return WATCH_PAUSE_S


def _without_removal(plan: Plan) -> tuple[Action, ...]:
    """An endpoint waits for its components to go."""
    return tuple(action for action in plan.actions if not isinstance(action, RemoveEndpoint))
