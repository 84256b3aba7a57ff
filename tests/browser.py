"""Headless Chromium for tests of pages."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.waiting import WAIT_S

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,800",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
)
_REPLACED = (NoSuchElementException, StaleElementReferenceException)


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """Yield a browser. Skips the test if none is installed; CI has one."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs Chromium and its driver")
        pytest.skip("needs Chromium and its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


class Page:
    """A page with the actions of a user."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Wait for a condition; a node that was replaced meanwhile is looked up again."""
        wait = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.02, ignored_exceptions=_REPLACED)
        wait.until(lambda _: fact(), f"never happened: {what}")

    def fill(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def keep_picture(self, variable: str) -> None:
        """Take a screenshot; keep it if the environment variable names a path."""
        picture = self.driver.get_screenshot_as_png()
        assert picture.startswith(b"\x89PNG")
        if target := os.environ.get(variable):
            Path(target).write_bytes(picture)
