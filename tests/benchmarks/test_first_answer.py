"""The questions that Headrace suggests are among those whose answers benchmarks/first_answer counts."""

import re
from pathlib import Path

from benchmarks.first_answer.run import QUESTIONS

from headrace.tools.cli.ready import QUESTION

SOURCES = Path(__file__).parent.parent.parent / "src" / "headrace"
MEASURED = {question.text for question in QUESTIONS.values()}
BEYOND_A_SMALL_MODEL = {QUESTIONS[name].text for name in ("sky", "planets", "seasons")}


def test_the_suggestions_of_the_chat_page_are_measured() -> None:
    page = (SOURCES / "serving/server" / "web" / "index.html").read_text()
    block = re.search(r'id="suggestions">(.*?)</div>', page, re.DOTALL)
    assert block is not None
    suggestions = set(re.findall(r"<button[^>]*>([^<]+)<", block[1]))
    assert len(suggestions) == 4
    assert suggestions <= MEASURED - BEYOND_A_SMALL_MODEL


def test_the_question_of_commands_and_snippets_is_measured() -> None:
    snippets = (SOURCES / "platform" / "host" / "web" / "snippets.js").read_text()
    assert f'const QUESTION = "{QUESTION}";' in snippets
    assert QUESTION in MEASURED - BEYOND_A_SMALL_MODEL
