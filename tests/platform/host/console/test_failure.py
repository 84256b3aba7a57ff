"""An endpoint that failed: the reason, the end of its log, and another attempt, in a real browser."""

import pytest
from selenium import webdriver

from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import Refused

from .page import Console

pytestmark = pytest.mark.browser

CAUSE = "The model ./wrong has no config.json."
REASON = (
    "The primary container did not pass the ping health check. Please check CloudWatch logs for this endpoint. "
    f"Reason: {CAUSE}\nIts log (/aws/sagemaker/Endpoints/chat, stream s) ends with:\nline 28\nline 29"
)
IMAGE = "my-image:1"


@pytest.fixture
def page(driver: webdriver.Chrome, platform: FakePlatform) -> Console:
    """The page of an endpoint that failed, made by `headrace deploy`."""
    platform.add("chat", "Failed", FailureReason=REASON)
    environment = {"HF_MODEL_ID": "./wrong", "MAX_TOTAL_TOKENS": "512"}
    platform.models["chat"] = {"PrimaryContainer": {"Image": IMAGE, "Environment": environment}}
    variant = {"InitialInstanceCount": 2, "InstanceType": "ml.m5.xlarge", "InitialVariantWeight": 3.0}
    platform.configs["chat"]["variants"][0] |= variant
    platform.configs["chat"]["tags"] = [{"Key": "headrace:made-by", "Value": "headrace deploy"}]
    platform.logs["AllTraffic/i-1"] = [f"line {number}" for number in range(30)]
    opened = Console(driver, platform, "#/chat")
    opened.until(lambda: opened.find("#failure").is_displayed(), "what to do now")
    return opened


def test_the_reason_comes_first_with_the_end_of_the_log(page: Console) -> None:
    assert page.text("#reason strong") == CAUSE
    assert "ping health check" in page.text("#reason")
    assert "line 28" not in page.text("#reason")
    page.until(lambda: page.text("#rows .why") == CAUSE, "the cause in the list")
    page.until(lambda: len(page.all("#failure-lines > div")) == 12, "the lines")
    assert page.texts("#failure-lines .what")[-1] == "line 29"


def test_edit_and_retry_replaces_the_failed_endpoint(page: Console, platform: FakePlatform) -> None:
    page.click("#retry")
    page.until(lambda: page.find("#deploy-dialog").is_displayed(), "the form")
    fields = ("model", "instances", "instance-type", "image")
    shown = {field: page.find(f"#{field}").get_attribute("value") for field in fields}
    assert shown == {"model": "./wrong", "instances": "2", "instance-type": "ml.m5.xlarge", "image": IMAGE}
    assert page.find("#environment").get_attribute("value") == "MAX_TOTAL_TOKENS=512"
    assert page.find("#endpoint-name").get_attribute("readonly")
    page.fill("#model", "./right")
    page.click("#deploy-submit")
    page.until(lambda: page.text("#state") == "Creating", "the new endpoint")
    assert not page.find("#failure").is_displayed()
    page.until(lambda: (len(platform.configs), len(platform.models)) == (1, 1), "the end of the old parts")
    [model] = platform.models.values()
    environment = {"HF_MODEL_ID": "./right", "MAX_TOTAL_TOKENS": "512"}
    assert model["PrimaryContainer"] == {"Image": IMAGE, "Environment": environment}
    [(name, config)] = platform.configs.items()
    [variant] = config["variants"]
    assert (variant["InitialInstanceCount"], variant["InitialVariantWeight"]) == (2, 3.0)
    assert (variant["ModelName"], platform.endpoints["chat"]["EndpointConfigName"]) == (name, name)
    page.click("#deploy")
    assert page.find("#model").get_attribute("value") == ""


