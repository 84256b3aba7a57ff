"""The state of the whole platform, for the console's home page."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.core.gpus import Gpu
from headrace.platform.cloudwatch.metrics.worker_page import WorkerReading
from headrace.platform.cluster.instance_types import Host
from headrace.platform.control.model.worker import WORKER
from headrace.platform.host.machines import distinct, this_machine, together
from headrace.platform.host.overview import read_counts, read_home, read_models
from tests.platform.control.broken_records import insert_record
from tests.platform.control.calls import host, model
from tests.platform.control.support import Platform, running_platform

MACHINE = this_machine(Host(num_cores=2, memory_bytes=1 << 30, gpus=(Gpu(index=0, name="NVIDIA H200"),)), "local")


@pytest.fixture
def platform() -> Iterator[Platform]:
    with running_platform() as running:
        yield running


def test_an_empty_platform_has_zeros_and_no_rates(platform: Platform) -> None:
    seen = read_home(platform.store, {})
    assert (seen["endpoints"], seen["workers"], seen["num_workers"]) == ({}, [], 0)
    assert (seen["tokens_per_s"], seen["num_waiting"]) == (None, None)


def test_the_machines_of_all_processes_are_shown_once_and_added_up() -> None:
    assert 0 < MACHINE.free_memory_bytes <= MACHINE.memory_bytes
    assert distinct(MACHINE, [msgspec.to_builtins(MACHINE), {"of": "another version"}]) == [MACHINE]
    first = msgspec.structs.replace(MACHINE, name="10.0.0.1:7450", memory_bytes=1)
    second = msgspec.structs.replace(MACHINE, name="10.0.0.2:7450", memory_bytes=2, leads=True)
    machines = distinct(second, [msgspec.to_builtins(machine) for machine in (second, first, first)])
    assert machines == [first, second]
    whole = together(machines)
    assert (whole.num_cores, whole.memory_bytes, whole.gpus) == (4, 3, ("NVIDIA H200", "NVIDIA H200"))
    assert (whole.name, whole.cluster) == ("", "local")


def test_endpoints_instances_and_workers_are_counted_with_their_load(platform: Platform) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client, ModelName="m", InitialInstanceCount=2)
    platform.wait_for(client, "ep", "InService")
    first, second = [record.name for record in platform.store.list(WORKER)]
    readings = {
        first: WorkerReading(output_tokens_per_s=30.0, num_waiting=2, kv_cache_share=0.5),
        second: WorkerReading(output_tokens_per_s=10.0),
    }
    seen = read_home(platform.store, readings)
    assert seen["endpoints"] == {"InService": 1}
    assert seen["instances"] == {"current": 2, "desired": 2}
    assert (seen["num_workers"], seen["tokens_per_s"], seen["num_waiting"]) == (2, 40.0, 2)
    assert read_counts(platform.store, ["ep", "none"]) == {"ep": {"current": 2, "desired": 2, "trouble": ""}}
    told = {worker["output_tokens_per_s"]: worker for worker in seen["workers"]}
    assert {(worker["endpoint"], worker["component"], worker["state"]) for worker in seen["workers"]} == {
        ("ep", "", "serving")
    }
    assert (told[30.0]["kv_cache_share"], told[10.0]["kv_cache_share"]) == (0.5, None)
    assert told[30.0]["log_stream"].startswith("AllTraffic/")


def test_an_unreadable_worker_hides_nothing(platform: Platform) -> None:
    insert_record(platform.store, WORKER, "odd", {"endpoint_uid": 7})
    assert read_home(platform.store, {})["workers"] == []


def test_stored_models_are_listed_and_packed_weights_are_added_up(tmp_path: Path) -> None:
    for path, size in (("models/smollm2/model.gguf", 10), ("packed/a", 3), ("packed/b", 4)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x" * size)
    found = read_models({"HEADRACE_HOME": str(tmp_path)})
    assert {"name": "smollm2", "kind": "alias", "bytes": 10} in found["models"]
    assert found["packed_bytes"] == 7
    assert "smollm2" in {alias["name"] for alias in found["aliases"]}
    assert found["free_memory_bytes"] > 0
    assert read_models({"HEADRACE_HOME": str(tmp_path)}, cluster="ray")["free_memory_bytes"] is None
