"""The pages of Model resources, in a real browser."""

import pytest
from selenium import webdriver

from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import Refused

from .page import Console

pytestmark = pytest.mark.browser
ENVIRONMENT = {
    "MAX_TOTAL_TOKENS": "1024",
    "HF_TOKEN": "hf_secret",
    "PROXY": "http://user:secret@proxy",
    "GREETING": "<b>hello</b>",
}


def test_a_platform_without_models_shows_how_to_create_one(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform, "#models")
    page.until(lambda: "headrace deploy smollm2" in page.text("#models-none"), "the command")


def test_models_are_listed_in_pages_with_what_uses_them(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    for number in range(30):
        platform.models[f"m{number}"] = {"PrimaryContainer": {"Image": "i", "ModelDataUrl": f"s3://b/{number}.tar.gz"}}
    platform.uses["m29"] = {"endpoints": ["chat"], "components": ["part"], "configs": ["chat"]}
    page = Console(driver, platform, "#models")
    page.until(lambda: len(page.rows("#models-list")) == 25, "the first page")
    assert page.rows("#models-list")[0][:3] == ["m29", "s3://b/29.tar.gz", "chat, component part"]
    page.click("#models-next")
    page.until(lambda: page.rows("#models-list")[-1][0] == "m0", "the second page")
    page.click("#models-previous")
    page.until(lambda: page.rows("#models-list")[0][0] == "m29", "the first page again")
    page.click("#models-list a")
    page.until(lambda: page.text("#model-title") == "m29", "the page of the model")


def test_an_endpoint_leads_to_its_model(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform, "#/chat")
    page.click("#facts a[href='#models/chat']")
    page.until(lambda: page.text("#model-title") == "chat", "the page of the model")


def test_a_model_shows_its_container_and_hides_its_secrets(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.models["m"] = {
        "PrimaryContainer": {"Image": "tgi:3", "Environment": {"HF_MODEL_ID": "x/y", **ENVIRONMENT}}
    }
    page = Console(driver, platform, "#models/m")
    page.until(lambda: "tgi:3" in page.text("#model-facts"), "the facts")
    assert "x/y" in page.text("#model-facts")
    shown = dict(page.rows("#model-environment"))
    hidden = {name for name, value in shown.items() if value.startswith("hidden")}
    assert hidden == {"HF_TOKEN", "PROXY"}
    assert (shown["MAX_TOTAL_TOKENS"], shown["GREETING"]) == ("1024", "<b>hello</b>")
    page.click("#model-deploy")
    assert page.find("#model").get_attribute("value") == "m"
    assert not page.find("#image").is_enabled()


@pytest.mark.parametrize("kind", ["endpoints", "components", "configs"])
def test_only_a_model_that_nothing_runs_can_be_deleted(
    driver: webdriver.Chrome, platform: FakePlatform, kind: str
) -> None:
    platform.models["m"] = {"PrimaryContainer": {"Image": "i"}}
    platform.uses["m"] = {"endpoints": [], "components": [], "configs": [], kind: ["user"]}
    page = Console(driver, platform, "#models/m")
    page.until(lambda: page.text("#model-uses"), "its uses")
    if kind != "configs":
        assert "Used by " in page.text("#model-uses")
        assert not page.find("#model-delete").is_enabled()
        return
    page.click("#model-delete")
    assert "1 endpoint configuration names it (user)" in page.text("#model-delete-configs")
    platform.refusals["DeleteModel"] = Refused("Not now.")
    page.click("#model-delete-form [type=submit]")
    page.until(lambda: page.text("#model-delete-error") == "Not now.", "the refusal")
    platform.refusals.clear()
    page.click("#model-delete-form [type=submit]")
    page.until(lambda: page.find("#models-none").is_displayed(), "the list without it")


def test_a_model_that_does_not_exist_is_reported(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform, "#models/missing")
    page.until(lambda: "Could not find" in page.text("#model-error"), "the error")
    assert not page.find("#model-delete").is_enabled()
