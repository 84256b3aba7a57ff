"""Inference components and where they run, in a real browser."""

import json
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import Refused

from .page import Console

pytestmark = pytest.mark.browser

NEED = {"cpus": 1.0, "accelerators": 1.0, "memory_mb": 1024.0}
HAS = {"cpus": 8.0, "accelerators": 4.0, "memory_mb": 61 * 1024.0}


def told(name: str, **more: Any) -> dict[str, Any]:
    facts = {"variant": "AllTraffic", "model": "m", "status": "InService", "serving": 1, "desired": 1, "need": NEED}
    return {"name": name, **facts, "base": "", "placement": "SPREAD", "failure_reason": "", "created_s": 0.0, **more}


def copy(component: str, **more: Any) -> dict[str, Any]:
    stream = f"AllTraffic/{component}-1"
    facts = {"state": "serving", "need": NEED, "host": "127.0.0.1", "gpus": [], "log_stream": stream, "since_s": 0.0}
    return {"component": component, **facts, **more}


def host_of(platform: FakePlatform) -> None:
    """Two instances: three copies on the first, of which one is leaving, none on the second."""
    endpoint = platform.add("host")
    del endpoint["ProductionVariants"][0]["DeployedImages"]
    away = copy("chat", host="10.0.0.7", gpus=[0, 2], log_stream="AllTraffic/chat-2")
    instances = [
        {"id": "i-one", "copies": [copy("chat"), away, copy("big", state="leaving")]},
        {"id": "i-two", "copies": []},
    ]
    platform.overviews["host"] = {
        "components": [
            told("chat", serving=2, desired=3),
            told("big", status="Failed", failure_reason="There is no room."),
            told("legal", base="chat", model="", serving=0, desired=0),
        ],
        "hosts": [{"variant": "AllTraffic", "instance_type": "ml.p3.8xlarge", "has": HAS, "instances": instances}],
    }


@pytest.fixture
def page(driver: webdriver.Chrome, platform: FakePlatform) -> Console:
    host_of(platform)
    opened = Console(driver, platform, "#/host")
    opened.until(lambda: opened.all("#components tr"), "the components")
    return opened


def test_components_are_shown_with_their_requirements_and_failure_reasons(page: Console) -> None:
    rows = page.rows("#components")
    assert rows[0][:5] == ["chat", "InService", "2 of 3", "1 CPU, 1 accelerator, 1 GB", "m"]
    assert rows[1][:2] == ["big", "Failed"]
    assert rows[2] == ["There is no room."]
    assert rows[3] == ["legal", "InService", "", "", "adapter of chat", "Talk\nDelete"]
    assert "1 of 2 instances" in page.text("#variants")
    assert "headrace invoke chat" in page.text("#example")
    page.click("#example button:nth-child(2)")
    assert 'InferenceComponentName="chat"' in page.text("#example")


def test_placement_shows_copies_on_instances_and_how_full_these_are(page: Console) -> None:
    assert page.text("#placement h3") == "Variant AllTraffic: 2 instances of type ml.p3.8xlarge"
    first, second = [text.splitlines() for text in page.texts("#placement .instance")]
    assert first[0] == "i-one"
    assert "3 of 8" in first
    assert "3 of 4" in first
    assert "3 of 61 GB" in first
    assert first[-7:] == ["chat", "serving", "chat", "serving", "on 10.0.0.7, GPU 0, 2", "big", "leaving"]
    assert second == ["i-two", "CPU", "0 of 8", "Accelerators", "0 of 4", "Memory", "0 of 61 GB", "No copies."]
    assert len(page.all("#placement .instance:first-child .taken:first-child rect:not(.free)")) == 3


def test_components_look_as_they_should(page: Console) -> None:
    """With SCREENSHOT_OF_COMPONENTS (a path) it also keeps the picture."""
    page.run("document.getElementById('components-part').scrollIntoView()")
    page.keep_picture("SCREENSHOT_OF_COMPONENTS")


