"""
Calibration texts that show a model's typical activations: built in (`calibration.jsonl`) or from a file of the user.

A `.jsonl` file has lines with `text` (or `prompt`) or `messages`; any other file is plain text.
"""

import json
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from headrace.core.client_text import reason_of
from headrace.core.errors import SettingsError
from headrace.core.generation import ChatPrompt
from headrace.inference.models.model import Model

MAX_SAMPLES: Final = 32
MAX_SAMPLE_TOKENS: Final = 512
"""Default length of a sample: bounds the time and the memory of a calibration."""
_BUILT_IN: Final = "calibration.jsonl"


def calibration_samples(
    model: Model, file: Path | None, *, max_samples: int, max_sample_tokens: int
) -> list[list[int]]:
    """
    Return the token ids of at most `max_samples` samples, cut to `max_sample_tokens` and to the model's context.

    They are those of a file of the user, or the built-in texts (None). Plain text is split into consecutive samples.
    Without a chat template messages are joined as text. Raises `SettingsError`, which names the line.
    """
    length = min(max_sample_tokens, model.spec.max_positions)
    samples = [ids for ids in _samples(model, file, length) if ids][:max_samples]
    if not samples:
        raise SettingsError(f"{file} contains no calibration text.")
    return samples


def _samples(model: Model, file: Path | None, length: int) -> Iterator[list[int]]:
    if file is None:
        text = resources.files("headrace.inference.models").joinpath(_BUILT_IN).read_text(encoding="utf-8")
        yield from _of_lines(model, text.splitlines(), "the built-in texts", length)
        return
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"The calibration file {file} cannot be read: {reason_of(exc)}.", path=str(file)) from exc
    if file.suffix == ".jsonl":
        yield from _of_lines(model, text.splitlines(), str(file), length)
        return
    ids = model.tokenizer.encode(text)
    yield from (ids[start : start + length] for start in range(0, len(ids), length))


def _of_lines(model: Model, lines: Iterable[str], source: str, length: int) -> Iterator[list[int]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _tokens(model, line, f"{source}, line {number}")[:length]


def _tokens(model: Model, line: str, source: str) -> list[int]:
    try:
        row = json.loads(line)
    except ValueError as exc:
        raise SettingsError(f"{source} is not JSON: {exc}.") from exc
    if not isinstance(row, dict):
        raise SettingsError(f"{source} is not an object; expected one with 'text' or 'messages'.")
    text = row.get("text", row.get("prompt"))
    if isinstance(text, str):
        return model.tokenizer.encode(text)
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise SettingsError(
            f"{source} has no text; expected 'text', or 'messages' with objects of 'role' and 'content'."
        )
    if model.chat_template is None:
        return model.tokenizer.encode("\n\n".join(message["content"] for message in messages))
    prompt = ChatPrompt(messages=messages, add_generation_prompt=False)
    return model.tokenizer.encode(model.chat_template.render(prompt), add_special_tokens=False)


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
    )
