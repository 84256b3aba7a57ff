"""The end of the last user message is found in the forms that templates give it."""

import pytest

from headrace.inference.engine.service.turns import end_of_last_user_message

SHORT = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        pytest.param(SHORT, "<s>user\na|<e>\n<s>assistant\n", id="a letter that other words have"),
        pytest.param(SHORT, "[INST] a|[/INST]", id="square brackets"),
        pytest.param([{"role": "user", "content": " b c "}], "<u>b c| \n<a>", id="white space"),
        pytest.param(
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "hi"},
                {"role": "tool", "content": "x"},
            ],
            "<u>hi|<a>-hi-<t>x<a>",
            id="messages after it",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "see"}]}],
            "<u><image>see|<a>",
            id="parts",
        ),
    ],
)
def test_the_end_is_after_the_content(messages: list[dict[str, object]], text: str) -> None:
    place = text.index("|")
    assert end_of_last_user_message(messages, text.replace("|", "", 1)) == place


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "<s>"),
        ([{"role": "system", "content": "a"}], "<s>a<e>"),
        ([{"role": "user", "content": ""}], "<s><e>"),
        ([{"role": "user", "content": None}], "<s><e>"),
        ([{"role": "user", "content": "changed"}], "<s>CHANGED<e>"),
    ],
)
def test_a_message_that_is_not_in_the_text_has_no_end(messages: list[dict[str, object]], text: str) -> None:
    assert end_of_last_user_message(messages, text) == -1
