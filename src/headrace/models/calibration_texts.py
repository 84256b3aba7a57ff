"""
Texts that show a model's usual activations: the built-in ones (`calibration.jsonl`), or a file of the user.

A file is JSON lines with `text` (or `prompt`) or `messages`, or, under any other name than `.jsonl`, plain text.
"""

import json
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.generation import ChatPrompt
from headrace.models.model import Model

MAX_SAMPLES: Final = 32
MAX_SAMPLE_TOKENS: Final = 512
"""What is read where nothing else is asked for: bounds the time and the memory of a calibration."""
_BUILT_IN: Final = "calibration.jsonl"


def calibration_samples(
    model: Model, file: Path | None, *, max_samples: int, max_sample_tokens: int
) -> list[list[int]]:
    """
    Token ids of the calibration texts, each cut to `max_sample_tokens`; plain text gives one sample after the other.

    Args:
        model: whose tokenizer and chat template are used; without a template messages are joined as text.
        file: the user's; None takes the built-in texts.
        max_samples: more are left out.
        max_sample_tokens: no more than the model's context is taken in any case.

    Raises:
        SettingsError: the file cannot be read or holds no text; names the line.
    """
    length = min(max_sample_tokens, model.spec.max_positions)
    samples = [ids for ids in _samples(model, file, length) if ids][:max_samples]
    if not samples:
        raise SettingsError(f"{file} holds no text to calibrate with.")
    return samples


def _samples(model: Model, file: Path | None, length: int) -> Iterator[list[int]]:
    if file is None:
        text = resources.files("headrace.models").joinpath(_BUILT_IN).read_text(encoding="utf-8")
        yield from _of_lines(model, text.splitlines(), "the built-in texts", length)
        return
    text = _read(file)
    if file.suffix == ".jsonl":
        yield from _of_lines(model, text.splitlines(), str(file), length)
        return
    ids = model.tokenizer.encode(text)
    yield from (ids[start : start + length] for start in range(0, len(ids), length))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"The calibration file {file} cannot be read: {exc}.", path=str(file)) from exc


def _of_lines(model: Model, lines: Iterable[str], source: str, length: int) -> Iterator[list[int]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _tokens(model, _row(line, f"{source}, line {number}"), f"{source}, line {number}")[:length]


def _row(line: str, source: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError as exc:
        raise SettingsError(f"{source} is not JSON: {exc}.") from exc
    if not isinstance(row, dict):
        raise SettingsError(f"{source}: wanted an object with 'text' or 'messages'.")
    return row


def _tokens(model: Model, row: dict[str, object], source: str) -> list[int]:
    text = row.get("text", row.get("prompt"))
    if isinstance(text, str):
        return model.tokenizer.encode(text)
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise SettingsError(f"{source}: wanted 'text', or 'messages' with objects of 'role' and 'content'.")
    if model.chat_template is None:
        return model.tokenizer.encode("\n\n".join(message["content"] for message in messages))
    prompt = ChatPrompt(messages=messages, add_generation_prompt=False)
    return model.tokenizer.encode(model.chat_template.render(prompt), add_special_tokens=False)


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
    )
