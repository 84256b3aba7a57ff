"""The timeline of scaling, in a real browser, of a history that the real autoscaler has made."""

from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.platform.autoscaling.support import World
from tests.platform.host.fake_platform import FakePlatform

from .page import Console
from .played import played_world, show

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with played_world() as played:
        assert played.capacities == [1, 2, 3, 2, 1], played.capacities
        yield played


@pytest.fixture
def page(driver: webdriver.Chrome, platform: FakePlatform, world: World) -> Console:
    """The timeline of the last hour."""
    show(platform, world)
    opened = Console(driver, platform, "#/chat/scaling")
    opened.click("#scaling-range option[value='3600']")
    opened.until(lambda: opened.all(".timeline .mark.out"), "the timeline of the hour")
    return opened


def test_one_time_axis_shows_capacity_metric_alarms_and_activities(page: Console) -> None:
    assert page.text("#scaling-facts") == "Scaled between 1 and 3 instances by chat-load and chat-quiet"
    titles = page.texts(".timeline .lane-title")
    words = ("Capacity", "ConcurrentRequestsPerModel", "Requests a minute", "Alarms", "Events")
    assert all(title.startswith(word) for title, word in zip(titles, words, strict=True)), titles
    assert "instances that serve" in titles[0]
    assert "average over 10 s" in titles[1]
    assert "every 1 min" in titles[2]
    assert page.texts(".timeline .rule-word") == [
        "min 1",
        "max 3",
        "target 4",
        "threshold 1",
    ]
    for line in ("serving", "desired", "measured"):
        assert all(element.get_attribute("d") for element in page.all(f".timeline path.{line}")), line
    assert len(page.all(".timeline .mark.out")) == len(page.all(".timeline .mark.in")) == 2
    assert set(page.texts(".timeline .number")) == {"1", "2", "3"}
    assert page.all(".timeline .band-OK")
    assert page.all(".timeline .band-INSUFFICIENT_DATA")
    assert page.all(".timeline .band-ALARM.calm")
    assert page.texts(".timeline .state-ALARM") == page.texts(".timeline .state-ALARM.calm"), "quiet is no trouble"
    assert "in alarm: Low" in (page.find(".timeline").get_attribute("aria-label") or "")


def test_marks_stand_where_capacity_changes(page: Console) -> None:
    """The step of the wanted capacity and the mark of the activity are at one x, within one look of ten seconds."""
    script = """
        const path = document.querySelector(".timeline path.desired").getAttribute("d");
        const steps = [...path.matchAll(/H([\\d.]+)V([\\d.]+)/g)].map((one) => [Number(one[1]), Number(one[2])]);
        const jumps = steps.filter(([, y], i) => i > 0 && y !== steps[i - 1][1]).map(([x]) => x);
        const placeOf = (mark) => Number(/translate\\(([\\d.]+)/.exec(mark.getAttribute("transform"))[1]);
        return [jumps, [...document.querySelectorAll(".mark.out, .mark.in")].map(placeOf).sort((a, b) => a - b)];
    """
    jumps, marks = page.run(script)  # type: ignore[misc]
    assert len(jumps) == len(marks) == 4
    width_of_look = page.find(".timeline").size["width"] / 360
    assert all(abs(jump - mark) <= 2 * width_of_look for jump, mark in zip(jumps, marks, strict=True)), (jumps, marks)


def test_activities_are_readable_by_keyboard_and_in_a_table(page: Console) -> None:
    chart = page.find(".timeline")
    page.run("document.querySelector('.timeline').focus()")
    chart.send_keys(Keys.HOME, Keys.ARROW_DOWN)
    told = page.text("#timeline .card")
    assert "Scaled out" in told
    assert "Setting desired instance count to 2." in told
    assert "Successful" in told
    assert "in state ALARM triggered policy chat-load" in told
    assert "High ALARM" in told
    assert page.all(".mark.out.near")
    chart.send_keys(Keys.END, Keys.ARROW_LEFT)
    assert "1 of 1 instances" in page.text("#timeline .card")
    chart.send_keys(Keys.ESCAPE)
    assert not page.find("#timeline .card").is_displayed()
    rows = page.texts("#activities tr")
    assert any("Scaled in" in row and "Setting desired instance count to 1." in row for row in rows)


def test_not_scaled_activities_can_be_hidden(page: Console) -> None:
    assert page.all(".timeline .mark.not")
    num_rows = len(page.all("#activities tr"))
    page.click("#with-not-scaled")
    page.until(lambda: not page.all(".timeline .mark.not"), "marks of what was done only")
    assert len(page.all("#activities tr")) < num_rows


def test_the_pointer_reads_values(driver: webdriver.Chrome, page: Console) -> None:
    ActionChains(driver).move_to_element(page.find(".timeline .mark.out")).perform()
    page.until(lambda: "Scaled out" in page.text("#timeline .card"), "the activity under the pointer")
    assert page.find(".mark.out").get_attribute("class") == "mark out near"


def test_the_timeline_looks_as_it_should(driver: webdriver.Chrome, page: Console) -> None:
    """With SCREENSHOT_OF_SCALING (a path) it also keeps the picture."""
    before = driver.get_window_size()
    driver.set_window_size(1280, 1000)
    try:
        drawn = "const one = document.querySelector('.timeline'); return one.viewBox.baseVal.width === one.clientWidth"
        page.until(lambda: page.run(drawn), "a drawing as wide as its place")
        page.keep_picture("SCREENSHOT_OF_SCALING")
    finally:
        driver.set_window_size(before["width"], before["height"])


def test_a_shorter_time_leaves_out_what_is_older(page: Console) -> None:
    page.click("#scaling-range option[value='900']")
    page.until(lambda: not page.all(".timeline .mark.out"), "the last quarter of an hour")


def test_a_longer_time_has_means_of_metrics_and_whole_instances_and_sums_keep_their_period(page: Console) -> None:
    page.click("#scaling-range option[value='86400']")
    page.until(lambda: "average over 5 min" in page.texts(".timeline .lane-title")[1], "the last day")
    assert "every 1 min" in page.texts(".timeline .lane-title")[2]
    chart = page.find(".timeline")
    chart.send_keys(Keys.HOME, Keys.ARROW_DOWN)
    told = page.text("#timeline .card").splitlines()
    assert "Scaled out" in page.text("#timeline .card")
    assert told[1].split()[0] in {"1", "2"}, "no half instances"


def test_without_scaling_the_command_to_set_it_up_is_shown(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("idle")
    page = Console(driver, platform, "#/idle/scaling")
    page.until(lambda: page.all("#scaling-none") and page.find("#scaling-none").is_displayed(), "the hint")
    assert page.text("#scaling-command code") == f"headrace scale idle --min 1 --max 4 --url {platform.url}"
    assert "Not counted yet" in page.text(".timeline .none")
    assert not page.find("#activities-part").is_displayed()


HIDE = """
    window.isHidden = true;
    window.planned = [];
    const real = window.setTimeout.bind(window);
    window.setTimeout = (work, pauseMs) => { window.planned.push(pauseMs); return real(work, pauseMs); };
    Object.defineProperty(document, "hidden", { get: () => window.isHidden, configurable: true });
"""


def test_a_hidden_tab_schedules_no_refresh(page: Console) -> None:
    page.run(HIDE)
    page.click("#scaling-range option[value='900']")
    page.until(lambda: not page.all(".timeline .mark.out"), "the look that was asked for")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    assert 5000 not in page.run("return window.planned")  # type: ignore[operator]
    page.run("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.until(lambda: 5000 in page.run("return window.planned"), "looks every five seconds again")  # type: ignore[operator]
