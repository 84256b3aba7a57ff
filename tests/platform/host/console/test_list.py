"""The list of endpoints, in a real browser."""

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.platform.host.fake_platform import FakePlatform

from .page import Console

pytestmark = pytest.mark.browser


def test_endpoints_are_listed_with_state_and_reason_and_kept_fresh(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.add("chat")
    platform.add("broken", "Failed", FailureReason="The model file is truncated.")
    page = Console(driver, platform)
    page.until_listed("broken", "chat")
    page.until(lambda: "truncated" in page.text("#rows"), "the reason")
    assert page.texts("#rows .state") == ["Failed", "InService"]
    platform.endpoints["chat"]["EndpointStatus"] = "Updating"
    page.until(lambda: page.texts("#rows .state") == ["Failed", "Updating"], "the new state")
    del platform.endpoints["broken"]
    page.until_listed("chat")


@pytest.mark.parametrize(
    ("current", "desired", "trouble", "shown", "kind"),
    [
        (0, 0, "", "Asleep", "asleep"),
        (0, 1, "", "Waking", "moving"),
        (1, 2, "", "InService", "good"),
        (2, 2, "", "InService", "good"),
        (1, 2, "It ended with exit code 1.", "Degraded", "degraded"),
        (0, 2, "It ended with exit code 1.", "Down", "bad"),
    ],
)
def test_an_endpoint_without_all_of_its_workers_says_so(
    driver: webdriver.Chrome,
    platform: FakePlatform,
    current: int,
    desired: int,
    trouble: str,
    shown: str,
    kind: str,
) -> None:
    (variant,) = platform.add("chat")["ProductionVariants"]
    variant |= {"CurrentInstanceCount": current, "DesiredInstanceCount": desired}
    platform.troubles["chat"] = trouble
    component = {
        "trouble": trouble,
        "name": "c",
        "status": "InService",
        "serving": current,
        "desired": desired,
        "base": "",
        "model": "m",
    }
    need = {"cpus": 1, "accelerators": 0, "memory_mb": 512}
    platform.overviews["chat"] = {"components": [{**component, "need": need, "failure_reason": ""}], "hosts": []}
    page = Console(driver, platform, "#/chat")
    for place in ("#rows .state", "#state", "#components .state"):
        page.until(lambda place=place: page.texts(place) == [shown], place)
        page.until(lambda place=place: kind in page.find(place).get_attribute("class").split(), place)
    assert page.text("#reason") == trouble
    assert bool(page.text("#condition")) == (shown in {"Asleep", "Waking"})
    page.until(lambda: [why for why in page.texts("#rows .why") if why] == ([trouble] if trouble else []), "the cause")


def test_a_creating_endpoint_says_what_it_is_doing(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    variant = platform.add("new", "Creating")["ProductionVariants"][0]
    variant["VariantStatus"] = [{"Status": "Creating", "StatusMessage": "1 of 2 workers is loading."}]
    page = Console(driver, platform)
    page.until(lambda: "1 of 2 workers is loading." in page.text("#rows"), "the message")
    assert not page.find("#pager").is_displayed()  # there is one page


def test_a_thousand_endpoints_come_in_pages(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    for number in range(1000):
        platform.add(f"e{number:04}")
    page = Console(driver, platform)
    page.click("#order option[value^=Name]")
    page.until_listed(*(f"e{number:04}" for number in range(25)))
    assert not page.find("#previous").is_enabled()
    page.click("#next")
    page.until_listed(*(f"e{number:04}" for number in range(25, 50)))
    assert page.text("#page") == "Page 2"
    page.click("#previous")
    page.until_listed(*(f"e{number:04}" for number in range(25)))
    page.find("#search").send_keys("e099")
    page.until_listed(*(f"e099{number}" for number in range(10)))
    assert not page.find("#next").is_enabled()


def test_a_page_whose_endpoints_are_deleted_returns_to_the_first(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    for number in range(30):
        platform.add(f"e{number:02}")
    page = Console(driver, platform)
    page.until(lambda: page.find("#next").is_enabled(), "a second page")
    page.click("#next")
    page.until(lambda: page.text("#page") == "Page 2", "the second page")
    for number in range(10):
        del platform.endpoints[f"e{number:02}"]
    page.until(lambda: len(page.names()) == 20, "the first page")


def test_the_list_says_when_it_is_empty_or_nothing_matches(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    page.until(lambda: page.text("#list-note") == "No endpoints yet. Deploy a model to create one.", "the note")
    platform.add("one")
    page.until_listed("one")
    page.click("#status option:nth-child(7)")
    page.until(lambda: page.text("#list-note") == "No endpoint matches.", "the other note")


def test_the_keyboard_is_enough(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    for name in ("a", "b", "c"):
        platform.add(name)
    page = Console(driver, platform)
    page.until_listed("c", "b", "a")
    page.find("body").send_keys("/")
    assert page.run("return document.activeElement.id") == "search"
    page.run("document.querySelector('#rows a').focus()")
    driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: page.text("#name") == "b", "the endpoint")
    page.find("#tab-overview").send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.find("#scaling").is_displayed(), "the next tab")
    driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.find("#playground").is_displayed(), "the one after it")
    assert driver.current_url.endswith("#/b/playground")
