"""One browser, and one platform that is as if it were fresh for each test."""

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from tests.platform.host.fake_platform import FakePlatform, serving

if TYPE_CHECKING:
    from selenium import webdriver


@pytest.fixture(scope="package")  # a page that stays open goes on looking and drawing, a tenth of a core
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator["webdriver.Chrome"]:
    from tests.browser import chromium

    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="package")
def running() -> Iterator[FakePlatform]:
    with serving(FakePlatform()) as platform:
        yield platform


@pytest.fixture
def platform(running: FakePlatform, driver: "webdriver.Chrome") -> FakePlatform:
    """As if it were fresh; the page of the last test is gone."""
    if driver.current_url.startswith("http"):
        driver.execute_script("localStorage.clear(); sessionStorage.clear()")
    driver.get("about:blank")
    fresh = FakePlatform()
    for field in fields(FakePlatform):
        if field.name != "url":
            setattr(running, field.name, getattr(fresh, field.name))
    return running
