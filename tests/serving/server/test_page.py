"""The chat page in a real browser, against the server without a model."""

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from headrace.core.errors import Busy
from headrace.testing.echo import EchoBackend, EchoScript
from tests.waiting import WAIT_S

from .chat_page import ChatPage
from .conftest import Echo, serving

pytestmark = pytest.mark.browser


def test_an_answer_streams_into_the_page_with_its_speed(page: ChatPage, echo: Echo) -> None:
    echo.backend.script = EchoScript(delay_s=0.15)
    words = " ".join(f"word{number}" for number in range(200))
    page.paste(words)
    page.until(lambda: "word3" in page.answer(), "the first words")
    assert "word199" not in page.answer()
    assert page.find("#stop").is_displayed()
    echo.backend.script = EchoScript()
    page.until_done()
    assert page.answer() == words
    facts = page.text(".facts")
    assert "201 tokens" in facts
    assert "tokens per second" in facts
    assert "first token" in facts


def test_the_page_breaks_none_of_its_own_rules(page: ChatPage) -> None:
    page.driver.get_log("browser")  # what other tests provoked
    page.driver.refresh()
    page.until(lambda: page.text("#model") == "echo", "the model's name")
    page.ask("hello **world**")
    page.until_done()
    noise = [entry for entry in page.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert noise == []


def test_the_controls_reach_the_server(page: ChatPage, echo: Echo) -> None:
    page.find("#system").send_keys("Be brief.")
    page.driver.execute_script(
        "for (const [id, value] of Object.entries({temperature: '0.4', top_p: '0.5', max_tokens: '7', seed: '11'})) {"
        "  document.getElementById(id).value = value;"
        "  document.getElementById(id).dispatchEvent(new Event('input')); }"
    )
    page.ask("one two three")
    page.until_done()
    request = echo.backend.requests[-1]
    assert (request.sampling.temperature, request.sampling.top_p) == (0.4, 0.5)
    assert (request.sampling.max_new_tokens, request.sampling.seed) == (7, 11)
    assert [message["role"] for message in request.prompt.messages] == ["system", "user"]
    page.driver.refresh()
    page.until(lambda: page.find("#seed").get_attribute("value") == "11", "the kept seed")


def test_the_page_begins_with_the_sampling_that_the_model_recommends(page: ChatPage, echo: Echo) -> None:
    page.ask("hello")
    page.until_done()
    sampling = echo.backend.requests[-1].sampling
    recommended = echo.backend.info.recommended
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 40)
    assert (recommended.temperature, recommended.top_p, recommended.top_k) == (0.7, 0.9, 40)


def test_the_conversation_is_sent_along_until_it_is_cleared(page: ChatPage, echo: Echo) -> None:
    page.ask("first")
    page.until_done()
    page.ask("second")
    page.until_done()
    assert [message["content"] for message in echo.backend.requests[-1].prompt.messages] == ["first", "first", "second"]
    page.click("#new")
    assert page.find("#welcome").is_displayed()
    assert page.all(".message") == []
    page.ask("third")
    page.until_done()
    assert [message["content"] for message in echo.backend.requests[-1].prompt.messages] == ["third"]


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stop_ends_the_answer_and_the_request(page: ChatPage, echo: Echo, way: str) -> None:
    echo.backend.script = EchoScript(delay_s=0.15)
    page.paste(" ".join(["word"] * 200))
    page.until(lambda: "word" in page.answer(), "the first word")
    page.click("#stop") if way == "button" else page.type(Keys.ESCAPE)
    page.until_done()
    assert "stopped" in page.text(".facts")
    assert page.answer().count("word") < 200
    echo.until(lambda: echo.backend.aborted, "the abort")


def test_what_the_server_refuses_is_shown_and_the_page_goes_on(page: ChatPage, echo: Echo) -> None:
    echo.backend.script = EchoScript(refusal=Busy("All seats are taken."))
    page.ask("hello")
    page.until_done()
    assert page.text(".message .error") == "All seats are taken."
    echo.backend.script = EchoScript(fail_after_tokens=2)
    page.ask("one two three")
    page.until_done()
    assert "The echo broke." in page.texts(".message .error")[-1]
    echo.backend.script = EchoScript()
    page.ask("again")
    page.until_done()
    assert page.answer() == "again"


def test_shift_enter_starts_a_new_line(page: ChatPage, echo: Echo) -> None:
    page.type("one")
    page.type(Keys.SHIFT + Keys.ENTER)
    page.find("#prompt").send_keys(Keys.NULL, "two" + Keys.ENTER)
    page.until_done()
    assert echo.backend.requests[-1].prompt.messages[-1]["content"] == "one\ntwo"


def test_the_theme_changes_and_is_kept(page: ChatPage) -> None:
    theme = "return document.documentElement.dataset.theme"
    before = page.driver.execute_script(theme)
    page.click("#theme")
    after = page.driver.execute_script(theme)
    assert {before, after} == {"light", "dark"}
    page.driver.refresh()
    assert page.driver.execute_script(theme) == after


def test_nothing_sticks_out_on_a_phone(page: ChatPage) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.ask("unbroken" * 60)
        page.until_done()
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 360
        assert not page.find("#settings").is_displayed()
        page.click("#toggle")
        assert page.find("#temperature").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_key_of_a_guarded_server_can_be_given(driver: webdriver.Chrome) -> None:
    with serving(EchoBackend(), api_key="s3cret") as guarded:
        driver.get(guarded.url)
        wait = WebDriverWait(driver, WAIT_S, poll_frequency=0.02)
        wait.until(lambda _: driver.find_element(By.ID, "model").text == "needs a key")
        driver.find_element(By.ID, "api_key").send_keys("s3cret")
        wait.until(lambda _: driver.find_element(By.ID, "model").text == "echo")
        driver.find_element(By.ID, "prompt").send_keys("hello" + Keys.ENTER)
        wait.until(lambda _: driver.find_elements(By.CSS_SELECTOR, ".facts"))
        assert driver.find_element(By.CSS_SELECTOR, ".message.assistant .text").text == "hello"


def test_the_page_looks_as_it_should(page: ChatPage, echo: Echo) -> None:
    """With SCREENSHOT_OF_CHAT (a path) it also keeps the picture."""
    echo.backend.script = EchoScript(delay_s=0.01)
    text = (
        "A **water wheel** works in three steps:\n\n1. A *headrace* brings the water.\n2. Its weight turns the wheel."
    )
    page.send(text)
    page.keep_picture("SCREENSHOT_OF_CHAT")


def test_the_page_works_under_an_allowed_host_name_and_another_one_names_the_setting(
    driver: webdriver.Chrome,
) -> None:
    with serving(allowed_hosts=("*.chat.test",)) as allowing:
        port = allowing.url.rpartition(":")[2]
        driver.get(f"http://other.test:{port}/")
        assert "--allowed-hosts other.test" in driver.find_element(By.TAG_NAME, "body").text
        page = ChatPage(driver, f"http://my.chat.test:{port}")
        page.ask("hello")
        page.until(lambda: page.texts(".message.assistant .text") == ["hello"], "the answer")
