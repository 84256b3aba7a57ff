"""The workers' logs, in a real browser."""

import re

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.platform.host.fake_platform import FakePlatform

from .page import Console

pytestmark = pytest.mark.browser


def test_logs_are_followed_line_by_line(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform, "#/chat/logs")
    page.until(lambda: page.text("#log-note") == "No worker has written anything yet.", "the note")
    platform.logs["AllTraffic/worker-1"] = [f"line {number}" for number in range(600)]
    page.until(lambda: len(page.all("#lines > div")) == 500, "the last lines")
    platform.logs["AllTraffic/worker-1"].append("one more <b>line</b>")
    page.until(lambda: page.text("#lines > div:last-child .what") == "one more <b>line</b>", "the new line")
    assert len(page.all("#lines > div")) == 501
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", page.text("#lines > div:last-child time"))
    assert page.text("#log-zone").startswith("Times are in ")
    at_end = (
        "const view = document.getElementById('lines'); return view.scrollHeight - view.scrollTop - view.clientHeight"
    )
    assert page.run(at_end) < 40


def test_logs_of_several_workers_are_distinguished_and_filtered(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.add("chat")
    platform.logs |= {"AllTraffic/a": ["loading", "ready"], "AllTraffic/b": ["loading", "crashed"]}
    page = Console(driver, platform, "#/chat/logs")
    page.until(lambda: len(page.all("#lines > div")) == 4, "the lines")
    assert set(page.texts("#lines .who")) == {"a", "b"}
    page.find("#log-filter").send_keys("CRASH")
    page.until(lambda: page.texts("#lines > div:not([hidden]) .what") == ["crashed"], "the filter")
    page.find("#log-filter").clear()
    page.find("#log-filter").send_keys(Keys.NULL)
    page.click("#stream option[value='AllTraffic/a']")
    page.until(lambda: page.texts("#lines .what") == ["loading", "ready"], "one worker")


def test_json_lines_of_our_workers_are_shown_readably(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.logs["AllTraffic/a"] = [
        '{"status": 200, "ids": [1, 2], "finish": "length", "event": "request.finished", "timestamp": "x"}',
        '{"reason": "disk full", "event": "cache.failed", "level": "error"}',
        '{"not": "ours"}',
        "null",
        "{broken",
    ]
    page = Console(driver, platform, "#/chat/logs")
    page.until(lambda: len(page.all("#lines > div")) == 5, "the lines")
    assert page.texts("#lines .what") == [
        "request.finished  status=200  ids=[1,2]  finish=length",
        "cache.failed  reason=disk full",
        '{"not": "ours"}',
        "null",
        "{broken",
    ]
    assert page.text("#lines [data-level=error] .what").startswith("cache.failed")
