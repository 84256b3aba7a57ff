"""Deploying, deleting and the access key, in a real browser."""

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.platform.host.fake_platform import GIB, FakePlatform
from tests.platform.host.fake_resources import Refused

from .page import Console

pytestmark = pytest.mark.browser


def test_a_model_is_deployed_as_the_sdks_do(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    page.click("#deploy")
    page.find("#model").send_keys("HuggingFaceTB/SmolLM2-135M.gguf")
    assert page.find("#endpoint-name").get_attribute("value") == "SmolLM2-135M"
    page.fill("#instances", "2")
    page.click("#advanced summary")
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
    page.click("#advanced summary")
    page.click("#imitated option:last-child")
    page.find("#image").send_keys("my-image:1")
    page.click("#deploy-submit")
    page.until(lambda: platform.asked("CreateEndpoint"), "the deployment")
    container = platform.asked("CreateModel")[0]["PrimaryContainer"]
    assert container == {"Image": "my-image:1", "Environment": {}, **source}


def test_created_parts_are_removed_when_the_rest_is_refused(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.refusals["CreateEndpoint"] = Refused("There is no room.")
    page = Console(driver, platform)
    page.click("#deploy")
    page.find("#model").send_keys("smollm2" + Keys.ENTER)
    page.until(lambda: page.text("#deploy-error") == "There is no room.", "the error")
    assert (platform.models, platform.configs) == ({}, {})
    assert page.find("#deploy-submit").is_enabled()


def test_models_are_offered_with_their_size_and_whether_they_fit(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.aliases = [{"name": "smollm2", "title": "SmolLM2-135M-Instruct", "bytes": 98 << 20}]
    platform.stored = [{"name": "org/large", "kind": "hub", "bytes": 9 * GIB}]
    page = Console(driver, platform)
    page.click("#deploy")
    page.until(lambda: len(page.all(".choice")) == 2, "the models")
    assert page.texts(".choice") == [
        "smollm2\n98 MiB\nfits\nSmolLM2-135M-Instruct; downloaded at the first start",
        "org/large\n9.0 GiB\nmay not fit\non this machine, from the Hugging Face Hub",
    ]
    page.click(".choice input[value=smollm2]")
    assert page.find("#endpoint-name").get_attribute("value") == "smollm2"
    assert not page.find("#image").is_displayed()
    page.click("#deploy-submit")
    page.until(lambda: platform.asked("CreateEndpoint"), "the deployment")
    assert platform.asked("CreateModel")[0]["PrimaryContainer"]["Environment"] == {"HF_MODEL_ID": "smollm2"}


def test_an_endpoint_is_created_from_a_model_resource(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.models["own"] = {"PrimaryContainer": {"Image": "my-image:1"}}
    page = Console(driver, platform)
    page.click("#deploy")
    page.click(".choice input[value=own]")
    page.click("#advanced summary")
    assert (page.find("#instance-type").is_displayed(), page.find("#image").is_displayed()) == (True, False)
    page.fill("#endpoint-name", "chat")
    page.click("#deploy-submit")
    page.until(lambda: "chat" in platform.endpoints, "the deployment")
    assert platform.asked("CreateModel") == []
    assert platform.asked("CreateEndpointConfig")[0]["ProductionVariants"][0]["ModelName"] == "own"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("model", "", "Choose a model from the list, or enter one."),
        ("endpoint-name", "a_b", 'The value is "a_b"; expected letters, digits and hyphens between them, at most 63.'),
        ("instances", "0", "The value is 0; expected at least 1."),
        ("instances", "1.5", "The value is 1.5; expected a whole number."),
        ("environment", "A", 'The line is "A"; expected NAME=VALUE.'),
    ],
)
def test_a_mistake_is_told_beside_its_field(
    driver: webdriver.Chrome, platform: FakePlatform, field: str, value: str, problem: str
) -> None:
    page = Console(driver, platform)
    page.click("#deploy")
    page.find("#model").send_keys("smollm2")
    page.run("document.getElementById('advanced').open = true")
    page.fill(f"#{field}", value)
    page.run("document.getElementById('advanced').open = false")
    page.click("#deploy-submit")
    page.until(lambda: page.text(f"#{field}-problem") == problem, "the message")
    wrong = page.find(f"#{field}")
    assert wrong.get_attribute("aria-describedby").endswith(f"{field}-problem")  # type: ignore[union-attr]
    assert driver.switch_to.active_element == wrong
    assert platform.models == {}
    wrong.send_keys("x" if field == "model" else "1")
    assert not page.all(f"#{field}-problem")


@pytest.mark.parametrize(
    ("refusal", "field", "problem"),
    [
        ('Cannot create already existing model "arn:a".', "endpoint-name", "The name belongs to an existing model."),
        ("Value 'ml.x' at 'productionVariants.1.member.instanceType' failed.", "instance-type", "The instance type is"),
    ],
)
def test_a_refusal_is_told_beside_the_field_that_it_is_about(
    driver: webdriver.Chrome, platform: FakePlatform, refusal: str, field: str, problem: str
) -> None:
    platform.refusals["CreateModel"] = Refused(refusal)
    page = Console(driver, platform)
    page.click("#deploy")
    page.find("#model").send_keys("smollm2" + Keys.ENTER)
    page.until(lambda: page.text(f"#{field}-problem").startswith(problem.rstrip(".")), "the message")


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
