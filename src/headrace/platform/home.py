"""
The state of the whole platform, for the home page of the console: machine, endpoints, workers and their load.

No operation of AWS returns these. Reading them blocks for a moment, so the console calls them in a thread.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.cloudwatch.metrics.worker_page import WorkerReading
from headrace.cluster.instance_types import Host
from headrace.control.model.endpoint import ENDPOINT, EndpointRecord, variant_counts
from headrace.control.model.worker import WORKER, WorkerRecord, view_worker
from headrace.control.model.workload import serving_revision, unreadable_state, visible_state
from headrace.models.store import StoredKind, StoredModel, list_models
from headrace.platform.overview import worker_state
from headrace.runner.memory import available_memory_bytes, total_memory_bytes
from headrace.state.records import Json, Record, Unreadable
from headrace.state.store import Store

MAX_WORKERS = 100
"""Workers that are listed; all are counted."""
_NO_READING = WorkerReading()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of the platform, at one moment."""

    num_cores: int
    load: float
    """Processes that run or wait for a core, averaged over a minute."""
    memory_bytes: int
    free_memory_bytes: int
    gpus: tuple[str, ...] = ()
    cluster: str = "local"
    """The setting `cluster`: where workers run."""


def this_machine(host: Host, cluster: str) -> Machine:
    """Return this machine as it is now; `host` was read when the platform started."""
    return Machine(
        num_cores=host.num_cores,
        load=os.getloadavg()[0],
        memory_bytes=total_memory_bytes(),
        free_memory_bytes=available_memory_bytes(),
        gpus=tuple(gpu.name for gpu in host.gpus),
        cluster=cluster,
    )


def read_home(store: Store, machine: Machine, readings: Mapping[str, WorkerReading]) -> Json:
    """Return the machine, the endpoints by state, the instances, and the workers; `readings` are by worker."""
    states, instances = Counter[str](), Counter[str]()
    for endpoint in store.each(ENDPOINT):
        states[_state_of(endpoint)] += 1
        instances.update(_instances([endpoint]))
    workers, num_workers = [], 0
    for worker in store.each(WORKER):
        if isinstance(worker, Record) and not view_worker(worker).is_gone:
            num_workers += 1
            if num_workers <= MAX_WORKERS:
                workers.append(_worker_json(worker, readings.get(worker.name, _NO_READING)))
    return {
        "machine": msgspec.to_builtins(machine),
        "endpoints": dict(states),
        "instances": {"current": instances["current"], "desired": instances["desired"]},
        "num_workers": num_workers,
        "workers": workers,
        "tokens_per_s": _total(reading.output_tokens_per_s for reading in readings.values()),
        "num_waiting": _total(reading.num_waiting for reading in readings.values()),
    }


def _state_of(endpoint: EndpointRecord | Unreadable) -> str:
    return (unreadable_state(endpoint) if isinstance(endpoint, Unreadable) else visible_state(endpoint)).value


def _instances(endpoints: Iterable[EndpointRecord | Unreadable]) -> Json:
    """Return the numbers of current and of desired instances."""
    counts = [
        variant_counts(endpoint, revision, workload)
        for endpoint in endpoints
        if isinstance(endpoint, Record)
        for revision in [serving_revision(endpoint)]
        for workload in revision.workloads
    ]
    return {"current": sum(current for current, _ in counts), "desired": sum(desired for _, desired in counts)}


def read_counts(store: Store, names: Iterable[str]) -> Json:
    """Return the numbers of current and of desired instances of each endpoint that exists."""
    records = ((name, store.get(ENDPOINT, name)) for name in names)
    return {name: _instances([record]) for name, record in records if isinstance(record, Record)}


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


def read_models(home: Path) -> Json:
    """Return the models that are stored on this machine, and the size of all packed weights."""
    stored = list_models(home)
    return {
        "models": [_model_json(model) for model in stored if model.kind is not StoredKind.PACKED],
        "packed_bytes": _num_packed_bytes(stored),
    }


def _model_json(model: StoredModel) -> Json:
    return {"name": model.name, "kind": model.kind.value, "bytes": model.num_bytes}


def _num_packed_bytes(stored: Sequence[StoredModel]) -> int:
    return sum(model.num_bytes for model in stored if model.kind is StoredKind.PACKED)
