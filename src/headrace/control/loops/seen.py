"""From the records of components and their copies to what the planner sees of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from headrace.control.loops.store_access import rollback_alarms
from headrace.control.model.component_reading import read_component
from headrace.control.model.progress import EndpointView
from headrace.control.model.worker_records import view_worker
from headrace.control.planning.host import Component
from headrace.control.planning.placement import Placed, read_need
from headrace.state.records import RawRecord


def see_component(
    record: RawRecord,
    workers: Sequence[RawRecord],
    *,
    ringing: Collection[str],
    deleting_s: float | None,
    loads: Mapping[str, int] = MappingProxyType({}),
) -> Component:
    """
    Read a component's record and those of its copies.

    Args:
        record: of the component.
        workers: of its copies.
        ringing: names of alarms that are in ALARM.
        deleting_s: since when its endpoint is being deleted: the component goes too.
        loads: copy -> requests that run on it.

    Raises:
        UnreadableRecord: the component's record cannot be understood.
    """
    view = read_component(record)
    if view.deleting_s is None and deleting_s is not None:
        view = replace(view, deleting_s=deleting_s)
    seen = {worker.name: view_worker(worker, num_requests=loads.get(worker.name, 0)) for worker in workers}
    placed = placed_copies(record.name, workers)
    return Component(view=view, workers=list(seen.values()), placed=placed, alarm=alarm_reason(view, ringing))


def copies_by_component(workers: Sequence[RawRecord]) -> dict[str, list[RawRecord]]:
    """Workers by the uid of their component; those of the endpoint's own models by an empty one."""
    grouped: dict[str, list[RawRecord]] = {}
    for worker in workers:
        grouped.setdefault(worker.spec.get("component_uid", ""), []).append(worker)
    return grouped


def placed_copies(component: str, workers: Sequence[RawRecord]) -> dict[str, Placed]:
    """Where the copies of a component stand that have not ended, by their names."""
    return {
        worker.name: Placed(
            component=component,
            instance=worker.spec["instance"],
            need=read_need({"ComputeResourceRequirements": worker.spec["requirements"]}),
        )
        for worker in workers
        if not view_worker(worker).is_gone
    }


def alarm_reason(view: EndpointView, ringing: Collection[str]) -> str:
    """Why an update shall be rolled back, if one of its alarms says so; else empty."""
    progress = view.progress
    target = None if progress is None or progress.target is None else view.versions[progress.target]
    names = [name for name in rollback_alarms((target or view.version).raw) if name in ringing]
    return f"Alarm {', '.join(names)} of AutoRollbackConfiguration is in ALARM." if names else ""
