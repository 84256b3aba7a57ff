"""The end of the last user message in a rendered chat, after which the next turn's prompt may differ."""

from collections.abc import Mapping, Sequence
from typing import Final

_DELIMITERS: Final = ("<", "[")
"""How the tokens that end a message begin: `<|im_end|>`, `<end_of_turn>`, `[/INST]`."""


def end_of_last_user_message(messages: Sequence[Mapping[str, object]], text: str) -> int:
    """
    Return the place in a rendered chat where the last user message ends; -1 if it is not found.

    Templates of reasoning models drop the reasoning before the last user message: when the next one arrives, the prompt
    changes from here on. An error costs time only: a checkpoint that no prompt reaches.
    """
    content = next((_text_of(message) for message in reversed(messages) if message.get("role") == "user"), "")
    stop = len(text)
    while content and (start := text.rfind(content, 0, stop)) >= 0:
        end = start + len(content)
        if text[end : end + 16].lstrip().startswith(_DELIMITERS):
            return end
        stop = end - 1
    return -1


def _text_of(message: Mapping[str, object]) -> str:
    """Return the last text of a message, without the white space that templates remove."""
    content = message.get("content")
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, Sequence) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return next((text.strip() for text in reversed(texts) if isinstance(text, str)), "")
