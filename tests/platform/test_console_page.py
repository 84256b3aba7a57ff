"""The console in a real browser, against the APIs that it calls."""

from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from headrace.gateway.history import History
from tests.browser import Page, chromium

from .fake_platform import NOW_S, FakePlatform, Refused, serving

pytestmark = pytest.mark.browser


class Console(Page):
    """The console, freshly opened."""

    def __init__(self, driver: webdriver.Chrome, platform: FakePlatform, at: str = "") -> None:
        super().__init__(driver)
        driver.get("about:blank")
        driver.get(f"{platform.url}/console{at}")

    def until_listed(self, *names: str) -> None:
        self.until(lambda: self.names() == list(names), f"a list of {names}")

    def names(self) -> list[str]:
        return [row.text for row in self.all("#rows .name")]

    def answer(self) -> str:
        return self.all(".message.assistant .text")[-1].text

    def until_answered(self) -> None:
        self.until(lambda: self.all(".facts") and not self.all(".streaming, .waiting"), "the end of the answer")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def running() -> Iterator[FakePlatform]:
    with serving(FakePlatform()) as platform:
        yield platform


@pytest.fixture
def platform(running: FakePlatform, driver: webdriver.Chrome) -> FakePlatform:
    """As if it were fresh; the page of the last test is gone."""
    if driver.current_url.startswith("http"):
        driver.execute_script("localStorage.clear(); sessionStorage.clear()")
    driver.get("about:blank")
    fresh = FakePlatform()
    for name in ("endpoints", "configs", "models", "logs", "history", "key", "refusals", "words", "delay_s", "calls"):
        setattr(running, name, getattr(fresh, name))
    running.prompts, running.num_aborted = [], 0
    return running


# The list