def test_an_endpoint_without_components_shows_nothing_of_them(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("plain")
    page = Console(driver, platform, "#/plain")
    page.until(lambda: page.text("#state") == "InService", "the state")
    assert not page.find("#components-part").is_displayed()
    page.click("#tab-playground")
    assert not page.find("#addressee").is_displayed()


def test_copies_are_set(page: Console, platform: FakePlatform) -> None:
    page.click("[data-act='copies chat']")
    page.fill("#copies-value", "0")
    page.find("#copies-value").send_keys(Keys.ENTER)
    page.until(lambda: "2 of 0" in page.text("#components"), "the new number")
    asked = {"InferenceComponentName": "chat", "DesiredRuntimeConfig": {"CopyCount": 0}}
    assert platform.asked("UpdateInferenceComponentRuntimeConfig") == [asked]
    assert not page.find("#copies-dialog").is_displayed()


def test_a_refusal_is_shown_in_the_dialog(page: Console, platform: FakePlatform) -> None:
    why = 'Cannot update in-progress inference component "chat".'
    platform.refusals["UpdateInferenceComponentRuntimeConfig"] = Refused(why)
    page.click("[data-act='copies chat']")
    page.find("#copies-value").send_keys(Keys.ENTER)
    page.until(lambda: page.text("#copies-error") == why, "the error")


def test_a_component_is_deleted_after_confirmation(page: Console, platform: FakePlatform) -> None:
    page.click("[data-act='delete big']")
    assert page.text("#component-delete-name") == "big"
    page.click("#component-delete-form .danger")
    page.until(lambda: "big" not in page.text("#components"), "the table without it")
    assert platform.asked("DeleteInferenceComponent") == [{"InferenceComponentName": "big"}]


def test_a_component_is_added(page: Console, platform: FakePlatform) -> None:
    page.click("#add-component")
    assert page.text("#deploy-title") == "Deploy a model on host"
    assert not page.find("#instance-type").is_displayed()
    page.find("#model").send_keys("smollm2")
    page.fill("#need-memory", "512")
    page.click("#deploy-submit")
    page.until(lambda: platform.asked("CreateInferenceComponent"), "the call")
    [asked] = platform.asked("CreateInferenceComponent")
    need = {"NumberOfCpuCoresRequired": 1, "MinMemoryRequiredInMb": 512}
    assert asked["Specification"] == {"ModelName": "smollm2", "ComputeResourceRequirements": need}
    assert (asked["EndpointName"], asked["VariantName"]) == ("host", "AllTraffic")
    assert asked["RuntimeConfig"] == {"CopyCount": 1}
    [model] = platform.asked("CreateModel")
    assert model["PrimaryContainer"]["Environment"] == {"HF_MODEL_ID": "smollm2"}
    page.click("#deploy")
    page.click("#advanced summary")
    assert page.find("#instance-type").is_displayed()


def test_the_playground_calls_a_component_by_its_own_path(page: Console, platform: FakePlatform) -> None:
    page.click("#components .doings a")
    page.until(lambda: page.find("#addressee").is_displayed(), "the choice")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()
    page.click("#addressee option[value=big]")
    page.until(lambda: not page.all(".message"), "an empty conversation")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()
    assert platform.components_asked == ["chat", "big"]
    assert platform.prompts[0][0] == "/endpoints/host/inference-components/chat/openai/v1/chat/completions"


def test_the_log_of_a_copy_is_a_click_away(page: Console, platform: FakePlatform) -> None:
    platform.logs |= {"AllTraffic/chat-1": ["one"], "AllTraffic/chat-2": ["two"]}
    page.run("document.querySelectorAll('#placement .instance li a')[1].click()")
    page.until(lambda: page.texts("#lines .what") == ["two"], "the line of that copy")
    assert {call["logGroupName"] for call in platform.asked("GetLogEvents")} == {
        "/aws/sagemaker/InferenceComponents/chat"
    }


def test_a_host_has_the_log_of_its_first_component(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    host_of(platform)
    platform.logs |= {"AllTraffic/chat-1": ["one"]}
    page = Console(driver, platform, "#/host/logs")
    page.until(lambda: page.texts("#lines .what") == ["one"], "the line")
    groups = {call["logGroupName"] for call in platform.asked("DescribeLogStreams")}
    assert groups == {"/aws/sagemaker/InferenceComponents/chat"}


def test_names_and_reasons_are_text_and_never_html(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    host_of(platform)
    overview = platform.overviews["host"]
    overview["components"] = [told(evil, status=evil, model=evil, failure_reason=evil)]
    overview["hosts"][0] |= {"variant": evil, "instance_type": evil}
    overview["hosts"][0]["instances"] = [{"id": evil, "copies": [copy(evil, state=evil, host=evil, log_stream=evil)]}]
    page = Console(driver, platform, "#/host")
    page.until(lambda: page.text("#components").count(evil) == 4, "the texts")
    assert page.text("#placement").count(evil) == 6
    page.click("#components .doings a:nth-child(2)")
    page.until(lambda: evil in page.text("#scaling-command"), "the timeline's hint")
    assert page.all("main script, main img") == []
    page.click("#tab-playground")
    assert page.find("#addressee option").text == evil


@pytest.mark.parametrize("has_served", [True, False])
def test_a_failed_component_is_edited_and_replaced(page: Console, platform: FakePlatform, has_served: bool) -> None:
    if not has_served:
        platform.refusals["UpdateInferenceComponent"] = Refused('Cannot update failed inference component "big".')
    need = {"MinMemoryRequiredInMb": 512, "MaxMemoryRequiredInMb": 900, "NumberOfAcceleratorDevicesRequired": 1}
    scheduling = {"PlacementStrategy": "SPREAD"}
    specification = {"ModelName": "m", "ComputeResourceRequirements": need, "SchedulingConfig": scheduling}
    platform.components["big"] = {"Specification": specification, "RuntimeConfig": {"DesiredCopyCount": 2}}
    environment = {"HF_MODEL_ID": "./wrong", "A": "1"}
    made = [{"Key": "headrace:made-by", "Value": "console"}]
    platform.models["m"] = {"PrimaryContainer": {"Image": "i:1", "Environment": environment}, "Tags": made}
    page.click("[data-act='retry big']")
    page.until(lambda: page.find("#deploy-dialog").is_displayed(), "the form")
    shown = {field: page.find(f"#{field}").get_attribute("value") for field in ("model", "instances", "need-memory")}
    assert shown == {"model": "./wrong", "instances": "2", "need-memory": "512"}
    assert not page.find("#host-variant").is_displayed()
    page.fill("#model", "./right")
    page.fill("#need-accelerators", "0")
    page.fill("#need-memory", "800")
    page.click("#deploy-submit")
    page.until(lambda: not page.find("#deploy-dialog").is_displayed(), "the end")
    [(model, container)] = [
        (name, model["PrimaryContainer"]) for name, model in platform.models.items() if name != "host"
    ]
    assert container == {"Image": "i:1", "Environment": {**environment, "HF_MODEL_ID": "./right"}}
    need = {"MinMemoryRequiredInMb": 800, "MaxMemoryRequiredInMb": 900}
    expected = {"ModelName": model, "ComputeResourceRequirements": need, "SchedulingConfig": scheduling}
    assert platform.components["big"] == {"Specification": expected, "RuntimeConfig": {"DesiredCopyCount": 2}}
    created = [(asked["EndpointName"], asked["VariantName"]) for asked in platform.asked("CreateInferenceComponent")]
    assert created == ([] if has_served else [("host", "AllTraffic")])


def test_a_failed_component_with_its_own_container_gets_a_model(page: Console, platform: FakePlatform) -> None:
    own = {"DeployedImage": {"SpecifiedImage": "i:1"}, "ArtifactUrl": "s3://b/m.tar.gz", "Environment": {"A": "1"}}
    need = {"NumberOfCpuCoresRequired": 2, "MinMemoryRequiredInMb": 512}
    specification = {"Container": own, "ComputeResourceRequirements": need}
    platform.components["big"] = {"Specification": specification, "RuntimeConfig": {"DesiredCopyCount": 1}}
    page.click("[data-act='retry big']")
    page.until(lambda: page.find("#deploy-dialog").is_displayed(), "the form")
    page.click("#deploy-submit")
    page.until(lambda: not page.find("#deploy-dialog").is_displayed(), "the end")
    updated = platform.components["big"]["Specification"]
    assert updated == {"ModelName": updated["ModelName"], "ComputeResourceRequirements": need}
    container = {"Image": "i:1", "ModelDataUrl": "s3://b/m.tar.gz", "Environment": {"A": "1"}}
    assert platform.models[updated["ModelName"]]["PrimaryContainer"] == container


def test_a_failed_adapter_is_edited_by_a_command(page: Console, platform: FakePlatform) -> None:
    artifact = {"ArtifactUrl": "s3://b/a.tar.gz"}
    specification = {"BaseInferenceComponentName": "chat", "Container": artifact}
    platform.components["big"] = {"Specification": specification, "RuntimeConfig": {"DesiredCopyCount": 0}}
    page.click("[data-act='retry big']")
    page.until(lambda: "An adapter" in page.text("#components-error"), "why not")
    command = page.text("#components-commands code")
    assert command.startswith("aws sagemaker update-inference-component --inference-component-name big")
    assert json.loads(command[command.index("'") + 1 : -1]) == specification
