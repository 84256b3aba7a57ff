"""
The plan of an adapter inference component: it has no copies; those of its base load it.

It is in service once every serving copy of its base has loaded it, and stays in service: a copy that starts later gets
requests for the adapter once it has loaded it. With a base scaled to zero it is in service at once, without that check.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as evolve

from headrace.platform.control.model.component import ComponentRecord
from headrace.platform.control.model.worker import AdapterState, WorkerView
from headrace.platform.control.model.workload import Revision, State
from headrace.platform.control.planning.config import PassContext
from headrace.platform.control.planning.deployment import Deployment, start_deployment
from headrace.platform.control.planning.plan import Plan, effective_shares
from headrace.platform.control.planning.worker_actions import AdapterAction, LoadAdapter, RemoveRecord, UnloadAdapter
from headrace.platform.state.routes import AdapterRoute, VariantRoute

RETRY_S = 10.0
"""Seconds after which a failed load of an adapter into a copy is retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base component of an adapter, as it was planned in this pass."""

    name: str
    state: State
    """DELETING while it is being deleted."""
    route: VariantRoute | None
    """The route of its copies; None while it has none."""
    workers: Sequence[WorkerView]
    num_copies: int
    """Number of copies that it should have."""

    @property
    def serving(self) -> list[WorkerView]:
        """The copies that accept requests."""
        return [worker for worker in self.workers if worker.can_serve]


def plan_adapter(record: ComponentRecord, base: Base | None, context: PassContext) -> Plan:
    """Plan one adapter component; `base` is None if there is none, or its record cannot be read."""
    if record.deleting_s is not None:
        # Unload it first; a copy that does not answer in time does not delay that further.
        is_over = context.waited_s(record.deleting_s) > context.config.stop_bound_s
        unloads = () if base is None or base.state is State.DELETING or is_over else _unload(record, base)
        return Plan(deployment=None, actions=unloads or (RemoveRecord(),))
    deployment = _advance(start_deployment(record, context.now_s), record, base, context)
    state = deployment.progress.state
    wanted = deployment.target or deployment.stable
    assert wanted is not None
    if state is State.FAILED:
        actions: tuple[AdapterAction, ...] = _unload(record, base)
    else:
        actions = _load(record, wanted, base, context)
    route = None if base is None or base.route is None else _route(record, base.name, base.route, base.workers, state)
    return Plan(
        deployment=deployment,
        variants=() if route is None else (route,),
        actions=actions,
        is_stable=state in (State.IN_SERVICE, State.FAILED),
    )


def version_of(record: ComponentRecord, revision: Revision) -> str:
    """Return the version of an adapter that copies report; another component of the same name has other versions."""
    return f"{record.uid}/{revision.number}"


def _advance(deployment: Deployment, record: ComponentRecord, base: Base | None, context: PassContext) -> Deployment:
    """Advance the deployment by what the copies of the base report."""
    target = deployment.target
    if deployment.progress.state not in (State.CREATING, State.UPDATING):
        return deployment
    if target is None:
        return _ended(deployment, State.IN_SERVICE, context)
    version = version_of(record, target)
    serving = base.serving if base is not None else []
    states = [worker.adapters.get(record.name, AdapterState()) for worker in serving]
    if reason := _failure(version, states, base, deployment, context):
        # A failed creation stays; an update is rolled back.
        state = State.FAILED if deployment.stable is None else State.IN_SERVICE
        return _ended(deployment, state, context, stable=deployment.stable, reason=reason)
    is_loaded = bool(states) and all(state.loaded == version for state in states)
    is_asleep = base is not None and base.state is State.IN_SERVICE and base.num_copies == 0
    if is_loaded or (is_asleep and not serving):
        return _ended(deployment, State.IN_SERVICE, context, stable=target)
    return deployment


def _failure(
    version: str, states: Iterable[AdapterState], base: Base | None, deployment: Deployment, context: PassContext
) -> str:
    """Return why the target cannot be deployed; empty while it still can."""
    if base is None or base.state is State.DELETING:
        return "Its base inference component does not exist any more."
    if base.state is State.FAILED:
        return f"Its base inference component {base.name} has failed."
    failed = [state for state in states if state.failed == version]
    permanent = next((state.failure for state in failed if state.is_permanent), "")
    if permanent:
        return permanent
    assert deployment.target is not None
    waited_s = context.waited_s(deployment.progress.since_s)
    bound_s = deployment.target.startup_bound_s
    if waited_s <= bound_s:
        return ""
    last = failed[0].failure if failed else f"No copy of its base {base.name} has served meanwhile."
    return f"The copies of its base have not loaded it within {bound_s:g} s. {last}"


def _ended(
    deployment: Deployment, state: State, context: PassContext, *, stable: Revision | None = None, reason: str = ""
) -> Deployment:
    progress = evolve(
        deployment.progress, state=state, since_s=context.now_s, stage_since_s=context.now_s, failure_reason=reason
    )
    if stable is None:
        return evolve(deployment, progress=progress)
    progress = evolve(progress, stable=stable.number, target=None)
    return Deployment(progress=progress, revisions={stable.number: stable})


def _load(
    record: ComponentRecord, wanted: Revision, base: Base | None, context: PassContext
) -> tuple[AdapterAction, ...]:
    """Load the adapter into the copies that have not loaded it."""
    version = version_of(record, wanted)
    (workload,) = wanted.workloads
    return tuple(
        LoadAdapter(
            worker=worker.name,
            url=worker.url,
            token=worker.token,
            adapter=record.name,
            version=version,
            source=workload.adapter_url,
            timeout_s=workload.download_timeout_s,
        )
        for worker in (base.serving if base is not None else ())
        for state in (worker.adapters.get(record.name, AdapterState()),)
        if state.loaded != version and (state.failed != version or context.now_s - state.failed_s >= RETRY_S)
    )


def _unload(record: ComponentRecord, base: Base | None) -> tuple[UnloadAdapter, ...]:
    """Remove the adapter from the copies that have loaded it."""
    return tuple(
        UnloadAdapter(worker=worker.name, url=worker.url, token=worker.token, adapter=record.name)
        for worker in (base.serving if base is not None else ())
        if _has_loaded(worker, record)
    )


def _has_loaded(worker: WorkerView, record: ComponentRecord) -> bool:
    return worker.adapters.get(record.name, AdapterState()).loaded.startswith(f"{record.uid}/")


def _route(
    record: ComponentRecord, base: str, route: VariantRoute, workers: Sequence[WorkerView], state: State
) -> VariantRoute:
    """Return the route of the base, with only those copies that have loaded the adapter."""
    able = {worker.name for worker in workers if state is not State.FAILED and _has_loaded(worker, record)}
    replicas = {
        fleet.generation: tuple(replica for replica in fleet.replicas if replica.worker in able)
        for fleet in route.fleets
    }
    intended = {fleet.generation: fleet.share for fleet in route.fleets}
    shares = effective_shares(intended, {generation for generation, found in replicas.items() if found})
    is_coming = route.standby or any(fleet.replicas for fleet in route.fleets)
    return replace(
        route,
        fleets=tuple(
            replace(fleet, share=shares[fleet.generation], replicas=replicas[fleet.generation])
            for fleet in route.fleets
        ),
        standby=is_coming and not any(replicas.values()) and state is not State.FAILED,
        adapter=AdapterRoute(name=record.name, base=base),
    )
