import pytest

from headrace.tools.cli.ready import BEGINNING, QUESTION, prompt_for


@pytest.mark.parametrize(
    ("models", "prompt"),
    [
        ([{"id": "chat", "has_chat_template": True}], QUESTION),
        ([{"id": "base", "has_chat_template": False}], BEGINNING),
        ([{"id": "of another server"}], QUESTION),
        ([], QUESTION),
    ],
)
def test_a_base_model_is_given_a_text_to_continue(models: list[dict[str, object]], prompt: str) -> None:
    assert prompt_for(models) == prompt
