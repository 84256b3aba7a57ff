"""Conversations on the chat page: kept, edited, continued and exported, with attached files; and the server's state."""

import json
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from headrace.core.errors import Busy
from headrace.testing.echo import EchoBackend, EchoScript

from .chat_page import ChatPage
from .conftest import Echo, serving

pytestmark = pytest.mark.browser


def sent(echo: Echo) -> list[str]:
    """The contents of the messages of the last request."""
    return [message["content"] for message in echo.backend.requests[-1].prompt.messages]


def titles(page: ChatPage) -> list[str]:
    return page.texts("#conversations .open-it")


def press(page: ChatPage, label: str) -> None:
    """Press the last button with a label in the conversation; some are shown only under the pointer."""
    buttons = [button for button in page.all(".message button") if button.get_attribute("textContent") == label]
    page.run("arguments[0].click()", buttons[-1])


def test_conversations_are_listed_and_survive_a_reload(page: ChatPage, echo: Echo) -> None:
    page.send("first question")
    page.click("#new")
    page.send("other question")
    page.until(lambda: titles(page) == ["other question", "first question"], "both titles")
    page.driver.refresh()
    page.until(lambda: page.all(".message") and len(titles(page)) == 2, "the open conversation and the list")
    assert page.answer() == "other question"
    page.run("document.querySelectorAll('#conversations .open-it')[1].click()")
    page.until(lambda: page.answer() == "first question", "the first conversation")
    page.send("and more")
    assert sent(echo) == ["first question", "first question", "and more"]


SLOW_DATABASE = """
    const open = IDBFactory.prototype.open;
    IDBFactory.prototype.open = function (...named) {
      const request = {};
      window.openDatabase = () => {
        const real = open.apply(this, named);
        real.onupgradeneeded = () => { request.result = real.result; request.onupgradeneeded(); };
        real.onsuccess = () => { request.result = real.result; request.onsuccess(); };
      };
      return request;
    };
"""


def test_a_question_that_is_asked_before_the_database_is_open_is_kept(page: ChatPage) -> None:
    added = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SLOW_DATABASE})
    try:
        page.driver.refresh()
        page.until(lambda: page.text("#model") == "echo", "the page again")
        page.paste("an early question")
        page.until(lambda: page.all(".facts"), "the answer")
        assert titles(page) == []
        page.run("window.openDatabase()")
        page.until_done()
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert (titles(page), page.answer()) == (["an early question"], "an early question")
    page.driver.refresh()
    page.until(lambda: page.all(".message.assistant"), "the conversation")
    assert page.answer() == "an early question"


def test_a_conversation_is_renamed_and_deleted(page: ChatPage) -> None:
    page.send("a question")
    page.until(lambda: titles(page), "its title")
    page.run("arguments[0].click()", page.find("#conversations [title=Rename]"))
    page.find("#conversations input").send_keys(Keys.CONTROL + "a", Keys.NULL, "Better title", Keys.ENTER)
    page.until(lambda: titles(page) == ["Better title"], "the new title")
    page.send("more")
    assert titles(page) == ["Better title"]
    page.run("arguments[0].click()", page.find("#conversations [title=Delete]"))
    assert page.text("#conversations .sure") == "Delete?"
    page.run("arguments[0].click()", page.find("#conversations .sure"))
    page.until(lambda: not titles(page), "an empty list")
    assert page.find("#welcome").is_displayed()
    page.driver.refresh()
    page.until(lambda: page.text("#model") == "echo", "the page again")
    assert titles(page) == []


def test_an_export_can_be_read_and_imported(page: ChatPage, tmp_path: Path) -> None:
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.send("tell me **all**")
    page.until(lambda: titles(page), "its title")
    page.click("#export-json")
    page.click("#export-markdown")
    exported, readable = tmp_path / "tell-me-all-.json", tmp_path / "tell-me-all-.md"
    page.until(lambda: exported.exists() and readable.exists(), "the files")
    assert json.loads(exported.read_text())["messages"][1]["text"] == "tell me **all**"
    assert "## Answer\n\ntell me **all**\n" in readable.read_text()
    page.click("#new")
    page.find("#import-file").send_keys(str(exported))
    page.until(lambda: len(titles(page)) == 2, "the imported conversation")
    page.until(lambda: page.text(".assistant strong") == "all", "its answer")
    exported.write_text("{}")
    page.find("#import-file").send_keys(str(exported))
    page.until(lambda: "expected a conversation" in page.text("#history-error"), "the refusal")


def test_a_question_is_edited_and_an_answer_is_asked_for_again(page: ChatPage, echo: Echo) -> None:
    page.send("one")
    page.send("two")
    first_edit = page.all(".message.user .actions button")[1]
    page.run("arguments[0].click()", first_edit)
    page.find(".edit textarea").send_keys(" more", Keys.ENTER)
    page.until(lambda: page.answer() == "one more", "the answer to the edited question")
    page.until_done()
    assert sent(echo) == ["one more"]
    assert len(page.all(".message")) == 2
    press(page, "Regenerate")
    page.until(lambda: len(echo.backend.requests) == 4, "the request")
    page.until_done()
    assert sent(echo) == ["one more"]
    assert len(page.all(".message")) == 2


