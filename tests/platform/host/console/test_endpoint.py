"""One endpoint with its charts, and the playground, in a real browser."""

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import NOW_S

from .page import Console

pytestmark = pytest.mark.browser


def test_an_endpoint_shows_its_variants_and_facts(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    endpoint = platform.add("chat", "UpdateRollbackFailed", FailureReason="Both versions fail.\nLook at the log.")
    endpoint["ProductionVariants"][0]["VariantStatus"] = [
        {"Status": "Updating", "StatusMessage": "One more.\nNote: It has no GPU."}
    ]
    platform.configs["chat"]["variants"][0]["InstanceType"] = "ml.c6i.xlarge"
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#state") == "UpdateRollbackFailed", "the state")
    assert page.text("#reason") == "Both versions fail.\nLook at the log."
    cells = page.texts("#variants td")
    assert cells == ["AllTraffic", "1 of 2", "100 %", "ml.c6i.xlarge", "tgi:3.3.6", "Updating: One more."]
    assert "arn:aws:sagemaker:us-east-1:123456789012:endpoint/chat" in page.text("#facts")
    assert "It has no GPU." in page.text("#facts")
    assert f"{platform.url}/endpoints/chat/invocations" in page.text("#facts")
    assert "headrace invoke chat" in page.text("#example")
    endpoint["EndpointStatus"] = "InService"
    endpoint["ProductionVariants"][0]["VariantStatus"] = [
        {"Status": "ActivatingTraffic", "StatusMessage": "Note: It has no GPU."}
    ]
    page.until(lambda: page.text("#state") == "InService", "the new state")
    page.until(lambda: page.texts("#variants td")[-1] == "\N{EN DASH}", "no state of the variant")


def test_an_endpoint_that_does_not_exist_is_reported(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform, "#/missing")
    page.until(lambda: page.text("#state") == "Not found", "the state")
    assert "Could not find" in page.text("#reason")


def test_traffic_is_drawn_and_read_by_keyboard(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    for second in range(300):
        status = 503 if second % 10 == 0 else 200
        platform.history.record("chat", "AllTraffic", status, 0.05, 0.4, NOW_S - second)
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all(".bars path.answered[d^=M]"), "the bars")
    assert page.find(".bars path.failed").get_attribute("d")
    assert not page.find(".bars path.refused").get_attribute("d")
    assert page.text("#charts-facts") == "300 requests · 30 failed"
    label = page.all(".chart")[1].get_attribute("aria-label")
    assert "Time to first byte. p50: now 51 ms" in label
    page.all(".chart")[0].send_keys(Keys.ARROW_LEFT * 3)
    assert "answered 0.8 · refused 0 · failed 0.2" in page.text(".readout")
    page.click("#range option[value='3600']")
    page.until(lambda: "answered: now 0.9" in page.find(".chart").get_attribute("aria-label"), "minutes")
    page.until(lambda: "per second · 51 ms" in page.text("#rows .rate"), "the rate in the list")


@pytest.mark.parametrize(("mode", "path"), [("chat", "/v1/chat/completions"), ("text", "/v1/completions")])
def test_the_playground_streams(driver: webdriver.Chrome, platform: FakePlatform, mode: str, path: str) -> None:
    platform.add("chat")
    is_headrace = mode == "chat"
    platform.facts["chat"] = {"max_model_len": 512, **({"has_chat_template": True} if is_headrace else {})}
    platform.words, platform.num_held = tuple(f"word{number} " for number in range(20)), 10
    page = Console(driver, platform, "#/chat/playground")
    page.until(lambda: page.text("#model-note") == "Context: 512 tokens.", "the facts of the model")
    page.click(f"#mode option[value={mode}]")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until(lambda: "word2" in page.answer(), "the first words")
    assert "word19" not in page.answer()
    platform.num_held = 0
    page.until_answered()
    assert page.answer().endswith("word19")
    assert "20 tokens" in page.text(".facts")
    [(asked, body)] = platform.prompts
    assert (asked, body["model"], body["stream"]) == (path, "chat", True)
    assert (body["temperature"], body["top_p"]) == (0.2, 0.9), "as on the chat page: at 1 small models ramble"
    assert ("repetition_detection" in body) == is_headrace, "other servers may refuse the field"
    assert body.get("prompt", "Hello") == "Hello"
    assert body.get("messages", [{"role": "user", "content": "Hello"}]) == [{"role": "user", "content": "Hello"}]


def test_stop_ends_the_request(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.words, platform.num_held = ("word ",) * 20, 10
    page = Console(driver, platform, "#/chat/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until(lambda: "word" in page.answer(), "the first word")
    page.click("#stop")
    page.until_answered()
    assert "stopped" in page.text(".facts")
    platform.until(lambda: platform.num_aborted, "the abort")


def test_an_answer_that_ends_leaves_the_focus_where_it_is(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.delay_s = 0.1
    page = Console(driver, platform, "#/chat/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.click("#search")
    page.until_answered()
    assert page.run("return document.activeElement.id") == "search"


def test_an_endpoints_refusal_is_shown(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform, "#/missing/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until(lambda: page.all("#conversation .error"), "the error")
    assert page.text("#conversation .error") == "The model `missing` does not exist."


def test_another_endpoint_starts_another_conversation(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("one")
    platform.add("two")
    page = Console(driver, platform, "#/one/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()
    page.run("location.hash = '#/two/playground'")
    page.until(lambda: not page.all(".message"), "an empty conversation")
    page.find("#prompt").send_keys("Again" + Keys.ENTER)
    page.until_answered()
    assert [body["model"] for _, body in platform.prompts] == ["one", "two"]
    assert platform.prompts[1][1]["messages"] == [{"role": "user", "content": "Again"}]


def test_the_playground_completes_texts_with_a_base_model(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("base")
    platform.add("chat")
    platform.facts["base"] = {"max_model_len": 2048, "has_chat_template": False}
    page = Console(driver, platform, "#/base/playground")
    page.until(lambda: "base model" in page.text("#model-note"), "the note")
    assert "2,048 tokens" in page.text("#model-note")
    assert page.find("#mode").get_attribute("value") == "text"
    assert not page.find("#system").is_enabled()
    page.fill("#prompt", "red, green,")
    page.click("#send")
    page.until_answered()
    assert platform.prompts[0][0] == "/v1/completions"
    driver.get(f"{platform.url}/console#/chat/playground")
    page.until(lambda: page.find("#mode").get_attribute("value") == "chat", "the chosen API")
    assert not page.find("#model-note").is_displayed()
