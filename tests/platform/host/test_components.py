"""Inference components on a real platform, over boto3: real processes of a dumb server, and nothing is mocked."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.waiting import WAIT_S

from .component_scene import NEED, Scene, dumb_up
from .running import until


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    running = dumb_up(tmp_path_factory.mktemp("components") / "data")
    made = Scene(running)
    made.model("red")
    made.model("blue")
    made.model("broken", FAILS="It does not want to.")
    made.model("slow", PING_AFTER_S="1.5")
    yield made
    assert running.stop() == 0, running.log()


@pytest.fixture
def host(scene: Scene, request: pytest.FixtureRequest) -> Iterator[str]:
    """An endpoint for components, of this test alone."""
    name = request.node.name.replace("_", "-")[:50].rstrip("-")
    scene.host(name)
    yield name
    scene.clear(name)


def test_models_behind_one_endpoint_answer_by_their_names(scene: Scene, host: str) -> None:
    for name, model in (("a", "red"), ("b", "blue"), ("c", "red")):
        scene.create(name, host, model)
    for name, model in (("a", "red"), ("b", "blue"), ("c", "red")):
        scene.until_up(name)
        assert scene.ask(name, host)["name"] == model
        assert [line["name"] for line in scene.stream(name, host)] == [model] * 3
    assert scene.ask("a", host)["pid"] != scene.ask("c", host)["pid"]
    with pytest.raises(ClientError, match="ValidationError"):
        scene.ask("missing", host)
    with pytest.raises(ClientError, match="Inference Component Name header is required"):
        scene.runtime.invoke_endpoint(EndpointName=host, Body=b"{}")


def test_components_are_listed_filtered_and_paged(scene: Scene, host: str) -> None:
    for number in range(5):
        scene.create(f"listed-{number}", host, "red", copies=0)
        scene.until_up(f"listed-{number}", 0)
    assert scene.names(EndpointNameEquals="another") == []
    assert len(scene.names(EndpointNameEquals=host, VariantNameEquals="v")) == 5
    assert scene.names(EndpointNameEquals=host, VariantNameEquals="w") == []
    assert scene.names(NameContains="listed-3") == ["listed-3"]
    assert scene.names(EndpointNameEquals=host, StatusEquals="Failed") == []
    paginator = scene.sagemaker.get_paginator("list_inference_components")
    pages = list(
        paginator.paginate(
            EndpointNameEquals=host, SortBy="Name", SortOrder="Ascending", PaginationConfig={"PageSize": 2}
        )
    )
    assert [len(page["InferenceComponents"]) for page in pages] == [2, 2, 1]
    names = [component["InferenceComponentName"] for page in pages for component in page["InferenceComponents"]]
    assert names == [f"listed-{number}" for number in range(5)]


def test_a_component_is_deployed_and_removed_from_a_shell(scene: Scene) -> None:
    options = ("--image", "dumb", "--env", "NAME=shelled", "--url", scene.running.url)
    done = scene.running.headrace("deploy", "smollm2", "--name", "shelled", "--component-of", "shell-host", *options)
    assert done.returncode == 0, done.stderr
    assert "1 copy ready" in done.stderr
    assert scene.ask("shelled", "shell-host")["name"] == "shelled"
    for flags in ((), ("--stream",)):
        asked = scene.running.headrace("invoke", "shelled", "{}", "--raw", *flags, "--url", scene.running.url)
        assert '"shelled"' in asked.stdout, asked.stderr
    unnamed = scene.running.headrace("invoke", "shell-host", "{}", "--url", scene.running.url)
    assert "Invoke one of them: shelled." in unnamed.stderr
    arn = scene.seen("shelled")["InferenceComponentArn"]
    scene.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "blue"}])
    tags = {tag["Key"]: tag["Value"] for tag in scene.sagemaker.list_tags(ResourceArn=arn)["Tags"]}
    assert tags == {"headrace:made-by": "headrace deploy", "team": "blue"}
    gone = scene.running.headrace("rm", "shell-host", "shelled", "--url", scene.running.url)
    assert gone.returncode == 0, gone.stderr
    assert "shell-host" not in endpoints(scene)
    assert "shelled" not in scene.names()


def test_copies_are_added_and_removed_under_load_and_no_request_fails(scene: Scene, host: str) -> None:
    scene.create("scaled", host, "red")
    scene.until_up("scaled")
    with scene.load("scaled", host) as load:
        for copies in (3, 1, 2):
            load.more(5)
            scene.scale("scaled", copies)
            scene.until_up("scaled", copies)
        load.more(5)
    assert set(load.answers) == {"red"}


def test_an_instance_that_is_removed_is_emptied_under_load_and_no_request_fails(scene: Scene) -> None:
    scene.host("shrunk", InitialInstanceCount=2)
    scene.create("moved", "shrunk", "red", copies=2)
    scene.until_up("moved", 2)
    before = pids(scene, "shrunk", "moved")
    with scene.load("moved", "shrunk") as load:
        load.more(3)
        scene.sagemaker.update_endpoint_weights_and_capacities(
            EndpointName="shrunk", DesiredWeightsAndCapacities=[{"VariantName": "v", "DesiredInstanceCount": 1}]
        )
        (variant,) = until(
            lambda: [
                variant
                for variant in scene.endpoint("shrunk")["ProductionVariants"]
                if variant["CurrentInstanceCount"] == 1
            ],
            "one instance is left",
        )
        assert variant["DesiredInstanceCount"] == 1
        scene.until_up("moved", 2)
        load.more(3)
    assert len(pids(scene, "shrunk", "moved") & before) == 1, "one copy stayed, one was moved"
    scene.clear("shrunk")


def test_an_update_rolls_over_the_copies_and_no_request_fails(scene: Scene, host: str) -> None:
    scene.create("rolled", host, "red", copies=3)
    scene.until_up("rolled", 3)
    with scene.load("rolled", host) as load:
        load.more(5)
        scene.update("rolled", "blue")
        assert scene.seen("rolled")["InferenceComponentStatus"] == "Updating"
        load.more(5, "blue")
        scene.until_up("rolled", 3)
        assert load.answers["red"]
        scene.ask("rolled", host)
    assert {scene.ask("rolled", host)["name"] for _ in range(5)} == {"blue"}
    found = scene.seen("rolled")
    assert found["Specification"]["ModelName"] == "blue"
    assert found["LastDeploymentConfig"]["RollingUpdatePolicy"]["WaitIntervalInSeconds"] == 0


def test_a_broken_update_is_rolled_back_without_a_failed_request(scene: Scene, host: str) -> None:
    scene.create("kept", host, "red", copies=2)
    scene.until_up("kept", 2)
    with scene.load("kept", host) as load:
        load.more(3)
        scene.update("kept", "broken")
        until(lambda: "FailureReason" in scene.seen("kept"), "it was taken back")
        scene.until_up("kept", 2)
        load.more(3)
    assert set(load.answers) == {"red"}
    assert "It does not want to." in scene.seen("kept")["FailureReason"]
    assert scene.seen("kept")["Specification"]["ModelName"] == "red"
    scene.update("kept", "blue")
    scene.until_up("kept", 2)
    assert scene.ask("kept", host)["name"] == "blue"


def test_an_alarm_rolls_back_the_update_of_a_component_and_of_an_endpoint(scene: Scene, host: str) -> None:
    cloudwatch = scene.running.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="errors",
        Namespace="Mine",
        MetricName="Errors",
        Statistic="Maximum",
        Period=10,
        EvaluationPeriods=1,
        Threshold=1.0,
        ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="notBreaching",
    )
    plain_endpoint(scene, "plain", "red", "blue")
    scene.create("watched", host, "red", copies=2)
    scene.until_up("watched", 2)
    scene.update("watched", "blue", wait_s=600, alarm="errors")
    scene.sagemaker.update_endpoint(
        EndpointName="plain",
        EndpointConfigName="plain-blue",
        DeploymentConfig={
            "BlueGreenUpdatePolicy": {
                "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 600}
            },
            "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
        },
    )
    with scene.load("watched", host) as load:
        load.more(1, "blue")
        until(lambda: variant_word(scene, "plain") == "Baking", "the endpoint's update bakes")

        def is_back() -> bool:
            datum = {"MetricName": "Errors", "Value": 9.0, "StorageResolution": 1}
            cloudwatch.put_metric_data(Namespace="Mine", MetricData=[datum])
            return "FailureReason" in scene.seen("watched") and "FailureReason" in scene.endpoint("plain")

        until(is_back, "both were taken back")
        scene.until_up("watched", 2)
        until(lambda: scene.endpoint("plain")["EndpointStatus"] == "InService", "the endpoint serves")
    reason = "Alarm errors of AutoRollbackConfiguration is in ALARM."
    assert scene.seen("watched")["FailureReason"] == scene.endpoint("plain")["FailureReason"] == reason
    assert {scene.ask("watched", host)["name"] for _ in range(4)} == {"red"}
    assert scene.endpoint("plain")["EndpointConfigName"] == "plain-red"
    cloudwatch.delete_alarms(AlarmNames=["errors"])
    scene.sagemaker.delete_endpoint(EndpointName="plain")


def plain_endpoint(scene: Scene, name: str, *models: str) -> None:
    """An endpoint with a model of its own, the first one; configurations for the others."""
    for model in models:
        variant = {"VariantName": "v", "ModelName": model, "InitialInstanceCount": 1, "InstanceType": "ml.m5.large"}
        scene.sagemaker.create_endpoint_config(EndpointConfigName=f"{name}-{model}", ProductionVariants=[variant])
    scene.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=f"{name}-{models[0]}")
    until(lambda: scene.endpoint(name)["EndpointStatus"] == "InService", f"{name} is in service")


def variant_word(scene: Scene, endpoint: str) -> str:
    (variant,) = scene.endpoint(endpoint).get("PendingDeploymentSummary", {}).get("ProductionVariants") or [{}]
    return str((variant.get("VariantStatus") or [{}])[0].get("Status"))


def test_a_component_at_zero_is_woken_by_a_request(scene: Scene, host: str) -> None:
    scene.create("sleeper", host, "red")
    scene.until_up("sleeper")
    scene.scale("sleeper", 0)
    scene.until_up("sleeper", 0)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(scene.ask("sleeper", host)["name"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == ["red"] * 4
    scene.until_up("sleeper", 1)


def test_a_killed_copy_is_replaced(scene: Scene, host: str) -> None:
    scene.create("hurt", host, "red", copies=2)
    scene.until_up("hurt", 2)
    before = pids(scene, host)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    until(lambda: len(now := pids(scene, host)) == 2 and min(before) not in now, "another copy serves")
    scene.until_up("hurt", 2)


def pids(scene: Scene, host: str, component: str = "hurt") -> set[int]:
    """The processes of the copies that answer, from enough requests to reach each; a killed one may cost a request."""
    found = set()
    for _ in range(40):
        with suppress(ClientError):
            found.add(scene.ask(component, host)["pid"])
    return found


def test_a_component_can_be_deleted_while_it_is_created_or_updated(scene: Scene, host: str) -> None:
    scene.create("made", host, "slow")
    scene.create("changed", host, "red")
    scene.create("growing", host, "red")
    scene.until_up("changed")
    scene.until_up("growing")
    scene.update("changed", "slow")
    scene.scale("growing", 4)
    for name in ("made", "changed", "growing"):
        scene.delete(name)
        assert scene.seen(name)["InferenceComponentStatus"] == "Deleting"
        scene.delete(name)
    with pytest.raises(ClientError, match="in-progress"):
        scene.scale("made", 2)
    scene.until_gone("made", "changed", "growing")
    with pytest.raises(ClientError, match="Could not find inference component"):
        scene.delete("made")
    scene.create("made", host, "red")
    scene.until_up("made")


def test_an_endpoint_is_deleted_only_after_its_components(scene: Scene) -> None:
    scene.host("last")
    for name in ("last-1", "last-2"):
        scene.create(name, "last", "red")
        scene.until_up(name)
    with pytest.raises(ClientError, match="Cannot delete endpoint with inference component associated"):
        scene.sagemaker.delete_endpoint(EndpointName="last")
    outcomes: list[str] = []

    def away(call: Any, **names: str) -> None:
        try:
            call(**names)
            outcomes.append("done")
        except ClientError as error:
            outcomes.append(error.response["Error"]["Message"])

    calls: list[tuple[Any, dict[str, str]]] = [
        (scene.sagemaker.delete_inference_component, {"InferenceComponentName": name})
        for name in ("last-1", "last-1", "last-2", "last-2")
    ]
    calls += [(scene.sagemaker.delete_endpoint, {"EndpointName": "last"})] * 2
    threads = [threading.Thread(target=away, args=(call,), kwargs=names) for call, names in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    allowed = ("done", "Could not find", "Cannot delete endpoint with inference component")
    assert all(outcome.startswith(allowed) for outcome in outcomes), outcomes
    scene.until_gone("last-1", "last-2")
    with_endpoint = any(
        endpoint["EndpointName"] == "last" for endpoint in scene.sagemaker.list_endpoints()["Endpoints"]
    )
    if with_endpoint:
        scene.sagemaker.delete_endpoint(EndpointName="last")
    until(lambda: "last" not in endpoints(scene), "the endpoint is gone")


def endpoints(scene: Scene) -> list[str]:
    return [endpoint["EndpointName"] for endpoint in scene.sagemaker.list_endpoints()["Endpoints"]]


def test_a_platform_that_is_killed_amid_changes_finishes_them(tmp_path: Path) -> None:
    scene = Scene(dumb_up(tmp_path / "data"))
    try:
        scene.model("red")
        scene.model("slow", PING_AFTER_S="1.5")
        scene.host("host")
        for name in ("growing", "rolling", "leaving"):
            scene.create(name, "host", "red")
        for name in ("growing", "rolling", "leaving"):
            scene.until_up(name)
        kept = scene.ask("growing", "host")["pid"]
        scene.scale("growing", 3)
        scene.update("rolling", "slow")
        scene.delete("leaving")
        scene.create("coming", "host", "slow")
        until(lambda: workers_of(scene, "coming"), "a copy was started")
        scene.running.kill()
        scene.running.close()
        scene = Scene(dumb_up(tmp_path / "data"))
        scene.until_up("growing", 3)
        scene.until_up("rolling")
        scene.until_up("coming")
        scene.until_gone("leaving")
        assert kept in pids(scene, "host", "growing"), "it was adopted"
        assert scene.ask("rolling", "host")["name"] == "slow"
        assert scene.ask("coming", "host")["name"] == "slow"
    finally:
        assert scene.running.stop() == 0, scene.running.log()


def workers_of(scene: Scene, component: str) -> list[Path]:
    return list((scene.running.folder / "workers").glob(f"{component}-*"))


def test_strict_refuses_what_sagemaker_refuses(tmp_path: Path) -> None:
    scene = Scene(dumb_up(tmp_path / "data", "--strict"))
    try:
        scene.model("slow", PING_AFTER_S="2")
        scene.host("host", "ml.m5.large")
        with pytest.raises(ClientError, match="copy count an integer larger than 0"):
            scene.create("c", "host", "slow", copies=0)
        with pytest.raises(ClientError, match=r"needs 3 CPU cores.*has 2"):
            scene.create("c", "host", "slow", need={**NEED, "NumberOfCpuCoresRequired": 3})
        scene.create("c", "host", "slow")
        with pytest.raises(ClientError, match="Cannot create already existing inference component"):
            scene.create("c", "host", "slow")
        with pytest.raises(ClientError, match="Cannot delete in-progress inference component"):
            scene.delete("c")
        with pytest.raises(ClientError, match="Cannot update in-progress inference component"):
            scene.scale("c", 2)
        scene.until_up("c")
        scene.scale("c", 0)
        scene.until_up("c", 0)
        with pytest.raises(ClientError):
            scene.ask("c", "host")
        scene.delete("c")
        scene.until_gone("c")
    finally:
        assert scene.running.stop() == 0, scene.running.log()