def test_a_failed_answer_is_retried_and_its_question_is_not_sent_with_the_next(page: ChatPage, echo: Echo) -> None:
    echo.backend.script = EchoScript(refusal=Busy("All seats are taken."))
    page.send("lost")
    echo.backend.script = EchoScript()
    page.send("next")
    assert sent(echo) == ["next"]
    echo.backend.script = EchoScript(refusal=Busy("All seats are taken."))
    page.send("again")
    echo.backend.script = EchoScript()
    press(page, "Retry")
    page.until(lambda: page.answer() == "again", "the answer")
    assert sent(echo) == ["next", "next", "again"]


def test_an_answer_that_was_cut_is_continued(page: ChatPage, echo: Echo) -> None:
    page.run(
        "document.getElementById('max_tokens').value = 3;"
        "document.getElementById('max_tokens').dispatchEvent(new Event('input'))"
    )
    page.send("one two three four")
    assert page.answer() == "one two three"
    assert "cut at the longest answer" in page.text(".facts")
    press(page, "Continue")
    page.until(lambda: len(echo.backend.requests) == 2, "the request")
    page.until_done()
    prompt = echo.backend.requests[-1].prompt
    assert prompt.continues_final_message
    assert sent(echo) == ["one two three four", "one two three"]
    assert page.answer().startswith("one two three")
    assert "6 tokens" in page.text(".facts")
    assert len(page.all(".message")) == 2


def test_text_files_are_attached_and_others_are_refused(page: ChatPage, echo: Echo, tmp_path: Path) -> None:
    for name, content in (("a.py", b"print('```')\n"), ("b.png", b"\x89PNG\0"), ("c.txt", b"x" * 300_000)):
        (tmp_path / name).write_bytes(content)
    page.find("#file").send_keys("\n".join(str(tmp_path / name) for name in ("a.py", "b.png", "c.txt")))
    page.until(lambda: page.all("#files .file"), "the file")
    assert page.text("#files-error") == (
        "b.png is not a text file; expected text in UTF-8. c.txt has 293 KiB; expected at most 256 KiB."
    )
    page.send("what is it?")
    assert sent(echo) == ["File `a.py`:\n\n````py\nprint('```')\n````\n\nwhat is it?"]
    assert page.text(".message.user .file") == "a.py"
    assert page.all("#files .file") == []


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_files_are_dropped_and_pasted(page: ChatPage, way: str) -> None:
    page.run(
        "const data = new DataTransfer(); data.items.add(new File(['text'], 'note.md'));"
        "const event = arguments[0] === 'drop' ? new DragEvent('drop', {dataTransfer: data, bubbles: true})"
        " : new ClipboardEvent('paste', {clipboardData: data, bubbles: true});"
        "document.getElementById('prompt').dispatchEvent(event)",
        way,
    )
    page.until(lambda: "note.md" in page.text("#files"), "the file")


def test_a_base_model_is_announced_and_continues_the_text(page: ChatPage) -> None:
    with serving(EchoBackend(has_chat_template=False)) as base:
        page.driver.get(base.url)
        page.until(lambda: "base model" in page.text("#notice"), "the notice")
        assert not page.find("#suggestions").is_displayed()
        page.send("Once upon")
        assert page.answer() == "Once upon"
        assert base.backend.requests[-1].prompt == "Once upon"


def test_the_page_says_that_the_server_is_gone_and_recovers(page: ChatPage) -> None:
    page.run("window.reached = window.fetch; window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    page.type("hello" + Keys.ENTER)
    page.until(lambda: page.text("#model") == "not reachable", "the state")
    assert "not reachable" in page.text("#notice")
    assert page.text(".message .error") == "The server cannot be reached."
    page.run("window.fetch = window.reached")
    page.until(lambda: page.text("#model") == "echo", "the recovery")
    assert not page.find("#notice").is_displayed()


OTHER_MODEL = """
    const fetched = window.fetch;
    window.fetch = async (path, options) => {
      if (path === "/ping") return Response.json({ status: "Healthy", model: "other" });
      const response = await fetched(path, options);
      if (path !== "/v1/models") return response;
      const models = await response.json();
      models.data[0].id = "other";
      return Response.json(models);
    };
    document.dispatchEvent(new Event("visibilitychange"));
"""


def test_a_server_that_returns_with_another_model_between_two_checks_is_noticed(page: ChatPage) -> None:
    page.run(OTHER_MODEL)
    page.until(lambda: page.text("#model") == "other", "the name of the other model")


def test_a_key_that_the_server_refuses_is_reported_and_selected(page: ChatPage) -> None:
    with serving(EchoBackend(), api_key="s3cret") as guarded:
        page.driver.get(guarded.url)
        page.until(lambda: page.text("#model") == "needs a key", "the state")
        assert page.text("#notice") == "This server asks for an API key. Enter it in the settings."
        page.driver.switch_to.active_element.send_keys("wrong", Keys.ENTER)
        page.until(lambda: "refuses this API key" in page.text("#notice"), "the report")
        page.driver.switch_to.active_element.send_keys("s3cret", Keys.ENTER)
        page.until(lambda: page.text("#model") == "echo", "the model")
        assert not page.find("#notice").is_displayed()


def test_the_key_field_is_opened_and_focused_on_a_phone(page: ChatPage) -> None:
    size = {"width": 390, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        with serving(EchoBackend(), api_key="s3cret") as guarded:
            page.driver.get(guarded.url)
            page.until(lambda: page.text("#model") == "needs a key", "the state")
            assert page.driver.switch_to.active_element.get_attribute("id") == "api_key"
            assert page.find("#api_key").is_displayed()
            page.driver.switch_to.active_element.send_keys("s3cret", Keys.ENTER)
            page.until(lambda: page.text("#model") == "echo", "the model")
            assert not page.find("#settings").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
