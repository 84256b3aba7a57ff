"""The state of the whole platform, the workers and components of one endpoint, and the uses of models, for the console.

No operation of AWS returns these. Reading them blocks for a moment, so the console calls them in a thread. An instance
is virtual, with the resources of its type on AWS; the machine that runs a copy's process is its `host`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from headrace.core.host_memory import available_memory_bytes
from headrace.inference.models.aliases import ALIASES
from headrace.platform.cloudwatch.metrics.worker_page import WorkerReading
from headrace.platform.control.model.component import (
    INFERENCE_COMPONENT,
    ComponentRecord,
    component_status,
    current_copies,
    owner_of,
)
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG
from headrace.platform.control.model.endpoint import (
    ENDPOINT,
    EndpointRecord,
    model_name_of,
    variant_configs,
    variant_counts,
)
from headrace.platform.control.model.names import unreadable_message
from headrace.platform.control.model.resources import Resources, resources_of_type
from headrace.platform.control.model.worker import WORKER, CopySpec, WorkerRecord, WorkerView, view_worker
from headrace.platform.control.model.workload import failure_reason, serving_revision, visible_state
from headrace.platform.state.records import Json, Record, Unreadable
from headrace.platform.state.store import Store

MAX_WORKERS = 100
"""Workers that are listed; all are counted."""
_NO_READING = WorkerReading()


def read_home(store: Store, readings: Mapping[str, WorkerReading]) -> Json:
    """Return the endpoints by state, the instances, and the workers; `readings` are by worker."""
    states, instances = Counter[str](), Counter[str]()
    for endpoint in store.each(ENDPOINT):
        states[visible_state(endpoint).value] += 1
        instances.update(_instances([endpoint]))
    workers, num_workers = [], 0
    for worker in store.each(WORKER):
        if isinstance(worker, Record) and not view_worker(worker).is_gone:
            num_workers += 1
            if num_workers <= MAX_WORKERS:
                workers.append(_worker_json(worker, readings.get(worker.name, _NO_READING)))
    return {
        "endpoints": dict(states),
        "instances": {"current": instances["current"], "desired": instances["desired"]},
        "num_workers": num_workers,
        "workers": workers,
        "tokens_per_s": _total(reading.output_tokens_per_s for reading in readings.values()),
        "num_waiting": _total(reading.num_waiting for reading in readings.values()),
    }


def _instances(endpoints: Iterable[EndpointRecord | Unreadable]) -> Json:
    counts = [
        variant_counts(endpoint, revision, workload)
        for endpoint in endpoints
        if isinstance(endpoint, Record)
        for revision in [serving_revision(endpoint)]
        for workload in revision.workloads
    ]
    return {"current": sum(current for current, _ in counts), "desired": sum(desired for _, desired in counts)}


def read_counts(store: Store, names: Iterable[str]) -> Json:
    """Return the current and the desired instances of endpoints, and why some of them do not serve."""
    named = ((name, store.get(ENDPOINT, name)) for name in names)
    records = {name: record for name, record in named if isinstance(record, Record)}
    counts = {name: _instances([record]) for name, record in records.items()}
    lacking = {records[name].uid: name for name, found in counts.items() if found["current"] < found["desired"]}
    workers: dict[str, list[WorkerRecord]] = defaultdict(list)
    for worker in store.each(WORKER) if lacking else ():
        if isinstance(worker, Record) and worker.spec.endpoint_uid in lacking:
            workers[lacking[worker.spec.endpoint_uid]].append(worker)
    return {name: {**found, "trouble": trouble_of(_copies_of("", workers[name]))} for name, found in counts.items()}


def trouble_of(workers: Iterable[WorkerRecord]) -> str:
    """Return why a worker failed since the newest one became ready, or why one waits to start; empty if neither."""
    statuses = [worker.status for worker in workers]
    ready_s = max((status.ready_s or 0.0 for status in statuses), default=0.0)
    failed = [status for status in statuses if status.failed_s is not None and status.failed_s > ready_s]
    if failed:
        return max(failed, key=lambda status: status.failed_s or 0.0).failure
    return next((status.waiting for status in statuses if status.waiting), "")


def _worker_json(worker: WorkerRecord, reading: WorkerReading) -> Json:
    return {
        "endpoint": worker.spec.endpoint,
        "variant": worker.spec.variant,
        "component": worker.spec.copy.component if worker.spec.copy is not None else "",
        "log_stream": worker.spec.log_stream,
        "state": worker_state(view_worker(worker)),
        "since_s": worker.created_s,
        **msgspec.to_builtins(reading),
    }


def _total(numbers: Iterable[float | None]) -> float | None:
    """Return the sum of the known numbers; None if there are none."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def read_models(environment: Mapping[str, str], *, cluster: str = "local") -> Json:
    """Return the stored models, the aliases that can be downloaded, the packed weights' size, and the free memory."""
    from headrace.inference.models.sources import home_folder  # it imports numpy, which an idle platform does not need
    from headrace.inference.models.store import StoredKind, list_models

    models, packed = [], 0
    for model in list_models(home_folder(environment)):
        if model.kind is StoredKind.PACKED:
            packed += model.num_bytes
        elif model.kind is not StoredKind.CODE:
            models.append({"name": model.name, "kind": model.kind.value, "bytes": model.num_bytes})
    aliases = [{"name": alias.name, "title": alias.title, "bytes": alias.stored_bytes} for alias in ALIASES.values()]
    # The workers of a cluster run elsewhere: the memory here says nothing about what fits.
    free_bytes = available_memory_bytes() if cluster == "local" else None
    return {"models": models, "aliases": aliases, "packed_bytes": packed, "free_memory_bytes": free_bytes}


