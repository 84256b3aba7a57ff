"""The home page, and the first deployment on an empty platform, in a real browser."""

from typing import Any

import pytest
from selenium import webdriver

from tests.platform.host.fake_platform import GIB, FakePlatform
from tests.platform.host.fake_resources import NOW_S, Refused

from .page import Console

pytestmark = pytest.mark.browser
CLIENTS = ("Command line", "boto3", "openai", "curl")
"""The buttons of the example calls."""


def worker(endpoint: str, state: str = "serving", **more: Any) -> dict[str, Any]:
    reading = {"output_tokens_per_s": 12.5, "num_waiting": 0, "kv_cache_share": 0.25, "cpu_cores": 1.5}
    return {
        "endpoint": endpoint,
        "variant": "AllTraffic",
        "component": "",
        "log_stream": "AllTraffic/i-1",
        "state": state,
        "since_s": 0.0,
        "memory_bytes": GIB,
        **reading,
        **more,
    }


def test_an_empty_platform_leads_to_an_answer_in_three_steps(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    page.until(lambda: page.find("#start-deploy").is_displayed(), "the button")
    assert not page.find("#home-parts").is_displayed()
    page.click("#start-deploy")
    page.until(lambda: platform.asked("CreateEndpoint"), "the deployment")
    assert platform.asked("CreateModel")[0]["PrimaryContainer"]["Environment"] == {"HF_MODEL_ID": "smollm2"}
    platform.workers.append(worker("smollm2", "starting"))
    platform.logs["AllTraffic/i-1"] = ["loading the model"]
    page.until(lambda: "Starting a worker" in page.text("#start-progress"), "the phase")
    page.until(lambda: page.text("#start-line") == "loading the model", "the line of the log")
    assert not page.find("#start-ask").is_displayed()
    platform.endpoints["smollm2"]["EndpointStatus"] = "InService"
    page.until(lambda: page.find("#start-ask").is_displayed(), "the second step")
    assert page.text("#start-progress").startswith("In service after")
    calls = {"Command line": "headrace invoke smollm2", "curl": '"model": "smollm2"', "openai": f"{platform.url}/v1"}
    for client, call in (*calls.items(), ("boto3", f'endpoint_url="{platform.url}"')):
        page.click(f"#start-snippets .choice-buttons button:nth-child({CLIENTS.index(client) + 1})")
        assert call in page.text("#start-snippets"), client
    page.click("#start-ask")
    page.until(lambda: page.find("#prompt").is_displayed(), "the playground")
    page.run("location.hash = '#/'")
    page.until(lambda: page.find("#home-parts").is_displayed(), "the home page")
    assert not page.find("#start").is_displayed()


def test_a_first_deployment_that_fails_says_why_and_can_be_retried(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.refusals["CreateEndpoint"] = Refused("No room.")
    page = Console(driver, platform)
    page.until(lambda: page.find("#start-deploy").is_displayed(), "the button")
    page.click("#start-deploy")
    page.until(lambda: page.text("#start-error") == "No room.", "the refusal")
    assert platform.models == {}
    platform.refusals.clear()
    page.click("#start-deploy")
    page.until(lambda: platform.endpoints, "the endpoint")
    platform.endpoints["smollm2"] |= {"EndpointStatus": "Failed", "FailureReason": "There is no network."}
    page.until(lambda: page.text("#start-error") == "There is no network.", "the reason")
    page.click("#start-again")
    page.until(lambda: page.find("#deploy-dialog").is_displayed(), "the form")
    assert page.find("#model").get_attribute("value") == "smollm2"


def test_a_model_that_an_earlier_endpoint_left_does_not_block_the_first_deployment(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.models["smollm2"] = {}
    page = Console(driver, platform)
    page.until(lambda: page.find("#start-deploy").is_displayed(), "the button")
    page.click("#start-deploy")
    page.until(lambda: "smollm2" in platform.endpoints, "the endpoint")
    assert platform.endpoints["smollm2"]["EndpointConfigName"].startswith("smollm2-")
    assert platform.models["smollm2"] == {}


def test_the_home_page_shows_capacity_load_workers_and_models(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    for name, status in (("chat", "InService"), ("old", "Failed")):
        platform.add(name, status)
    platform.workers = [worker("chat"), worker("chat", "starting", component="c", kv_cache_share=None)]
    platform.stored = [{"name": "smollm2", "kind": "alias", "bytes": 98 << 20}]
    page = Console(driver, platform)
    page.until(lambda: page.all("#tiles .tile") and page.all("#stored table"), "the page")
    tiles = {text.split("\n")[0]: text.split("\n")[1:] for text in page.texts(".tile")}
    assert tiles["Endpoints"] == ["2", "1 InService · 1 Failed"]
    assert tiles["Instances"] == ["2 of 2", "2 worker processes"]
    assert tiles["Tokens per second"] == ["13", "0 requests wait, last 10 s"]
    assert tiles["Memory"] == ["12 GiB of 16 GiB", "4.0 GiB free"]
    assert tiles["Load"][0] == "2.5 on 8 cores"
    rows = page.rows("#workers")
    assert rows[0] == ["chat", "serving", "13", "0", "25 %", "1.5", "1.0 GiB", "Log"]
    assert rows[1][:2] == ["chat · c", "starting"]
    assert rows[1][4] == "\N{EN DASH}"
    assert page.text("#stored tbody") == "smollm2 package index 98 MiB"
    assert "1.2.3" in page.text("#platform-facts")
    page.click("#workers a")
    page.until(lambda: page.text("#name") == "chat", "the endpoint")


def test_text_is_copied_without_the_clipboard_of_secure_pages(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#state") == "InService", "the state")
    page.run("""
        Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });
        document.addEventListener('copy', () => { window.copied = document.activeElement.value; });
    """)
    page.stop_timers()  # the word goes away after a moment
    page.click("#copy-name .copy")
    page.until(lambda: page.text("#copy-name") == "Copied", "the word")
    assert page.run("return window.copied") == "chat"
    assert page.all(".offscreen") == []


def test_times_on_charts_are_round(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.history.record("chat", "AllTraffic", 200, 0.05, 0.4, NOW_S)
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all(".chart .tick"), "the axis")
    times = [text for text in page.texts(".chart:not(.timeline) text") if ":" in text]
    assert times
    assert all(int(time.split(":")[1]) % 2 == 0 or int(time.split(":")[1]) % 5 == 0 for time in times), times


def test_values_on_axes_are_short(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    expression = "[[0, m.duration], [2500, m.duration], [5000, m.duration], [0.05, m.short], [200, m.short]]"
    script = f"return import('/console/web/format.js').then((m) => {expression}.map((pair) => m.tick(...pair)))"
    assert page.run(script) == ["0", "2.5 s", "5 s", "0.05", "200"]
