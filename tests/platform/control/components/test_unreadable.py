"""An unreadable record affects only its own resource."""

from typing import Any

import pytest

from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.control.api.components import list_inference_components
from headrace.platform.control.api.endpoints import (
    create_endpoint,
    delete_endpoint,
    describe_endpoint,
    list_endpoints,
    update_endpoint,
)
from headrace.platform.control.loops.scraper import CapacityRecorder
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.worker import WORKER
from headrace.platform.host.overview import read_overview
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.broken_records import edit_record
from tests.platform.control.components.scene import Scene


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: {**spec, "revision": "none"},
        lambda spec: {**spec, "revision": {**spec["revision"], "specification": 7}},
        lambda spec: {name: value for name, value in spec.items() if name != "generation"},
        lambda spec: {**spec, "request": None},
        lambda spec: {**spec, "revision": {**spec["revision"], "deployment": ["Alarms"]}},
    ],
)
async def test_an_unreadable_component_affects_only_itself(scene: Scene, change: Any) -> None:
    await scene.host()
    scene.create("sound")
    scene.create("broken", copies=2)
    await scene.settle()
    edit_record(scene.store, INFERENCE_COMPONENT, "broken", spec=change)
    await scene.settle(5)
    assert scene.copies() == {"sound": 1}
    scene.scale("sound", 2)
    await scene.settle()
    assert scene.status("sound") == ("InService", 2)
    with pytest.raises(AwsError, match="cannot be read"):
        scene.scale("broken", 1)
    found = scene.seen("broken")
    assert found["InferenceComponentStatus"] == "Failed"
    assert "Delete the component, and create it again." in found["FailureReason"]
    listed = list_inference_components(scene.context, {"SortBy": "Name", "SortOrder": "Ascending"})
    assert [component["InferenceComponentStatus"] for component in listed["InferenceComponents"]] == [
        "Failed",
        "InService",
    ]
    scene.create("too-many")
    await scene.settle()
    assert "room for 4 copies" in scene.seen("too-many")["FailureReason"], "its copies take their room"
    scene.delete("broken")
    scene.delete("too-many")
    assert scene.seen("broken")["InferenceComponentStatus"] == "Deleting"
    await scene.settle()
    scene.create("broken")
    await scene.settle()
    assert scene.copies() == {"broken": 1, "sound": 2}
    assert len(list(scene.machine.living())) == 3


async def test_an_unreadable_status_affects_only_its_component(scene: Scene) -> None:
    await scene.host()
    scene.create("sound")
    scene.create("broken")
    await scene.settle()
    edit_record(
        scene.store,
        INFERENCE_COMPONENT,
        "broken",
        status=lambda status: {**status, "progress": {**status["progress"], "stable": 77}},
    )
    await scene.settle(5)
    scene.scale("sound", 2)
    await scene.settle()
    assert scene.status("sound") == ("InService", 2)
    assert "revision 77 is not in the status" in scene.seen("broken")["FailureReason"]
    shown = {component["name"]: component["status"] for component in read_overview(scene.store, "ep")["components"]}
    assert shown == {"sound": "InService", "broken": "Failed"}


async def test_a_component_without_an_endpoint_in_its_record_can_be_deleted(scene: Scene) -> None:
    await scene.host()
    scene.create("broken")
    await scene.settle()
    edit_record(
        scene.store,
        INFERENCE_COMPONENT,
        "broken",
        spec=lambda spec: {name: spec[name] for name in ("generation", "revision")},
    )
    await scene.settle(5)
    assert scene.seen("broken")["EndpointName"] == ""
    scene.delete("broken")
    await scene.settle()
    assert scene.store.get(INFERENCE_COMPONENT, "broken") is None
    assert not list(scene.machine.living())


async def test_an_unreadable_component_is_never_rewritten(scene: Scene) -> None:
    await scene.host()
    scene.create("broken")
    await scene.settle()
    edit_record(scene.store, INFERENCE_COMPONENT, "broken", spec=lambda spec: {**spec, "revision": {}})
    await scene.settle(5)
    before = scene.store.revision()
    await scene.settle()
    assert scene.store.revision() == before


@pytest.mark.parametrize(
    "spoil",
    [
        {"spec": lambda spec: {**spec, "copy": {**spec["copy"], "instance": 7}}},
        {"spec": lambda spec: {**spec, "copy": {**spec["copy"], "requirements": None}}},
        {"spec": lambda spec: {name: value for name, value in spec.items() if name != "endpoint_uid"}},
        {"status": lambda status: {**status, "phase": "dreaming"}},
        {"status": lambda status: {**status, "handle": {"launcher": 3}}},
        {"status": lambda status: {**status, "failed_s": "yesterday"}},
    ],
)
async def test_a_copy_with_an_unreadable_record_is_replaced(scene: Scene, spoil: Any) -> None:
    await scene.host()
    scene.create("a")
    scene.create("b")
    await scene.settle()
    (record,) = [worker for worker in scene.store.list(WORKER) if worker.spec.copy.component == "a"]
    edit_record(scene.store, WORKER, record.name, **spoil)
    await scene.settle()
    assert scene.copies() == {"a": 1, "b": 1}
    assert scene.store.get(WORKER, record.name) is None
    await scene.settle(60)
    assert record.name not in scene.machine.workers
    assert len(list(scene.machine.living())) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        {"spec": lambda spec: {**spec, "revision": []}},
        {"spec": lambda _spec: {"generation": 1}},
        {"status": lambda status: {**status, "instances": {"v": "many"}}},
        {"status": lambda status: {**status, "progress": {"state": "Dreaming"}}},
    ],
)
async def test_an_unreadable_endpoint_is_listed_described_and_deleted(scene: Scene, spoil: Any) -> None:
    await scene.host()
    scene.create("c")
    scene.config("other")
    create_endpoint(scene.context, {"EndpointName": "other", "EndpointConfigName": "other"})
    await scene.settle()
    edit_record(scene.store, ENDPOINT, "ep", **spoil)
    await scene.settle(5)
    listed = list_endpoints(scene.context, {"SortBy": "Name", "SortOrder": "Ascending"})["Endpoints"]
    assert [(endpoint["EndpointName"], endpoint["EndpointStatus"]) for endpoint in listed] == [
        ("ep", "Failed"),
        ("other", "InService"),
    ]
    assert "cannot be read" in describe_endpoint(scene.context, {"EndpointName": "ep"})["FailureReason"]
    assert scene.copies() == {"c": 1}, "what runs is left alone"
    for call in (
        lambda: scene.create("d"),
        lambda: update_endpoint(scene.context, {"EndpointName": "ep", "EndpointConfigName": "other"}),
    ):
        with pytest.raises(AwsError, match="cannot be read"):
            call()
    sink = MemorySeries()
    CapacityRecorder(store=scene.store, sink=sink, clock=scene.clock).pass_once()
    assert {dict(metric.dimensions).get("EndpointName") for metric in sink.list()} == {None, "other"}
    assert read_overview(scene.store, "ep")["hosts"] == []
    scene.delete("c")
    await scene.settle()
    delete_endpoint(scene.context, {"EndpointName": "ep"})
    assert describe_endpoint(scene.context, {"EndpointName": "ep"})["EndpointStatus"] == "Deleting"
    await scene.settle()
    assert scene.store.get(ENDPOINT, "ep") is None
    assert scene.store.list(INFERENCE_COMPONENT) == scene.store.list(WORKER) == []
    assert not scene.machine.workers