def test_a_mistake_in_the_retry_leaves_the_failed_endpoint(page: Console, platform: FakePlatform) -> None:
    platform.refusals["CreateEndpointConfig"] = Refused("The instance type is unknown.")
    page.click("#retry")
    page.until(lambda: page.find("#deploy-dialog").is_displayed(), "the form")
    page.click("#deploy-submit")
    page.until(lambda: page.text("#deploy-error") == "The instance type is unknown.", "the error")
    assert list(platform.models) == ["chat"]
    assert "chat" in platform.endpoints


def test_a_failed_endpoint_shows_no_charts_and_no_calls(page: Console) -> None:
    assert not page.find("#charts").is_displayed()
    assert not page.find("#example").is_displayed()
    assert page.find("#variants").is_displayed()


def test_each_variant_is_edited_and_all_are_replaced(page: Console, platform: FakePlatform) -> None:
    archive = {"Image": IMAGE, "ModelDataUrl": "s3://b/m.tar.gz", "ContainerHostname": "own", "Environment": {"A": "1"}}
    platform.models["second"] = {"Containers": [archive], "EnableNetworkIsolation": True}
    serverless = {"MemorySizeInMB": 2048, "MaxConcurrency": 2}
    variants = platform.configs["chat"]["variants"]
    variants.append({"VariantName": "b", "ModelName": "second", "ServerlessConfig": serverless})
    outcome = {"OutputConfig": {"S3OutputPath": "s3://b/out"}}
    platform.configs["chat"]["others"] = {"AsyncInferenceConfig": outcome}
    page.click("#retry")
    page.until(lambda: page.find("#deploy-dialog").is_displayed(), "the form")
    page.fill("#model", "./right")
    page.choose("#part", "b")
    assert page.find("#model").get_attribute("value") == "s3://b/m.tar.gz"
    assert not page.find("#instance-type").is_displayed()
    page.run("arguments[0].value = 'A=2'", page.find("#environment"))
    page.choose("#part", "AllTraffic")
    assert page.find("#model").get_attribute("value") == "./right"
    page.click("#deploy-submit")
    page.until(lambda: page.text("#state") == "Creating", "the new endpoint")
    page.until(lambda: len(platform.configs) == 1 and len(platform.models) == 2, "the end of the old parts")
    [config] = platform.configs.values()
    assert config["others"] == {"AsyncInferenceConfig": outcome}
    first, second = config["variants"]
    assert (second["VariantName"], second["ServerlessConfig"]) == ("b", serverless)
    assert "InstanceType" not in second
    assert platform.models[first["ModelName"]]["PrimaryContainer"]["Environment"]["HF_MODEL_ID"] == "./right"
    assert platform.models[second["ModelName"]]["PrimaryContainer"] == {**archive, "Environment": {"A": "2"}}
    assert platform.models[second["ModelName"]]["EnableNetworkIsolation"] is True


def test_what_the_form_cannot_show_is_told_with_the_command(page: Console, platform: FakePlatform) -> None:
    for why, prepare, command in (
        ("while it has inference components", lambda: put_component(platform), "headrace rm part"),
        ("chat was deleted", platform.models.clear, "headrace deploy MODEL --name chat"),
        ("configuration chat was deleted", platform.configs.clear, "headrace deploy MODEL --name chat"),
    ):
        prepare()
        page.click("#retry")
        page.until(lambda why=why: why in page.text("#failure-error"), why)
        assert page.text("#failure-commands code") == command
        platform.overviews.clear()


def put_component(platform: FakePlatform) -> None:
    need = {"cpus": 1.0, "accelerators": 0.0, "memory_mb": 128.0}
    facts = {"variant": "AllTraffic", "model": "m", "status": "Failed", "serving": 0, "desired": 1, "need": need}
    shared = {**facts, "placement": "SPREAD", "failure_reason": "", "created_s": 0.0}
    parts = [{"name": "part", "base": "", **shared}, {"name": "adapter", "base": "part", **shared}]
    platform.overviews["chat"] = {"components": parts, "hosts": []}
