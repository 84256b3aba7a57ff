"""Headless Chromium for tests of pages."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.waiting import WAIT_S

T = TypeVar("T")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-features=BackForwardCache",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,800",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
)
_REPLACED = (NoSuchElementException, StaleElementReferenceException)
_NOT_YET = (*_REPLACED, ElementClickInterceptedException, ElementNotInteractableException)


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
        return self._steady(lambda: self.find(selector).text)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all nodes that match."""
        return self._steady(lambda: [node.text for node in self.all(selector)])

    def rows(self, table: str) -> list[list[str]]:
        """Return the texts of a table's cells."""
        return self._steady(
            lambda: [
                [cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in self.all(f"{table} tbody tr")
            ]
        )

    def attributes(self, selector: str, name: str) -> list[str]:
        """Return an attribute of all nodes that match."""
        return self._steady(lambda: [node.get_attribute(name) or "" for node in self.all(selector)])

    def stop_timers(self) -> None:
        """Let the page start no more timers, so that what it shows for a moment stays."""
        self.run("window.setTimeout = () => 0")

    def click(self, selector: str) -> None:
        """Click on a node as soon as it can be clicked."""
        wait = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.02, ignored_exceptions=_NOT_YET)
        wait.until(lambda _: self.find(selector).click() or True, f"cannot be clicked: {selector}")

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Wait for a condition; a node that was replaced meanwhile is looked up again."""
        wait = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.02, ignored_exceptions=_REPLACED)
        try:
            wait.until(lambda _: fact())
        except TimeoutException as error:
            shown, log = self.text("body"), self.driver.get_log("browser")
            raise AssertionError(f"never happened: {what}; the page shows: {shown}; its log: {log}") from error

    def _steady(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; again if the page replaced a node meanwhile, as it does when it refreshes."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                return read()
            except StaleElementReferenceException:
                if time.monotonic() > deadline_s:
                    raise

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
