"""The page of access keys, in a real browser."""

import contextlib
from collections.abc import Iterator

import pytest
from selenium import webdriver

from headrace.platform.host.access_keys import AccessKeys
from headrace.platform.state.store import open_store
from tests.platform.host.fake_platform import FakePlatform, serving

from .page import Console

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def guarded() -> Iterator[FakePlatform]:
    """A platform that requires a key, and manages keys for callers that have it."""
    with contextlib.closing(open_store("sqlite://")) as store:
        keys = AccessKeys(store)
        first = keys.create(note="first")
        with serving(FakePlatform(keys=keys, key=first.secret)) as platform:
            yield platform


def test_a_key_is_created_shown_once_and_deleted(driver: webdriver.Chrome, guarded: FakePlatform) -> None:
    assert guarded.keys is not None
    page = Console(driver, guarded, "#keys")
    page.until(lambda: page.find("#key-dialog").is_displayed(), "the question for the key")
    page.find("#key-value").send_keys(guarded.key or "")
    page.click("#key-form [type=submit]")
    page.until(lambda: "used by this page" in page.text("#keys-list"), "the list")
    page.find("#key-note").send_keys("the CI machine")
    page.click("#key-create-form [type=submit]")
    page.until(lambda: page.find("#key-made").is_displayed(), "the new key")
    [made] = [key for key in guarded.keys.list() if key.note == "the CI machine"]
    assert made.key_id in page.text("#key-made-values")
    assert made.secret in page.text("#key-made-values")
    page.until(lambda: "the CI machine" in page.text("#keys-list"), "its row")
    assert made.secret not in page.text("#keys-list")
    page.run("location.hash = '#/'")
    page.run("location.hash = '#keys'")
    page.until(lambda: "the CI machine" in page.text("#keys-list"), "the list again")
    assert made.secret not in str(page.run("return document.body.innerHTML"))
    page.click(f"[aria-label='Limits of {made.key_id}']")
    page.find("#key-limit-models").send_keys("chat-* embeddings")
    page.find("#key-limit-requests").send_keys("60")
    page.click("#key-limit-form [type=submit]")
    page.until(lambda: "models chat-*, embeddings; 60 requests/min" in page.text("#keys-list"), "its limits")
    page.click(f"[aria-label='Limits of {made.key_id}']")
    page.find("#key-limit-actions").send_keys("fly")
    page.click("#key-limit-form [type=submit]")
    page.until(lambda: "The action is 'fly'" in page.text("#key-limit-error"), "the refusal")
    page.click("#key-limit-form [data-close]")
    page.click(f"[aria-label='Delete {made.key_id}']")
    page.click("#key-delete-form .danger")
    page.until(lambda: made.key_id not in page.text("#keys-list"), "a list without it")
    page.click("#keys-list .danger")
    assert page.find("#key-delete-own").is_displayed()
    page.click("#key-delete-form .danger")
    page.until(lambda: "last key" in page.text("#key-delete-error"), "the refusal")
    page.run("sessionStorage.clear()")


def test_an_address_with_a_key_signs_in_and_leaves_no_trace_of_it(
    driver: webdriver.Chrome, guarded: FakePlatform
) -> None:
    assert guarded.key is not None
    page = Console(driver, guarded, f"#key={guarded.key}")
    page.until(lambda: page.text("#connection") == guarded.url.removeprefix("http://"), "the platform")
    assert driver.current_url == f"{guarded.url}/console"
    assert guarded.key not in str(page.run("return document.documentElement.outerHTML"))
    page.run("location.hash = '#keys'")
    page.until(lambda: "used by this page" in page.text("#keys-list"), "the keys")
    page.run("history.back()")
    page.until(lambda: driver.current_url == f"{guarded.url}/console", "the page before")
    page.run("sessionStorage.clear(); location.reload()")
    page.until(lambda: page.find("#key-dialog").is_displayed(), "the question for the key")
    assert "headrace status" in page.text("#key-why")
    page.run(f"location.hash = '#key={guarded.key}'")  # pasted into the address of the same tab
    page.until(lambda: not page.find("#key-dialog").is_displayed(), "a page that is signed in")
    page.until(lambda: page.text("#connection") == guarded.url.removeprefix("http://"), "the platform")
    page.run("sessionStorage.clear()")


def test_an_open_platform_shows_the_command(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform, "#keys")
    page.until(lambda: page.find("#keys-by-command").is_displayed(), "the explanation")
    assert "headrace keys create" in page.text("#keys-commands")
    assert not page.find("#key-note").is_displayed()
