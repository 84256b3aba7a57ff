"""Adapter components: created, loaded into the copies of their base, updated and deleted; workers answer by script."""

import json
from typing import Any

import pytest

from headrace.platform.autoscaling.api.targets import register_scalable_target
from headrace.platform.control.api.components import (
    create_inference_component,
    delete_inference_component,
    list_inference_components,
    update_inference_component,
)
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.routes import ROUTE, AdapterRoute
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.components.scene import NEED, Scene


class Servers:
    """The adapter routes of all workers: what each has loaded, and the answers that a test scripts."""

    def __init__(self) -> None:
        self.loaded: dict[str, dict[str, str]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        """The answer to a load, by location of the artifacts."""

    async def call(self, url: str, request: Any) -> tuple[int, bytes]:
        adapters = self.loaded.setdefault(url, {})
        if request.method == "DELETE":
            return (200 if adapters.pop(request.path.rpartition("/")[2], None) else 404), b"{}"
        body = json.loads(request.body)
        if refusal := self.refusals.get(body["src"]):
            return refusal[0], json.dumps({"error": refusal[1]}).encode()
        adapters[body["name"]] = body["src"]
        return 200, b'{"status": "registered"}'


@pytest.fixture
async def servers(scene: Scene) -> Servers:
    made = Servers()
    scene.reconciler.adapters.call = made.call
    await scene.host()
    scene.create("base", copies=2)
    await settle(scene)
    return made


async def settle(scene: Scene, seconds: float = 4.0) -> None:
    for _ in range(int(seconds * 2)):
        await scene.settle(0.5)
        await scene.reconciler.adapters.settled()


def adapter(scene: Scene, name: str = "a", url: str = "s3://b/a.tar.gz", **more: Any) -> None:
    specification = {"BaseInferenceComponentName": "base", "Container": {"ArtifactUrl": url}}
    params = {"InferenceComponentName": name, "EndpointName": "ep", "Specification": specification, **more}
    create_inference_component(scene.context, params)


def state(scene: Scene, name: str = "a") -> str:
    return str(scene.seen(name)["InferenceComponentStatus"])


def routed(scene: Scene, name: str = "a") -> Any:
    route = scene.store.get(ROUTE, "ep")
    assert route is not None
    return next(component.route for component in route.spec.components if component.name == name)


async def test_an_adapter_is_in_service_once_all_copies_of_its_base_have_loaded_it(
    scene: Scene, servers: Servers
) -> None:
    adapter(scene)
    assert state(scene) == "Creating"
    await settle(scene)
    assert state(scene) == "InService"
    assert [list(loaded.items()) for loaded in servers.loaded.values()] == [[("a", "s3://b/a.tar.gz")]] * 2
    assert routed(scene).adapter == AdapterRoute(name="a", base="base")
    assert routed(scene).fleets == routed(scene, "base").fleets
    seen = scene.seen("a")
    assert seen["Specification"] == {
        "BaseInferenceComponentName": "base",
        "Container": {"ArtifactUrl": "s3://b/a.tar.gz"},
    }
    assert seen["VariantName"] == "v"
    assert "RuntimeConfig" not in seen
    listed = list_inference_components(scene.context, {"EndpointNameEquals": "ep"})["InferenceComponents"]
    assert sorted(found["InferenceComponentName"] for found in listed) == ["a", "base"]
    assert len(scene.machine.living()) == 2


async def test_copies_that_start_later_load_it_before_they_get_its_requests(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)
    scene.scale("base", 3)
    await settle(scene)
    assert len(servers.loaded) == 3
    assert all("a" in loaded for loaded in servers.loaded.values())
    assert scene.copies() == {"base": 3, "a": 3}


async def test_an_update_of_the_base_never_leaves_an_adapter_without_a_copy(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)
    scene.update("base", "n")
    for _ in range(60):
        await scene.settle(0.5)  # the load is recorded after the pass that gave its copy traffic
        routes = [fleet for fleet in routed(scene).fleets if fleet.share > 0]
        assert any(fleet.replicas for fleet in routes)
        await scene.reconciler.adapters.settled()
    assert scene.seen("base")["Specification"]["ModelName"] == "n"
    assert scene.status("base") == ("InService", 2)
    assert scene.copies()["a"] == 2


async def test_requests_wait_for_an_adapter_whose_base_sleeps_at_zero(scene: Scene, servers: Servers) -> None:
    scene.scale("base", 0)
    await settle(scene, 8)
    adapter(scene)
    await settle(scene)
    assert state(scene) == "InService"
    assert routed(scene).standby
    scene.scale("base", 1)
    await settle(scene)
    assert scene.copies() == {"base": 1, "a": 1}
    assert not routed(scene).standby


async def test_an_adapter_that_a_copy_refuses_has_failed_with_the_servers_reason(
    scene: Scene, servers: Servers
) -> None:
    servers.refusals["s3://b/a.tar.gz"] = (400, "It is a DoRA.")
    adapter(scene)
    await settle(scene)
    assert state(scene) == "Failed"
    assert scene.seen("a")["FailureReason"] == "It is a DoRA."
    assert scene.copies() == {"base": 2, "a": 0}
    assert not routed(scene).standby


async def test_an_answer_that_may_change_is_tried_again(scene: Scene, servers: Servers) -> None:
    servers.refusals["s3://b/a.tar.gz"] = (503, "It is loading.")
    adapter(scene)
    await settle(scene)
    assert state(scene) == "Creating"
    servers.refusals.clear()
    await settle(scene, 12)
    assert state(scene) == "InService"


async def test_an_adapter_that_no_copy_loads_in_time_has_failed(scene: Scene, servers: Servers) -> None:
    servers.refusals["s3://b/a.tar.gz"] = (503, "It is loading.")
    adapter(scene)
    await settle(scene, 1)
    scene.clock.advance(1500)
    await settle(scene, 2)
    assert state(scene) == "Failed"
    assert "within 1440 s. It is loading." in scene.seen("a")["FailureReason"]


async def test_an_update_replaces_the_artifacts_or_is_rolled_back(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)

    def update(url: str) -> None:
        specification = {"BaseInferenceComponentName": "base", "Container": {"ArtifactUrl": url}}
        update_inference_component(scene.context, {"InferenceComponentName": "a", "Specification": specification})

    update("s3://b/two.tar.gz")
    assert state(scene) == "Updating"
    await settle(scene)
    assert state(scene) == "InService"
    assert [loaded["a"] for loaded in servers.loaded.values()] == ["s3://b/two.tar.gz"] * 2
    servers.refusals["s3://b/bad.tar.gz"] = (400, "It is broken.")
    update("s3://b/bad.tar.gz")
    await settle(scene)
    seen = scene.seen("a")
    assert (seen["InferenceComponentStatus"], seen["FailureReason"]) == ("InService", "It is broken.")
    assert seen["Specification"]["Container"]["ArtifactUrl"] == "s3://b/two.tar.gz"
    assert scene.copies()["a"] == 2


async def test_a_deleted_adapter_is_unloaded_and_its_base_stays(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)
    scene.delete("a")
    await settle(scene)
    assert all(not loaded for loaded in servers.loaded.values())
    with pytest.raises(AwsError, match="Could not find inference component"):
        scene.seen("a")
    assert scene.copies() == {"base": 2}
    scene.delete("base")
    await settle(scene)
    assert not scene.machine.living()


async def test_adapters_are_deleted_with_their_base(scene: Scene, servers: Servers) -> None:
    scene.create("other", copies=1)
    adapter(scene)
    adapter(scene, "b")
    await settle(scene)
    delete_inference_component(scene.context, {"InferenceComponentName": "base"})
    assert (state(scene), state(scene, "b")) == ("Deleting", "Deleting")
    await settle(scene)
    listed = list_inference_components(scene.context, {})["InferenceComponents"]
    assert [component["InferenceComponentName"] for component in listed] == ["other"]
    assert scene.copies() == {"other": 1}


async def test_a_copy_that_does_not_answer_delays_a_deletion_for_a_bounded_time(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)

    async def fail(_url: str, _request: Any) -> tuple[int, bytes]:
        return 503, b"no"

    scene.reconciler.adapters.call = fail
    scene.delete("a")
    await settle(scene)
    assert state(scene) == "Deleting"
    scene.clock.advance(200)
    await settle(scene, 1)
    with pytest.raises(AwsError, match="Could not find"):
        scene.seen("a")


async def test_a_worker_forgets_no_adapter_over_a_restart_of_the_platform(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)
    states = [record.status.adapters["a"].loaded for record in scene.store.list(WORKER)]
    assert len(set(states)) == 1
    assert states[0].endswith("/1")


BASE = {"BaseInferenceComponentName": "base"}
ARTIFACTS = {"Container": {"ArtifactUrl": "s3://b/a"}}


@pytest.mark.parametrize(
    ("specification", "more", "named"),
    [
        (BASE, {}, "Container.ArtifactUrl is missing"),
        ({**BASE, **ARTIFACTS, "ComputeResourceRequirements": NEED}, {}, "ComputeResourceRequirements given"),
        ({**BASE, **ARTIFACTS, "ModelName": "m"}, {}, "ModelName given"),
        ({**BASE, "Container": {"ArtifactUrl": "s3://b/a", "Image": "i"}}, {}, "Container.Image given"),
        ({**BASE, **ARTIFACTS}, {"RuntimeConfig": {"CopyCount": 1}}, "RuntimeConfig given"),
        ({**BASE, **ARTIFACTS}, {"VariantName": "other"}, "VariantName is other"),
        ({**ARTIFACTS, "BaseInferenceComponentName": "none"}, {}, "Could not find inference component"),
        ({**ARTIFACTS, "BaseInferenceComponentName": "first"}, {}, "is an adapter itself"),
    ],
)
async def test_what_an_adapter_cannot_have_is_refused(
    scene: Scene, servers: Servers, specification: Any, more: Any, named: str
) -> None:
    adapter(scene, "first")
    params = {"InferenceComponentName": "a", "EndpointName": "ep", "Specification": specification, **more}
    with pytest.raises(AwsError) as refused:
        create_inference_component(scene.context, params)
    assert named in refused.value.message


async def test_an_adapter_has_no_copies_to_scale_and_keeps_its_base(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)
    with pytest.raises(AwsError, match="Change the copies of its base base instead"):
        scene.scale("a", 2)
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": "inference-component/a",
        "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
        "MinCapacity": 0,
        "MaxCapacity": 2,
    }
    with pytest.raises(AwsError, match="inference-component/a is an adapter"):
        register_scalable_target(scene.context, target)
    other = {"ModelName": "m", "ComputeResourceRequirements": NEED}
    with pytest.raises(AwsError, match="BaseInferenceComponentName is missing; expected base"):
        update_inference_component(scene.context, {"InferenceComponentName": "a", "Specification": other})


async def test_an_update_of_an_adapter_names_only_what_changes(scene: Scene, servers: Servers) -> None:
    adapter(scene)
    await settle(scene)
    for given in (
        {"Container": {"ArtifactUrl": "s3://b/new.tar.gz"}},
        {"BaseInferenceComponentName": "BASE", "Container": {"ArtifactUrl": "s3://b/newer.tar.gz"}},
        {"BaseInferenceComponentName": "base"},
    ):
        update_inference_component(scene.context, {"InferenceComponentName": "a", "Specification": given})
        await settle(scene)
        assert state(scene) == "InService"
        found = scene.record("a").spec.revision
        assert found.base.lower() == "base"
        url = given.get("Container", {}).get("ArtifactUrl", "s3://b/newer.tar.gz")
        assert found.artifact_url == url
        assert [set(adapters.values()) for adapters in servers.loaded.values()] == [{url}, {url}]
