"""The overview of an endpoint's components and their copies, for the console."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as evolve

from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.worker import WORKER, ReplicaStatus
from headrace.platform.host.overview import hosts_json, read_overview, read_uses, trouble_of
from headrace.platform.state.records import Record
from tests.platform.control.broken_records import insert_record
from tests.platform.control.calls import NEED, component, host, model, until
from tests.platform.control.support import Platform, running_platform

EMPTY = {"components": [], "hosts": [], "workers": [], "trouble": ""}
FAILED = {"failed_s": 8.0, "failure": "exit code 1"}


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A control plane with played workers, instead of the model servers of the other platform tests."""
    with running_platform() as running:
        yield running


def test_copies_are_shown_on_their_instances(platform: Platform) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client, InitialInstanceCount=2)
    platform.wait_for(client, "ep", "InService")
    component(client, "c", copies=3, need={**NEED, "NumberOfAcceleratorDevicesRequired": 1})
    until(client, "c", "InService", copies=3)
    seen = read_overview(platform.store, "ep")
    [told] = seen["components"]
    need = {"cpus": 1, "accelerators": 1, "memory_mb": 1024}
    facts = {"name": "c", "variant": "AllTraffic", "model": "m", "status": "InService", "serving": 3, "desired": 3}
    assert facts.items() <= told.items()
    assert (told["need"], told["placement"], told["failure_reason"]) == (need, "SPREAD", "")
    [where] = seen["hosts"]
    assert (where["variant"], where["instance_type"]) == ("AllTraffic", "ml.p3.8xlarge")
    assert where["has"] == {"cpus": 32, "accelerators": 4, "memory_mb": 244 * 1024}
    assert sorted(len(instance["copies"]) for instance in where["instances"]) == [1, 2]
    copies = [copy for instance in where["instances"] for copy in instance["copies"]]
    assert {(copy["component"], copy["state"]) for copy in copies} == {("c", "serving")}
    assert all(copy["need"] == need and copy["log_stream"].startswith("AllTraffic/") for copy in copies)


def test_an_unknown_instance_type_has_no_bounds(platform: Platform) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client)
    platform.wait_for(client, "ep", "InService")
    record = platform.store.get(ENDPOINT, "ep")
    assert record is not None
    revision = record.spec.revision
    variant = {**revision.config["ProductionVariants"][0], "InstanceType": "ml.future.large"}
    changed = evolve(revision, config={**revision.config, "ProductionVariants": [variant]})
    status = evolve(record.status, revisions={revision.number: changed})
    [where] = hosts_json(replace(record, status=status), [])
    assert where["has"] == {"cpus": None, "accelerators": None, "memory_mb": None}


def test_a_component_that_failed_says_why(platform: Platform) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client)
    platform.wait_for(client, "ep", "InService")
    component(client, "c", copies=5, need={**NEED, "NumberOfAcceleratorDevicesRequired": 1})
    until(client, "c", "Failed")
    [told] = read_overview(platform.store, "ep")["components"]
    assert told["status"] == "Failed"
    assert "not enough hardware" in told["failure_reason"]


def test_unreadable_records_hide_no_others(platform: Platform) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client)
    platform.wait_for(client, "ep", "InService")
    component(client, "c")
    until(client, "c", "InService", copies=1)
    record = platform.store.get(ENDPOINT, "ep")
    assert record is not None
    insert_record(platform.store, INFERENCE_COMPONENT, "odd", {"endpoint": "ep", "endpoint_uid": record.uid})
    insert_record(platform.store, WORKER, "odd", {"endpoint_uid": record.uid, "copy": {"component": "odd"}})
    seen = read_overview(platform.store, "ep")
    assert {component["name"]: component["status"] for component in seen["components"]} == {
        "c": "InService",
        "odd": "Failed",
    }
    assert [copy["component"] for instance in seen["hosts"][0]["instances"] for copy in instance["copies"]] == ["c"]


def test_an_endpoint_that_is_no_host_or_unknown_has_no_components(platform: Platform) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client, ModelName="m")
    assert (seen := read_overview(platform.store, "ep")) == {**EMPTY, "workers": seen["workers"]}
    assert read_overview(platform.store, "missing") == EMPTY


def test_workers_are_shown_with_the_times_of_their_life(platform: Platform) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client, ModelName="m")
    platform.wait_for(client, "ep", "InService")
    [worker] = read_overview(platform.store, "ep")["workers"]
    assert (worker["component"], worker["variant"], worker["state"]) == ("", "AllTraffic", "serving")
    assert worker["created_s"] <= worker["ready_s"]
    assert (worker["failed_s"], worker["failure"], worker["waiting"]) == (None, "", "")


@pytest.mark.parametrize(
    ("statuses", "trouble"),
    [
        ([], ""),
        ([{"ready_s": 5.0}], ""),
        ([{"ready_s": 5.0, **FAILED}], "exit code 1"),
        ([{"ready_s": 5.0}, FAILED, {"failed_s": 7.0, "failure": "older"}], "exit code 1"),
        ([FAILED, {"ready_s": 9.0}], ""),
        ([{"ready_s": 5.0}, {"waiting": "It needs 2 GiB."}], "It needs 2 GiB."),
    ],
)
def test_a_failure_or_a_wait_is_trouble_until_another_worker_is_ready(
    platform: Platform, statuses: list[dict[str, Any]], trouble: str
) -> None:
    client = platform.client("sagemaker")
    model(client, "m")
    host(client, ModelName="m")
    platform.wait_for(client, "ep", "InService")
    [worker] = [record for record in platform.store.each(WORKER) if isinstance(record, Record)]
    assert trouble_of([replace(worker, status=ReplicaStatus(**status)) for status in statuses]) == trouble


def test_the_uses_of_a_model_are_its_endpoints_components_and_configurations(platform: Platform) -> None:
    client = platform.client("sagemaker")
    for name in ("m", "part", "unused"):
        model(client, name)
    host(client)
    host(client, "own", ModelName="m")
    platform.wait_for(client, "ep", "InService")
    component(client, "c", model="part")
    uses = read_uses(platform.store)
    assert uses["m"] == {"endpoints": ["own"], "components": [], "configs": ["own"]}
    assert uses["part"] == {"endpoints": [], "components": ["c"], "configs": []}
    assert "unused" not in uses
