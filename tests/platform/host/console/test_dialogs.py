"""Deploying, deleting and the access key, in a real browser."""

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.platform.host.fake_platform import FakePlatform, Refused

from .page import Console

pytestmark = pytest.mark.browser


def test_a_model_is_deployed_as_the_sdks_do(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    page.click("#deploy")
    page.find("#model").send_keys("HuggingFaceTB/SmolLM2-135M.gguf")
    assert page.find("#endpoint-name").get_attribute("value") == "SmolLM2-135M"
    page.fill("#instances", "2")
    page.click("#deploy-dialog summary")
    page.find("#environment").send_keys("MAX_TOTAL_TOKENS=1024\n\nA=b=c")
    page.click("#deploy-submit")
    page.until(lambda: page.text("#name") == "SmolLM2-135M", "the endpoint's page")
    page.until(lambda: page.text("#state") == "Creating", "its state")
    [model] = platform.asked("CreateModel")
    environment = {"HF_MODEL_ID": "HuggingFaceTB/SmolLM2-135M.gguf", "MAX_TOTAL_TOKENS": "1024", "A": "b=c"}
    assert model["PrimaryContainer"]["Environment"] == environment
    assert "tgi3" in model["PrimaryContainer"]["Image"]
    assert model["ExecutionRoleArn"] == "arn:aws:iam::123456789012:role/headrace"
    [config] = platform.asked("CreateEndpointConfig")
    assert config["ProductionVariants"][0]["InitialInstanceCount"] == 2
    assert not page.find("#deploy-dialog").is_displayed()


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("s3://b/m.tar.gz", {"ModelDataUrl": "s3://b/m.tar.gz"}),
        (
            "s3://b/folder",
            {
                "ModelDataSource": {
                    "S3DataSource": {"S3Uri": "s3://b/folder/", "S3DataType": "S3Prefix", "CompressionType": "None"}
                }
            },
        ),
    ],
)
def test_a_model_in_s3_is_named_by_its_source(
    driver: webdriver.Chrome, platform: FakePlatform, model: str, source: dict[str, object]
) -> None:
    page = Console(driver, platform)
    page.click("#deploy")
    page.find("#model").send_keys(model)
    page.click("#imitated option:last-child")
    page.find("#image").send_keys("my-image:1")
    page.click("#deploy-submit")
    page.until(lambda: platform.asked("CreateEndpoint"), "the deployment")
    container = platform.asked("CreateModel")[0]["PrimaryContainer"]
    assert container == {"Image": "my-image:1", "Environment": {}, **source}


def test_created_parts_are_removed_when_the_rest_is_refused(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.refusals["CreateEndpoint"] = Refused("Cannot create already existing endpoint.")
    page = Console(driver, platform)
    page.click("#deploy")
    page.find("#model").send_keys("smollm2" + Keys.ENTER)
    page.until(lambda: page.text("#deploy-error") == "Cannot create already existing endpoint.", "the error")
    assert (platform.models, platform.configs) == ({}, {})
    assert page.find("#deploy-submit").is_enabled()


@pytest.mark.parametrize("tags", [[], [{"Key": "headrace:made-by", "Value": "console"}]])
def test_an_endpoint_is_deleted_with_the_parts_that_were_created_for_it(
    driver: webdriver.Chrome, platform: FakePlatform, tags: list[object]
) -> None:
    platform.add("chat")
    platform.configs["chat"]["tags"] = tags
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#state") == "InService", "the state")
    page.click("#delete")
    page.until(lambda: platform.asked("ListTags"), "the question who made it")
    page.until(lambda: page.find("#delete-all").is_selected() == bool(tags), "the answer")
    page.click("#delete-submit")
    page.until(lambda: page.text("#state") == "Deleted", "the end")
    page.until(lambda: page.names() == [], "a list without it")
    assert (platform.configs == {}, platform.models == {}) == (bool(tags), bool(tags))


def test_escape_deletes_nothing(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#state") == "InService", "the state")
    page.click("#delete")
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.find("#delete-dialog").is_displayed()
    assert "chat" in platform.endpoints


def test_the_key_of_a_guarded_platform_is_asked_for_and_kept_in_the_tab(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.key = "s3cret"
    platform.add("chat")
    page = Console(driver, platform)
    page.until(lambda: page.find("#key-dialog").is_displayed(), "the dialog")
    assert page.text("#key-error") == "A key is wanted."
    page.find("#key-value").send_keys("s3cret" + Keys.ENTER)
    page.until_listed("chat")
    assert page.run("return localStorage.length === 0 || !JSON.stringify(localStorage).includes('s3cret')")
    driver.refresh()
    page.until_listed("chat")
    page.go("#/chat/playground", "playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()
