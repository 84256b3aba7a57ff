"""Workers that start, fail and come back: progress, events and their marks in the timeline, in a real browser."""

from typing import Any

import pytest
from selenium import webdriver

from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import NOW_S

from .page import Console

pytestmark = pytest.mark.browser
CAUSE = "The worker ended with exit code 137."


def worker(state: str, **more: Any) -> dict[str, Any]:
    """A worker that was started half a minute ago."""
    return {
        "component": "",
        "variant": "AllTraffic",
        "revision": 1,
        "log_stream": "AllTraffic/i-1",
        "state": state,
        "created_s": NOW_S - 30,
        "ready_s": None,
        "failed_s": None,
        "failure": "",
        "waiting": "",
        **more,
    }


@pytest.mark.parametrize(
    ("workers", "done", "active", "note"),
    [
        ([], 0, [], "Waiting for the platform to start a worker."),
        ([worker("waiting", waiting="It needs 2 GiB.")], 0, ["Find room on a machine"], "It needs 2 GiB."),
        ([worker("fetching")], 1, ["Fetch the files of the model"], ""),
        ([worker("serving"), worker("starting")], 2, ["Start the server and load the model"], "1 of 2 workers ready."),
        (
            [worker("failed", failed_s=NOW_S - 9, failure=f"It failed. Reason: {CAUSE}"), worker("starting")],
            2,
            ["Start the server and load the model"],
            f"1 attempt failed, the last: {CAUSE}",
        ),
    ],
)
def test_an_endpoint_that_is_created_shows_its_step_its_time_and_its_log(
    driver: webdriver.Chrome,
    platform: FakePlatform,
    workers: list[dict[str, Any]],
    done: int,
    active: list[str],
    note: str,
) -> None:
    platform.add("chat", "Creating")["CreationTime"] = NOW_S - 42
    platform.overviews["chat"] = {"workers": workers}
    platform.logs["AllTraffic/i-1"] = [f"line {number}" for number in range(20)]
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#progress-title") == "Creating", "the progress")
    assert page.text("#progress-time") == "for 42 s"
    assert len(page.all("#progress-steps [data-state=done]")) == done
    assert page.texts("#progress-steps [aria-current]") == active
    assert page.text("#progress-note") == note
    page.until(lambda: len(page.texts("#progress-lines .what")) == (12 if workers else 0), "the end of the log")
    platform.endpoints["chat"]["EndpointStatus"] = "InService"
    page.until(lambda: not page.find("#progress").is_displayed(), "the end")


@pytest.mark.parametrize("status", ["InService", "Updating"])
def test_a_worker_that_is_woken_shows_its_progress(
    driver: webdriver.Chrome, platform: FakePlatform, status: str
) -> None:
    (variant,) = platform.add("chat", status, LastModifiedTime=NOW_S - 30)["ProductionVariants"]
    variant |= {"CurrentInstanceCount": 0, "DesiredInstanceCount": 1}
    platform.overviews["chat"] = {"workers": [worker("starting")]}
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#progress-title") == "Starting a worker", "the progress")
    assert page.text("#progress-time") == "for 30 s"


def test_a_component_that_starts_says_what_it_does(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("host")
    facts = {"name": "c", "status": "Creating", "serving": 0, "desired": 1, "base": "", "model": "m"}
    need = {"cpus": 1, "accelerators": 0, "memory_mb": 512}
    component = {**facts, "need": need, "failure_reason": "", "trouble": ""}
    platform.overviews["host"] = {"components": [component], "workers": [worker("fetching", component="c")]}
    page = Console(driver, platform, "#/host")
    page.until(lambda: "Fetching the model's files" in page.text("#components"), "the phase")
    assert not page.find("#progress").is_displayed()


def test_losses_and_their_causes_are_events(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    lost = {
        "ready_s": NOW_S - 20,
        "failed_s": NOW_S - 5,
        "failure": f"It failed. Reason: {CAUSE}\nIts log ends with: x",
    }
    platform.overviews["chat"] = {"workers": [worker("failed", **lost)]}
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all("#events tr"), "the events")
    rows = page.rows("#events-list")
    assert [row[1:] for row in rows] == [
        ["Worker lost", "AllTraffic/i-1", CAUSE],
        ["Ready", "AllTraffic/i-1", "after 10 s"],
        ["Start requested", "AllTraffic/i-1", ""],
    ]
    [head] = [text for text in page.texts("#events-list th") if text.startswith("When (")]
    assert len(rows[0][0]) == len("2026-11-28 14:35:02"), head
    page.go("#/chat/scaling", "scaling")
    page.until(lambda: page.all(".timeline .mark.lost"), "the mark in the timeline")
    assert CAUSE in page.text("#activities")


def test_an_endpoint_without_requests_shows_the_calls_first(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#charts-facts") == "No requests in this time", "the quiet")
    before = (
        "return !!(document.getElementById('call').compareDocumentPosition(document.getElementById('traffic')) & 4)"
    )
    assert page.run(before)
    assert not page.find("#charts").is_displayed()
    platform.history.record("chat", "AllTraffic", 200, 0.05, 0.4, NOW_S)
    page.until(lambda: page.find("#charts").is_displayed(), "the charts")
    assert not page.run(before)