def read_uses(store: Store) -> Json:
    """Return what uses each model, by its name: `endpoints`, `components` and `configs`."""
    uses: dict[str, dict[str, list[str]]] = {}

    def note(model: str | None, kind: str, user: str) -> None:
        if model:
            users = uses.setdefault(model, {"endpoints": [], "components": [], "configs": []})[kind]
            if user not in users:
                users.append(user)

    for config in store.each(ENDPOINT_CONFIG):
        for variant in variant_configs(config.spec.members) if isinstance(config, Record) else ():
            note(model_name_of(variant), "configs", config.name)
    for endpoint in store.each(ENDPOINT):
        revisions = (
            [endpoint.spec.revision, *endpoint.status.revisions.values()] if isinstance(endpoint, Record) else []
        )
        for model in (model for revision in revisions for model in revision.models):
            note(model, "endpoints", endpoint.name)
    for component in store.each(INFERENCE_COMPONENT):
        if isinstance(component, Record):
            note(component.spec.revision.specification.get("ModelName"), "components", component.name)
    return uses


def read_overview(store: Store, endpoint: str) -> Json:
    """Return the components, hosts and workers of an endpoint, and its trouble; all are empty if it does not exist."""
    record = store.get(ENDPOINT, endpoint)
    if record is None:
        return {"components": [], "hosts": [], "workers": [], "trouble": ""}
    components = [
        component
        for component in store.each(INFERENCE_COMPONENT)
        if (owner := owner_of(component)) is not None and owner.endpoint_uid == record.uid
    ]
    workers = [
        worker for worker in store.each(WORKER) if isinstance(worker, Record) and worker.spec.endpoint_uid == record.uid
    ]
    copies = [worker for worker in workers if worker.spec.copy is not None and not view_worker(worker).is_gone]
    newest = sorted(workers, key=lambda worker: worker.created_s)[-MAX_WORKERS:]
    return {
        "components": [
            {**component_json(component), "trouble": trouble_of(_copies_of(component.name, workers))}
            for component in components
        ],
        "hosts": hosts_json(record, copies),
        "workers": [_history_json(worker) for worker in newest],
        "trouble": trouble_of(_copies_of("", workers)),
    }


def _copies_of(component: str, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Return the copies of a component, or with an empty name the workers of the endpoint's own models."""
    return [worker for worker in workers if (worker.spec.copy.component if worker.spec.copy else "") == component]


def _history_json(worker: WorkerRecord) -> Json:
    """Return a worker with the times of its life; records of failed workers stay for a while."""
    spec, status = worker.spec, worker.status
    return {
        "component": spec.copy.component if spec.copy is not None else "",
        "variant": spec.variant,
        "revision": spec.revision,
        "log_stream": spec.log_stream,
        "state": worker_state(view_worker(worker)),
        "created_s": worker.created_s,
        "ready_s": status.ready_s,
        "failed_s": status.failed_s,
        "failure": status.failure,
        "waiting": status.waiting,
    }


def component_json(record: ComponentRecord | Unreadable) -> Json:
    shared = {"name": record.name, "status": component_status(record), "created_s": record.created_s}
    if isinstance(record, Unreadable):
        unknown = {"serving": 0, "desired": 0, "need": _resources_json(Resources())}
        texts = dict.fromkeys(("variant", "model", "base", "placement"), "")
        return {**shared, **texts, **unknown, "failure_reason": unreadable_message(record)}
    current = serving_revision(record)
    (workload,) = current.workloads
    return {
        **shared,
        "variant": current.variant,
        "model": current.specification.get("ModelName", ""),
        "base": current.base,
        "serving": current_copies(record),
        "desired": record.spec.revision.copies,
        "need": _resources_json(workload.need or Resources()),
        "placement": workload.placement,
        "failure_reason": failure_reason(record),
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
    numbers = {name: getattr(resources, name) for name in ("cpus", "accelerators", "memory_mb")}
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}
