"""
The components of one endpoint and where their copies are, for a person who looks at them. Pure, on records.

No operation of SageMaker's tells which copy is on which instance. An instance is virtual: it has what its type has on
AWS; where a copy's process really runs is its `host`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from headrace.control.api.component_specs import specification_of
from headrace.control.api.describe_component import failure_reason
from headrace.control.model.component_reading import read_component, variant_of
from headrace.control.model.component_runtime import current_copies, desired_copies, serving_version
from headrace.control.model.component_states import component_status
from headrace.control.model.fleet import WorkerView
from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT, WORKER
from headrace.control.model.reading import UnreadableRecord, is_readable, read_endpoint, unreadable_status
from headrace.control.model.worker_reading import unreadable_reason
from headrace.control.model.worker_records import handle_of, view_worker
from headrace.control.planning.host import read_instances
from headrace.control.planning.placement import Resources, read_need, read_strategy, resources_of_type
from headrace.state.records import Json, RawRecord
from headrace.state.store import Store


def read_overview(store: Store, endpoint: str) -> Json:
    """`components` and the `hosts` of an endpoint; both empty if it has none, or is not there."""
    record = store.get(ENDPOINT, endpoint)
    if record is None:
        return {"components": [], "hosts": []}
    components = [one for one in store.list(INFERENCE_COMPONENT) if one.spec.get("endpoint_uid") == record.uid]
    workers = [
        one
        for one in store.list(WORKER)
        if "component" in one.spec
        and not unreadable_reason(one)
        and one.spec["endpoint_uid"] == record.uid
        and not view_worker(one).is_gone
    ]
    return {"components": [component_json(one) for one in components], "hosts": hosts_json(record, workers)}


def component_json(record: RawRecord) -> Json:
    """One component."""
    try:
        view = read_component(record)
    except UnreadableRecord as error:
        return _unreadable_json(record, str(error))
    current = serving_version(view)
    specification = specification_of(current.raw)
    (host,) = current.variants
    return {
        "name": record.name,
        "variant": host.name,
        "model": specification.get("ModelName", ""),
        "status": component_status(view),
        "serving": current_copies(record),
        "desired": desired_copies(record),
        "need": _resources_json(read_need(specification)),
        "placement": read_strategy(specification),
        "failure_reason": failure_reason(view),
        "created_s": record.created_s,
    }


def _unreadable_json(record: RawRecord, reason: str) -> Json:
    """A component whose record cannot be understood."""
    return {
        "name": record.name,
        "variant": variant_of(record),
        "model": "",
        "status": unreadable_status(record),
        "serving": 0,
        "desired": 0,
        "need": _resources_json(Resources()),
        "placement": "",
        "failure_reason": reason,
        "created_s": record.created_s,
    }


def hosts_json(endpoint: RawRecord, workers: Sequence[RawRecord]) -> list[Json]:
    """The variants that have instances for components, and the copies on each, oldest first."""
    if not is_readable(endpoint):
        return []
    version = serving_version(read_endpoint(endpoint))
    instances = read_instances(endpoint.status)
    return [
        {
            "variant": variant.name,
            "instance_type": variant.instance_type,
            "has": _resources_json(resources_of_type(variant.instance_type)),
            "instances": _instances_json(
                [one.id for one in instances.get(variant.name, ())],
                [one for one in workers if one.spec["variant"] == variant.name],
            ),
        }
        for variant in version.variants
        if variant.model is None
    ]


def _instances_json(ids: Sequence[str], workers: Sequence[RawRecord]) -> list[Json]:
    """Instances in their order; one that is gone already stays as long as copies of it do."""
    copies: Mapping[str, list[Json]] = defaultdict(list)
    for worker in workers:
        copies[worker.spec["instance"]].append(_copy_json(worker))
    return [{"id": one, "copies": copies.get(one, [])} for one in dict.fromkeys([*ids, *copies])]


def _copy_json(worker: RawRecord) -> Json:
    handle = handle_of(worker)
    return {
        "component": worker.spec["component"],
        "state": copy_state(view_worker(worker)),
        "need": _resources_json(read_need({"ComputeResourceRequirements": worker.spec["requirements"]})),
        "host": (urlsplit(handle.url).hostname or "") if handle is not None else "",
        "log_stream": worker.spec["log_stream"],
        "since_s": worker.created_s,
    }


def copy_state(worker: WorkerView) -> str:
    """What a copy is doing, in a word."""
    if worker.failed_s is not None:
        return "failed"
    if worker.draining_s is not None:
        return "leaving"
    return "waiting" if worker.phase is None else "serving" if worker.can_serve else worker.phase.value


def _resources_json(resources: Resources) -> Json:
    """None: without bound."""
    numbers = {
        "cpus": resources.cpus,
        "accelerators": resources.accelerators,
        "memory_mb": resources.memory_mb,
    }
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}
