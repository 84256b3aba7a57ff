"""Answers in Markdown on the chat page: what is drawn, what stays text, and what a stream leaves alone."""

import pytest
from selenium.webdriver.common.by import By

from headrace.testing.echo import EchoScript

from .chat_page import ChatPage
from .conftest import Echo

pytestmark = pytest.mark.browser


def test_markdown_is_drawn_and_html_stays_text(page: ChatPage) -> None:
    text = (
        "**bold** and `code` <img src=x onerror=alert(1)>\n\n- one\n- [two](https://example.com) "
        "[bad](javascript:alert(1))\n\n```\n<script>alert(2)</script>\n```"
    )
    page.send(text)
    answer = page.all(".message.assistant .text")[-1]
    assert answer.find_element(By.TAG_NAME, "strong").text == "bold"
    assert answer.find_element(By.CSS_SELECTOR, "pre code").text == "<script>alert(2)</script>"
    assert [link.get_attribute("href") for link in answer.find_elements(By.TAG_NAME, "a")] == ["https://example.com/"]
    assert len(answer.find_elements(By.TAG_NAME, "li")) == 2
    assert answer.find_elements(By.CSS_SELECTOR, "img, script") == []
    assert "<img src=x" in answer.text


def test_tables_nested_lists_and_quotes_are_drawn(page: ChatPage) -> None:
    page.send("1. one\n   - inner\n     1. deep\n\n> quoted\n\n| a | b |\n|:-:|--:|\n| 1 | 2 |\n\n~~gone~~\n\n# Title")
    assert page.text("ol ul ol li") == "deep"
    assert page.text("blockquote p") == "quoted"
    assert page.text(".table td.right") == "2"
    assert page.text(".text s") == "gone"
    assert page.text(".text h3") == "Title"


def test_code_is_coloured_and_copied_as_it_is(page: ChatPage) -> None:
    code = 'def f(a):\n    return "<b>&amp;" + a'
    page.send(f"```python\n{code}\n```\n\n```nolanguage\nx\n```")
    page.until(lambda: page.all(".hljs-keyword"), "colours")
    assert page.text(".hljs-string") == '"<b>&amp;"'
    assert page.find(".code code").get_attribute("textContent") == code
    page.run(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true});"
        "document.addEventListener('copy', () => { window.copied = document.activeElement.value; }, {once: true})"
    )
    page.stop_timers()  # the word goes away after a moment
    page.click(".copy-code")
    page.until(lambda: page.text(".copy-code") == "Copied", "the confirmation")
    assert page.run("return window.copied") == code


def test_formulas_are_drawn_and_prices_are_not(page: ChatPage) -> None:
    page.send("\\(a^2\\) costs $5 or $10, $E=mc^2$\n\n$$\nx\n+ y\n$$\n\n\\[ z \\]\n\n$\\nosuchcommand$ `$n$`")
    page.until(lambda: len(page.all(".katex")) == 4, "four formulas")
    sources = [node.get_attribute("data-source") for node in page.all(".formula")]
    assert sources == ["a^2", "E=mc^2", "x\n+ y", "z", "\\nosuchcommand"]
    assert page.text(".formula.invalid") == "\\nosuchcommand"
    assert len(page.all(".formula.display")) == 2
    assert "costs $5 or $10," in page.answer()


def test_a_selection_survives_the_stream(page: ChatPage, echo: Echo) -> None:
    echo.backend.script = EchoScript(delay_s=0.02)
    filler = " ".join(f"w{number}" for number in range(60))
    page.run("document.getElementById('prompt').value = arguments[0]", f"First **words** here.\n\n- item {filler}")
    page.run("document.getElementById('composer').requestSubmit()")
    page.until(lambda: "w3" in page.answer(), "the second block")
    page.run(
        "const [p, li] = document.querySelectorAll('.assistant .text p, .assistant .text li');"
        "getSelection().setBaseAndExtent(p.firstChild, 2, li.firstChild, 4)"
    )
    selected = page.run("return getSelection().toString()")
    assert "words here." in str(selected)
    page.until_done()
    assert "w59" in page.answer()
    assert page.run("return getSelection().toString()") == selected


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("plain", "", "plain"),
        ("<thi", "", ""),
        ("<think>so", "so", ""),
        ("\n<think>\nso\n</think>\n\nyes", "so", "yes"),
        ("opened by the template</think>yes", "opened by the template", "yes"),
        ("a <think> in the middle", "", "a <think> in the middle"),
    ],
)
def test_reasoning_in_the_text_is_split_off(page: ChatPage, text: str, reasoning: str, content: str) -> None:
    split = page.module("thinking.js", "m.splitThinking(arguments[0])", text)
    assert split == {"reasoning": reasoning, "content": content}


def test_reasoning_is_folded_when_the_answer_begins(page: ChatPage, echo: Echo) -> None:
    echo.backend.script = EchoScript(delay_s=0.15)
    thought = " ".join(f"look{number}" for number in range(180))
    page.paste(f"<think> {thought} </think> it is seven and more words follow")
    page.until(lambda: page.text(".reasoning summary") == "Thinking…", "the reasoning")
    assert page.find(".reasoning").get_attribute("open")
    echo.backend.script = EchoScript()
    page.until_done()
    assert page.text(".reasoning summary").startswith("Thought for ")
    assert not page.find(".reasoning").get_attribute("open")
    assert page.answer() == "it is seven and more words follow"
    page.click(".reasoning summary")
    assert page.text(".reasoning .text") == thought
