"""The page as a whole: its rules, its looks, and a platform that goes away."""

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from headrace.platform.gateway.traffic_history import TrafficHistory
from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import NOW_S

from .page import Console

pytestmark = pytest.mark.browser


def test_the_page_breaks_none_of_its_own_rules(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.logs["AllTraffic/a"] = ["ready"]
    platform.history.record("chat", "AllTraffic", 200, 0.05, 0.4, NOW_S)
    driver.get_log("browser")  # what other tests provoked
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all(".bars path.answered[d^=M]"), "the charts")
    page.go("#/chat/scaling", "scaling")
    page.until(lambda: page.find("#scaling-shown").is_displayed(), "the timeline")
    page.find(".timeline").send_keys(Keys.ARROW_LEFT)
    page.until(lambda: page.find("#timeline .card").is_displayed(), "what it says of a moment")
    page.go("#/chat/logs", "logs")
    page.until(lambda: page.all("#lines > div"), "the log")
    page.go("#/chat/playground", "playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()
    noise = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert noise == []


def test_answers_of_a_platform_are_shown_as_text_never_as_html(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    evil = "<img src=x onerror=alert(1)>"
    platform.add("chat", "Failed", FailureReason=evil)
    platform.logs["AllTraffic/a"] = [evil]
    page = Console(driver, platform, "#/chat/logs")
    page.until(lambda: page.all("#lines > div") and page.text("#reason") == evil, "the texts")
    page.until(lambda: evil in page.text("#rows .why"), "the reason in the list")
    assert page.all("#rows img, #lines img, #reason img") == []


def test_the_theme_changes_and_is_kept(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    theme = "return document.documentElement.dataset.theme"
    before = page.run(theme)
    page.click("#theme")
    after = page.run(theme)
    assert {before, after} == {"light", "dark"}
    driver.refresh()
    assert page.run(theme) == after


def test_a_lost_platform_is_reported_and_reconnected(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform)
    page.until_listed("chat")
    driver.execute_cdp_cmd("Network.enable", {})
    gone = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    try:
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", gone)
        page.until(lambda: "not reachable" in page.text("#connection"), "the loss")
        assert page.names() == ["chat"]
        page.go("#/chat", "endpoint")
        page.until(lambda: page.text("#reason") == "The platform cannot be reached.", "the sentence")
    finally:
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**gone, "offline": False})
    page.until(lambda: page.text("#connection").startswith("127.0.0.1"), "the return")


def test_nothing_overflows_on_a_phone(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("a-very-long-name-that-does-not-fit-on-one-line-of-a-telephone-1", FailureReason="unbroken" * 50)
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page = Console(driver, platform)
        page.until(lambda: page.all("#rows a"), "the list")
        page.click("#rows a")
        page.until(lambda: page.text("#state") == "InService", "the endpoint")
        for tab in ("overview", "scaling", "playground", "logs"):
            page.click(f"#tab-{tab}")
            assert page.run("return document.documentElement.scrollWidth") <= 360
        page.click("#tab-playground")
        page.until(lambda: page.find("#settings summary").is_displayed(), "the folded settings")
        assert not page.find("#temperature").is_displayed()
        assert page.text(".brand strong") == "Headrace"  # the address has no room here
        page.click("#settings summary")
        assert page.find("#temperature").is_displayed()
        platform.models["m" * 63] = {"PrimaryContainer": {"Image": "i" * 200, "Environment": {"A" * 60: "b" * 300}}}
        for at, shown in (("#models", "models"), (f"#models/{'m' * 63}", "model-page"), ("#keys", "keys")):
            page.go(at, shown)
            page.until(lambda: page.all("#models-list td, #model-facts dd"), "the models")
            assert page.run("return document.documentElement.scrollWidth") <= 360, at
        page.click("#keys .back")
        page.until(lambda: page.find("#rows").is_displayed(), "the list again")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_field_has_a_label_and_every_table_that_scrolls_can_be_focused(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    page = Console(driver, platform)
    unnamed = """
        const fields = [...document.querySelectorAll("input, select, textarea")];
        const isNamed = (field) => field.labels.length || field.getAttribute("aria-label") || field.id === "";
        return fields.filter((field) => !isNamed(field)).map((field) => field.id);
    """
    assert page.run(unnamed) == []
    assert page.all(".scroll")
    assert page.all(".scroll:not([tabindex='0']), .scroll:not([aria-label])") == []


def test_the_console_looks_as_it_should(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    """With SCREENSHOT_OF_CONSOLE (a path) it also keeps the picture."""
    platform.history = TrafficHistory()
    for name, status in (("summaries", "InService"), ("chat", "InService"), ("draft", "Creating"), ("old", "Failed")):
        platform.add(name, status, **({"FailureReason": "The archive has no model."} if status == "Failed" else {}))
    for second in range(600):
        platform.history.record("chat", "AllTraffic", 200, 0.03 + second % 7 / 300, 0.9, NOW_S - second)
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all(".lines path.p95[d^=M]") and "archive" in page.text("#rows"), "the page")
    page.keep_picture("SCREENSHOT_OF_CONSOLE")