def test_endpoints_are_listed_with_state_and_reason_and_kept_fresh(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.add("chat")
    platform.add("broken", "Failed", FailureReason="The model file is truncated.")
    page = Console(driver, platform)
    page.until_listed("broken", "chat")
    page.until(lambda: "truncated" in page.text("#rows"), "the reason")
    assert [state.text for state in page.all("#rows .state")] == ["Failed", "InService"]
    platform.endpoints["chat"]["EndpointStatus"] = "Updating"
    page.until(lambda: [state.text for state in page.all("#rows .state")] == ["Failed", "Updating"], "the new state")
    del platform.endpoints["broken"]
    page.until_listed("chat")


def test_a_creating_endpoint_says_what_it_is_doing(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    variant = platform.add("new", "Creating")["ProductionVariants"][0]
    variant["VariantStatus"] = [{"Status": "Creating", "StatusMessage": "1 of 2 workers is loading."}]
    page = Console(driver, platform)
    page.until(lambda: "1 of 2 workers is loading." in page.text("#rows"), "the message")


def test_a_thousand_endpoints_come_in_pages(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    for number in range(1000):
        platform.add(f"e{number:04}")
    page = Console(driver, platform)
    page.find("#order option[value^=Name]").click()
    page.until_listed(*(f"e{number:04}" for number in range(25)))
    assert not page.find("#previous").is_enabled()
    page.find("#next").click()
    page.until_listed(*(f"e{number:04}" for number in range(25, 50)))
    assert page.text("#page") == "Page 2"
    page.find("#previous").click()
    page.until_listed(*(f"e{number:04}" for number in range(25)))
    page.find("#search").send_keys("e099")
    page.until_listed(*(f"e099{number}" for number in range(10)))
    assert not page.find("#next").is_enabled()


def test_a_page_whose_endpoints_are_gone_leads_back_to_the_first(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    for number in range(30):
        platform.add(f"e{number:02}")
    page = Console(driver, platform)
    page.until(lambda: page.find("#next").is_enabled(), "a second page")
    page.find("#next").click()
    page.until(lambda: page.text("#page") == "Page 2", "the second page")
    for number in range(10):
        del platform.endpoints[f"e{number:02}"]
    page.until(lambda: len(page.names()) == 20, "the first page")


def test_the_list_says_when_there_is_nothing_or_nothing_fits(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    page.until(lambda: page.text("#list-note") == "No endpoints yet.", "the note")
    platform.add("one")
    page.until_listed("one")
    page.find("#status option:nth-child(7)").click()
    page.until(lambda: page.text("#list-note") == "No endpoint fits.", "the other note")


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
    page.until(lambda: page.find("#playground").is_displayed(), "the next tab")
    assert driver.current_url.endswith("#/b/playground")


# One endpoint


def test_an_endpoint_shows_its_variants_and_facts(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    endpoint = platform.add("chat", "UpdateRollbackFailed", FailureReason="Both versions fail.\nLook at the log.")
    endpoint["ProductionVariants"][0]["VariantStatus"] = [{"Status": "Updating", "StatusMessage": "One more."}]
    platform.configs["chat"]["variants"][0]["InstanceType"] = "ml.c6i.xlarge"
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#state") == "UpdateRollbackFailed", "the state")
    assert page.text("#reason") == "Both versions fail.\nLook at the log."
    cells = [cell.text for cell in page.all("#variants td")]
    assert cells == ["AllTraffic", "1 of 2", "100 %", "ml.c6i.xlarge", "tgi:3.3.6", "Updating: One more."]
    assert "arn:aws:sagemaker:us-east-1:123456789012:endpoint/chat" in page.text("#facts")
    assert '"model": "chat"' in page.text("#example")


def test_an_endpoint_that_does_not_exist_is_said_to(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform, "#/nobody")
    page.until(lambda: page.text("#state") == "Not found", "the state")
    assert "Could not find" in page.text("#reason")


def test_traffic_is_drawn_and_read_by_keyboard(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    for second in range(300):
        status = 503 if second % 10 == 0 else 200
        platform.history.record("chat", "AllTraffic", status, 0.05, 0.4, NOW_S - second)
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all(".bars path.answered[d^=M]"), "the bars")
    assert page.find(".bars path.failed").get_attribute("d")
    assert not page.find(".bars path.refused").get_attribute("d")
    assert page.text("#charts-facts") == "300 requests · 30 failed"
    label = page.all(".chart")[1].get_attribute("aria-label")
    assert "Time to first byte. p50: now 51 ms" in label
    page.all(".chart")[0].send_keys(Keys.ARROW_LEFT * 3)
    assert "answered 0.8 · refused 0 · failed 0.2" in page.text(".readout")
    page.find("#range option[value='3600']").click()
    page.until(lambda: "answered: now 0.9" in page.find(".chart").get_attribute("aria-label"), "minutes")
    page.until(lambda: "/s · 51 ms" in page.text("#rows .rate"), "the rate in the list")


# The playground


@pytest.mark.parametrize(("mode", "path"), [("chat", "/v1/chat/completions"), ("text", "/v1/completions")])
def test_the_playground_streams(driver: webdriver.Chrome, platform: FakePlatform, mode: str, path: str) -> None:
    platform.add("chat")
    platform.words, platform.delay_s = tuple(f"word{number} " for number in range(20)), 0.03
    page = Console(driver, platform, "#/chat/playground")
    page.find(f"#mode option[value={mode}]").click()
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until(lambda: "word2" in page.answer(), "the first words")
    assert "word19" not in page.answer()
    page.until_answered()
    assert page.answer().endswith("word19")
    assert "20 tokens" in page.text(".facts")
    [(asked, body)] = platform.prompts
    assert (asked, body["model"], body["stream"]) == (path, "chat", True)
    assert body.get("prompt", "Hello") == "Hello"
    assert body.get("messages", [{"role": "user", "content": "Hello"}]) == [{"role": "user", "content": "Hello"}]


def test_stop_ends_the_request(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.words, platform.delay_s = ("word ",) * 500, 0.05
    page = Console(driver, platform, "#/chat/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until(lambda: "word" in page.answer(), "the first word")
    page.find("#stop").click()
    page.until_answered()
    assert "stopped" in page.text(".facts")
    platform.until(lambda: platform.num_aborted, "the abort")


def test_an_answer_that_ends_leaves_the_focus_where_it_is(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.delay_s = 0.1
    page = Console(driver, platform, "#/chat/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.find("#search").click()
    page.until_answered()
    assert page.run("return document.activeElement.id") == "search"


def test_what_an_endpoint_refuses_is_shown(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform, "#/nobody/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until(lambda: page.all("#conversation .error"), "the error")
    assert page.text("#conversation .error") == "The model `nobody` does not exist."


def test_another_endpoint_begins_another_conversation(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("one")
    platform.add("two")
    page = Console(driver, platform, "#/one/playground")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()
    page.run("location.hash = '#/two/playground'")
    page.until(lambda: not page.all(".message"), "an empty conversation")
    page.find("#prompt").send_keys("Again" + Keys.ENTER)
    page.until_answered()
    assert [body["model"] for _, body in platform.prompts] == ["one", "two"]
    assert platform.prompts[1][1]["messages"] == [{"role": "user", "content": "Again"}]


# Logs


def test_logs_are_followed_line_by_line(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform, "#/chat/logs")
    page.until(lambda: page.text("#log-note") == "No worker has written anything yet.", "the note")
    platform.logs["AllTraffic/worker-1"] = [f"line {number}" for number in range(600)]
    page.until(lambda: len(page.all("#lines > div")) == 500, "the last lines")
    platform.logs["AllTraffic/worker-1"].append("one more <b>line</b>")
    page.until(lambda: page.text("#lines > div:last-child .what") == "one more <b>line</b>", "the new line")
    assert len(page.all("#lines > div")) == 501
    at_end = (
        "const view = document.getElementById('lines'); return view.scrollHeight - view.scrollTop - view.clientHeight"
    )
    assert page.run(at_end) < 40


def test_logs_of_several_workers_are_told_apart_and_filtered(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.logs |= {"AllTraffic/a": ["loading", "ready"], "AllTraffic/b": ["loading", "crashed"]}
    page = Console(driver, platform, "#/chat/logs")
    page.until(lambda: len(page.all("#lines > div")) == 4, "the lines")
    assert {who.text for who in page.all("#lines .who")} == {"a", "b"}
    page.find("#log-filter").send_keys("CRASH")
    page.until(lambda: [one.text for one in page.all("#lines > div:not([hidden]) .what")] == ["crashed"], "the filter")
    page.find("#log-filter").clear()
    page.find("#log-filter").send_keys(Keys.NULL)
    page.find("#stream option[value='AllTraffic/a']").click()
    page.until(lambda: [one.text for one in page.all("#lines .what")] == ["loading", "ready"], "one worker")


def test_lines_of_our_own_workers_are_made_readable(driver: webdriver.Chrome, platform: FakePlatform) -> None:
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
    assert [line.text for line in page.all("#lines .what")] == [
        "request.finished  status=200  ids=[1,2]  finish=length",
        "cache.failed  reason=disk full",
        '{"not": "ours"}',
        "null",
        "{broken",
    ]
    assert page.text("#lines [data-level=error] .what").startswith("cache.failed")


# Deploying and deleting


def test_a_model_is_deployed_as_the_sdks_do(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    page.find("#deploy").click()
    page.find("#model").send_keys("HuggingFaceTB/SmolLM2-135M.gguf")
    assert page.find("#endpoint-name").get_attribute("value") == "SmolLM2-135M"
    page.fill("#instances", "2")
    page.find("#deploy-dialog summary").click()
    page.find("#environment").send_keys("MAX_TOTAL_TOKENS=1024\n\nA=b=c")
    page.find("#deploy-submit").click()
    page.until(lambda: page.text("#name") == "SmolLM2-135M", "the endpoint's page")
    page.until(lambda: page.text("#state") == "Creating", "its state")
    [model] = platform.asked("CreateModel")
    environment = {"HF_MODEL_ID": "HuggingFaceTB/SmolLM2-135M.gguf", "MAX_TOTAL_TOKENS": "1024", "A": "b=c"}
    assert model["PrimaryContainer"]["Environment"] == environment
    assert "tgi3" in model["PrimaryContainer"]["Image"]
    assert model["ExecutionRoleArn"] == "arn:aws:iam::123456789012:role/headrace"
    [config] = platform.asked("CreateEndpointConfig")
    assert config["ProductionVariants"][0]["InitialInstanceCount"] == 2
    assert not page.find("#deploy-dialog").is_displayed()


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("s3://b/m.tar.gz", {"ModelDataUrl": "s3://b/m.tar.gz"}),
        (
            "s3://b/folder",
            {
                "ModelDataSource": {
                    "S3DataSource": {"S3Uri": "s3://b/folder/", "S3DataType": "S3Prefix", "CompressionType": "None"}
                }
            },
        ),
    ],
)
def test_a_model_in_s3_is_named_by_its_source(
    driver: webdriver.Chrome, platform: FakePlatform, model: str, source: dict[str, object]
) -> None:
    page = Console(driver, platform)
    page.find("#deploy").click()
    page.find("#model").send_keys(model)
    page.find("#imitated option:last-child").click()
    page.find("#image").send_keys("my-image:1")
    page.find("#deploy-submit").click()
    page.until(lambda: platform.asked("CreateEndpoint"), "the deployment")
    container = platform.asked("CreateModel")[0]["PrimaryContainer"]
    assert container == {"Image": "my-image:1", "Environment": {}, **source}


def test_what_was_made_is_removed_when_the_rest_is_refused(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.refusals["CreateEndpoint"] = Refused("Cannot create already existing endpoint.")
    page = Console(driver, platform)
    page.find("#deploy").click()
    page.find("#model").send_keys("smollm2" + Keys.ENTER)
    page.until(lambda: page.text("#deploy-error") == "Cannot create already existing endpoint.", "the error")
    assert (platform.models, platform.configs) == ({}, {})
    assert page.find("#deploy-submit").is_enabled()


@pytest.mark.parametrize("tags", [[], [{"Key": "headrace:made-by", "Value": "console"}]])
def test_an_endpoint_is_deleted_and_its_parts_if_they_were_made_for_it(
    driver: webdriver.Chrome, platform: FakePlatform, tags: list[object]
) -> None:
    platform.add("chat")
    platform.configs["chat"]["tags"] = tags
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#state") == "InService", "the state")
    page.find("#delete").click()
    page.until(lambda: platform.asked("ListTags"), "the question who made it")
    page.until(lambda: page.find("#delete-all").is_selected() == bool(tags), "the answer")
    page.find("#delete-submit").click()
    page.until(lambda: page.text("#state") == "Deleted", "the end")
    page.until(lambda: page.names() == [], "a list without it")
    assert (platform.configs == {}, platform.models == {}) == (bool(tags), bool(tags))


def test_escape_deletes_nothing(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.text("#state") == "InService", "the state")
    page.find("#delete").click()
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.find("#delete-dialog").is_displayed()
    assert "chat" in platform.endpoints


# Access


def test_the_key_of_a_guarded_platform_is_asked_for_and_kept_in_the_tab(
    driver: webdriver.Chrome, platform: FakePlatform
) -> None:
    platform.key = "s3cret"
    platform.add("chat")
    page = Console(driver, platform)
    page.until(lambda: page.find("#key-dialog").is_displayed(), "the dialog")
    assert page.text("#key-error") == "A key is wanted."
    page.find("#key-value").send_keys("s3cret" + Keys.ENTER)
    page.until_listed("chat")
    assert page.run("return localStorage.length === 0 || !JSON.stringify(localStorage).includes('s3cret')")
    driver.refresh()
    page.until_listed("chat")
    page.run("location.hash = '#/chat/playground'")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()


# The page itself


def test_the_page_breaks_none_of_its_own_rules(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    platform.logs["AllTraffic/a"] = ["ready"]
    platform.history.record("chat", "AllTraffic", 200, 0.05, 0.4, NOW_S)
    driver.get_log("browser")  # what other tests provoked
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all(".bars path.answered[d^=M]"), "the charts")
    page.run("location.hash = '#/chat/logs'")
    page.until(lambda: page.all("#lines > div"), "the log")
    page.run("location.hash = '#/chat/playground'")
    page.find("#prompt").send_keys("Hello" + Keys.ENTER)
    page.until_answered()
    noise = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert noise == []


def test_what_a_platform_says_is_text_and_never_html(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    evil = "<img src=x onerror=alert(1)>"
    platform.add("chat", "Failed", FailureReason=evil)
    platform.logs["AllTraffic/a"] = [evil]
    page = Console(driver, platform, "#/chat/logs")
    page.until(lambda: page.all("#lines > div") and page.text("#reason") == evil, "the texts")
    page.until(lambda: evil in page.text("#rows .why"), "the reason in the list")
    assert page.all("#rows img, #lines img, #reason img") == []


def test_the_theme_changes_and_is_kept(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    page = Console(driver, platform)
    theme = "return document.documentElement.dataset.theme"
    before = page.run(theme)
    page.find("#theme").click()
    after = page.run(theme)
    assert {before, after} == {"light", "dark"}
    driver.refresh()
    assert page.run(theme) == after


def test_a_platform_that_went_away_is_said_to_and_found_again(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("chat")
    page = Console(driver, platform)
    page.until_listed("chat")
    driver.execute_cdp_cmd("Network.enable", {})
    gone = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    try:
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", gone)
        page.until(lambda: "not reachable" in page.text("#connection"), "the loss")
        assert page.names() == ["chat"]
    finally:
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**gone, "offline": False})
    page.until(lambda: page.text("#connection").startswith("127.0.0.1"), "the return")


def test_nothing_sticks_out_on_a_phone(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    platform.add("a-very-long-name-that-does-not-fit-on-one-line-of-a-telephone-1", FailureReason="unbroken" * 50)
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page = Console(driver, platform)
        page.until(lambda: page.all("#rows a"), "the list")
        page.find("#rows a").click()
        page.until(lambda: page.text("#state") == "InService", "the endpoint")
        for tab in ("overview", "playground", "logs"):
            page.find(f"#tab-{tab}").click()
            assert page.run("return document.documentElement.scrollWidth") <= 360
        page.find(".back").click()
        page.until(lambda: page.find("#rows").is_displayed(), "the list again")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_console_looks_as_it_should(driver: webdriver.Chrome, platform: FakePlatform) -> None:
    """With SCREENSHOT_OF_CONSOLE (a path) it also keeps the picture."""
    platform.history = History()
    for name, status in (("summaries", "InService"), ("chat", "InService"), ("draft", "Creating"), ("old", "Failed")):
        platform.add(name, status, **({"FailureReason": "The archive has no model."} if status == "Failed" else {}))
    for second in range(600):
        platform.history.record("chat", "AllTraffic", 200, 0.03 + second % 7 / 300, 0.9, NOW_S - second)
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.all(".lines path.p95[d^=M]") and "archive" in page.text("#rows"), "the page")
    page.keep_picture("SCREENSHOT_OF_CONSOLE")
