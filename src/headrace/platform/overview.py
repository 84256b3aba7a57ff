"""
The components of one endpoint and the places of their copies, for the console.

No operation of SageMaker says which copy is on which instance. An instance is virtual, with the resources of its type
on AWS; the machine that runs a copy's process is its `host`.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import urlsplit

from headrace.control.model.component import (
    INFERENCE_COMPONENT,
    ComponentRecord,
    component_status,
    current_copies,
    owner_of,
)
from headrace.control.model.endpoint import ENDPOINT, EndpointRecord
from headrace.control.model.names import unreadable_message
from headrace.control.model.resources import Resources, resources_of_type
from headrace.control.model.worker import WORKER, CopySpec, WorkerRecord, WorkerView, view_worker
from headrace.control.model.workload import failure_reason, serving_revision, unreadable_state
from headrace.state.records import Json, Record, StoredRecord, Unreadable
from headrace.state.store import Store


def read_overview(store: Store, endpoint: str) -> Json:
    """Return the `components` and the `hosts` of an endpoint; both are empty if it has none or does not exist."""
    record = store.get(ENDPOINT, endpoint)
    if record is None:
        return {"components": [], "hosts": []}
    components = [component for component in store.each(INFERENCE_COMPONENT) if _is_on(component, record)]
    workers = [
        worker
        for worker in store.each(WORKER)
        if isinstance(worker, Record)
        and worker.spec.copy is not None
        and worker.spec.endpoint_uid == record.uid
        and not view_worker(worker).is_gone
    ]
    return {"components": [component_json(component) for component in components], "hosts": hosts_json(record, workers)}


def _is_on(component: ComponentRecord | Unreadable, endpoint: StoredRecord) -> bool:
    owner = owner_of(component)
    return owner is not None and owner.endpoint_uid == endpoint.uid


def component_json(record: ComponentRecord | Unreadable) -> Json:
    """Return a component as the console shows it."""
    if isinstance(record, Unreadable):
        return _unreadable_json(record)
    current = serving_revision(record)
    (workload,) = current.workloads
    return {
        "name": record.name,
        "variant": current.variant,
        "model": current.specification.get("ModelName", ""),
        "base": current.base,
        "status": component_status(record),
        "serving": current_copies(record),
        "desired": record.spec.revision.copies,
        "need": _resources_json(workload.need or Resources()),
        "placement": workload.placement,
        "failure_reason": failure_reason(record),
        "created_s": record.created_s,
    }


def _unreadable_json(record: Unreadable) -> Json:
    return {
        "name": record.name,
        "variant": "",
        "model": "",
        "base": "",
        "status": unreadable_state(record).value,
        "serving": 0,
        "desired": 0,
        "need": _resources_json(Resources()),
        "placement": "",
        "failure_reason": unreadable_message(record),
        "created_s": record.created_s,
    }


def hosts_json(endpoint: EndpointRecord | Unreadable, workers: Sequence[WorkerRecord]) -> list[Json]:
    """Return the variants that have instances for components, and the copies on each, oldest first."""
    if isinstance(endpoint, Unreadable):
        return []
    return [
        {
            "variant": host.variant,
            "instance_type": host.instance_type,
            "has": _resources_json(resources_of_type(host.instance_type)),
            "instances": _instances_json(
                [instance.id for instance in endpoint.status.instances.get(host.variant, ())],
                [worker for worker in workers if worker.spec.variant == host.variant],
            ),
        }
        for host in serving_revision(endpoint).workloads
        if host.is_host
    ]


def _instances_json(ids: Sequence[str], workers: Sequence[WorkerRecord]) -> list[Json]:
    """Return the instances in their order; an instance that was removed is shown while it has copies."""
    copies: dict[str, list[Json]] = defaultdict(list)
    for worker in workers:
        if worker.spec.copy is not None:
            copies[worker.spec.copy.instance].append(_copy_json(worker, worker.spec.copy))
    return [{"id": instance, "copies": copies.get(instance, [])} for instance in dict.fromkeys([*ids, *copies])]


def _copy_json(worker: WorkerRecord, copy: CopySpec) -> Json:
    handle = worker.status.handle
    return {
        "component": copy.component,
        "state": worker_state(view_worker(worker)),
        "need": _resources_json(copy.need),
        "host": (urlsplit(handle.url).hostname or "") if handle is not None else "",
        "gpus": [*handle.facts.get("gpus", ())] if handle is not None else [],
        "log_stream": worker.spec.log_stream,
        "since_s": worker.created_s,
    }


def worker_state(worker: WorkerView) -> str:
    """Return the state of a worker: waiting, a phase of its process, serving, leaving or failed."""
    if worker.failed_s is not None:
        return "failed"
    if worker.draining_s is not None:
        return "leaving"
    return "waiting" if worker.phase is None else "serving" if worker.can_serve else worker.phase.value


def _resources_json(resources: Resources) -> Json:
    """Return an amount of resources as JSON; None stands for an unbounded one."""
    numbers = {
        "cpus": resources.cpus,
        "accelerators": resources.accelerators,
        "memory_mb": resources.memory_mb,
    }
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}
