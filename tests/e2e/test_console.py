"""The console on a real platform with the real small model, as a person uses it from the first deployment on."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from headrace.platform.host.folders import DataFolder, console_url, read_local_key
from tests import plain_http
from tests.browser import Page, chromium
from tests.waiting import WAIT_S

from .conftest import ending_with_us, free_port, headrace_command

pytestmark = [pytest.mark.model, pytest.mark.browser]


@pytest.fixture
def console(tmp_path: Path) -> Iterator[str]:
    """The address at which the console of `headrace up` on an empty folder signs in; its workers end with it."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    log_path = tmp_path / "up.log"
    command = [*ending_with_us(), headrace_command(), "up", "--port", str(port), "--data-dir", str(tmp_path / "data")]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not answers(url):
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline_s, log_path.read_text()
            time.sleep(0.05)
        yield console_url(url, read_local_key(DataFolder(tmp_path / "data")))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0, log_path.read_text()
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return plain_http.get(f"{url}/health", timeout=WAIT_S).status_code == 200
    except httpx.TransportError:
        return False


def test_a_model_is_deployed_invoked_watched_and_deleted(console: str, smollm2_path: Path, tmp_path: Path) -> None:
    with chromium(tmp_path / "chromium") as driver:
        page = Page(driver)
        driver.get(console)
        page.click("#deploy")
        page.find("#model").send_keys(str(smollm2_path))
        page.fill("#endpoint-name", "chat")
        page.click("#deploy-submit")
        page.until(lambda: page.text("#state") == "InService", "the endpoint in service")
        page.until(lambda: "ml.c6i.xlarge" in page.text("#variants"), "the instance type")

        page.click("#tab-playground")
        page.fill("#temperature", "0")
        page.find("#prompt").send_keys("What is the capital of France?" + Keys.ENTER)
        page.until(lambda: page.all(".facts"), "the answer")
        assert "Paris" in page.text(".message.assistant .text")
        # Checked first, because it counts the last minute; the first byte of a loaded machine takes seconds.
        page.until(lambda: re.search(r" per second · [\d.]+ m?s$", page.text("#rows .rate")), "the rate in the list")

        page.click("#tab-logs")
        page.until(lambda: "server.ready" in page.text("#lines"), "the worker's log")
        page.until(lambda: "request.finished" in page.text("#lines"), "the request in it")

        page.click("#tab-overview")
        page.until(lambda: page.text("#charts-facts") == "1 request", "the request in the charts")

        page.click("#delete")
        page.until(lambda: page.find("#delete-all").is_selected(), "what was made with it")
        page.click("#delete-submit")
        page.until(lambda: page.text("#state") == "Deleted" and not page.all("#rows a"), "its end")
        noise = [entry for entry in driver.get_log("browser") if entry["level"] == "WARNING"]
        assert noise == []
