"""
The bodies of `headrace invoke`: the one that it sends for a prompt, and the text in that of the answer. Pure.

Answers are server-sent events, JSON lines, a JSON value (LMI 0.25 streams it in pieces) or plain text, in any dialect.
An unknown format is treated as plain text.
"""

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum, auto
from typing import Any

from headrace.core.generation import RepetitionDetection
from headrace.tools.cli.group import UserFailed
from headrace.tools.cli.sampling_options import MAX_NEW_TOKENS
from headrace.tools.cli.tables import count_of

_LOOKS_LIKE_JSON = re.compile(r"""\s*\{\s*(["'}]|$)""")
"""A brace that begins an object, also one with Python's quotes; not that of `{ return 0; }`."""
_INPUTS_ONLY = frozenset(
    {"decoder_input_details", "details", "do_sample", "return_full_text"}
    | {"stop_sequences", "top_n_tokens", "truncate", "watermark"}
)
"""Parameters of TGI and LMI for which OpenAI's requests have no field."""
CONTEXT_EXCEEDED = '"context_length_exceeded"'
"""The code in the body of a refusal: prompt and answer do not fit into the context."""
_MAX_LINE = 1 << 20
_ONE_OBJECT = re.compile(r'\s*\{\s*"generated_text"\s*:\s*"')
"""The start of the single object that LMI 0.25 streams in pieces."""
_WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*'
)
"""Complete characters of a JSON string: an escape, or a surrogate pair, that is cut off does not match."""
_LINE_MARKS = ("data:", "event:", ":", "{", "[")


def request_body(
    given: bytes,
    parameters: tuple[str, ...],
    *,
    is_streamed: bool,
    content_type: str | None = None,
    is_completion: bool = False,
) -> bytes:
    """
    Return a JSON object or what has a type unchanged, and any other text as `inputs`.

    Raises:
        UserFailed: the text looks like a JSON object and is none, or parameters have no place in the body.
    """
    if content_type is not None:
        if parameters:
            raise UserFailed("-n, -t and --parameter have no effect with --content-type, which sends PROMPT unchanged.")
        return given
    text = given.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError as error:
        if _LOOKS_LIKE_JSON.match(text) and not is_completion:
            hint = "Correct it; --completion sends PROMPT as text, --content-type sends it as it is."
            raise UserFailed(f"PROMPT looks like a JSON object, but it is not JSON: {error}. {hint}") from error
        value = None
    if isinstance(value, dict):
        if parameters:
            raise UserFailed("-n, -t and --parameter have no effect on a JSON prompt. Put them into the JSON.")
        return text.encode()
    body: dict[str, Any] = {"inputs": text, "parameters": {"return_full_text": False, **_values(parameters)}}
    if is_streamed:
        body["stream"] = True
    return json.dumps(body).encode()


def openai_bodies(
    given: bytes,
    parameters: tuple[str, ...],
    models: Sequence[Mapping[str, Any]],
    *,
    is_streamed: bool,
    is_completion: bool,
) -> list[dict[str, Any]]:
    """
    Return a chat of one user message, or a text to complete, for a server that lists its model as Headrace does.

    A chat without the maximum of tokens follows, whose answer may fill the context, unless the user has set the
    maximum. Empty: the server lists no such model, or a parameter has no field in OpenAI's requests.
    """
    model = next((model for model in models if isinstance(model.get("has_chat_template"), bool)), None)
    values = _values(parameters)
    if model is None or _INPUTS_ONLY & values.keys():
        return []
    text = given.decode("utf-8", "replace")
    is_chat = model["has_chat_template"] and not is_completion
    length = model.get("max_model_len") or 0
    is_short = isinstance(length, int) and 1 < length < 2 * MAX_NEW_TOKENS
    body = {
        **({"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}),
        "max_tokens": length // 2 if is_short else MAX_NEW_TOKENS,  # half of a short context is for the prompt
        "temperature": 0,  # greedy, as `inputs` are decoded by default; OpenAI's default is 1
        "repetition_detection": asdict(RepetitionDetection()),
        **{"max_tokens" if name == "max_new_tokens" else name: value for name, value in values.items()},
        **({"stream": True} if is_streamed else {}),
    }
    if not is_chat or {"max_tokens", "max_completion_tokens", "max_new_tokens"} & values.keys():
        return [body]
    return [body, {name: value for name, value in body.items() if name != "max_tokens"}]


def ending_note(finish_reason: str | None, body: Mapping[str, Any] | None, *, has_text: bool) -> str | None:
    """Return the note below an answer that was cut or has no text; `body` is the first of `openai_bodies`."""
    if finish_reason == "repetition":
        advice = "-P repetition_detection=null lets it go on." if body is not None else ""
        return f"The answer was stopped because it repeated itself. {advice}".rstrip()
    if finish_reason == "length":
        limit = None if body is None else body.get("max_tokens")
        most = count_of(limit, "token") if isinstance(limit, int) else "its maximum of tokens"
        within = "" if has_text else " It has no text: it ended within its reasoning."
        return f"The answer was cut at {most}.{within}" + (" Raise --max-new-tokens (-n)." if body is not None else "")
    if has_text:
        return None
    reason = "" if finish_reason is None else f" (finish reason: {finish_reason})"
    return f"The answer has no text: the model ended it at once{reason}."


def _values(parameters: tuple[str, ...]) -> dict[str, Any]:
    """Parse `NAME=VALUE`; a value is JSON if it parses as JSON, else a string."""
    values: dict[str, Any] = {}
    for parameter in parameters:
        name, equals, raw = parameter.partition("=")
        if not equals or not name:
            raise UserFailed(f"--parameter is {parameter!r}; expected NAME=VALUE.")
        try:
            values[name] = json.loads(raw)
        except ValueError:
            values[name] = raw
    return values


class _Form(Enum):
    UNKNOWN = auto()
    FIRST_LINE = auto()
    """Events or JSON whose first line has not ended: it may turn out to be a single object."""
    LINES = auto()
    ONE_OBJECT = auto()
    """Inside the text of one object."""
    PLAIN = auto()


class AnswerText:
    """An incremental parser of an answer; `feed` returns the new text."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""
        self._form = _Form.UNKNOWN
        self.finish_reason: str | None = None
        """See `finish_reason_of`; None: the answer has not said it."""

    def feed(self, part: bytes) -> str:
        """Parse a part and return its text."""
        self._pending += self._decode(part)
        if self._form in (_Form.UNKNOWN, _Form.FIRST_LINE):
            self._find_form()
        if self._form is _Form.PLAIN:
            return self._take()
        if self._form is _Form.ONE_OBJECT:
            return self._take_complete_characters()
        if self._form is _Form.UNKNOWN:
            return ""
        *lines, self._pending = self._pending.split("\n")
        if lines:
            self._form = _Form.LINES
        if len(self._pending) > _MAX_LINE:
            self._form = _Form.PLAIN
        return "".join(self._read_line(line) for line in lines)

    def finish(self) -> str:
        """Return the remaining text at the end of the stream."""
        self._pending += self._decode(b"", True)
        if self._form is _Form.ONE_OBJECT:
            return self._take_complete_characters()
        rest = self._take()
        return self._read_line(rest) if self._form in (_Form.FIRST_LINE, _Form.LINES) else rest

    def _read_line(self, line: str) -> str:
        """Return the new text in a line: an event, a JSON value or plain text."""
        line = line.strip()
        if not line or line.startswith((":", "event:", "id:", "retry:")):
            return ""
        data = line[5:].strip() if line.startswith("data:") else line
        if data == "[DONE]":
            return ""
        try:
            value = json.loads(data)
        except ValueError:
            return line + "\n"
        self.finish_reason = finish_reason_of(value) or self.finish_reason
        text = text_of_value(value)
        return line + "\n" if text is None else text

    def _find_form(self) -> None:
        """Decide the format by the first characters, once they cannot become another mark."""
        begun = self._pending.lstrip()
        one_object = _ONE_OBJECT.match(begun)
        if one_object is not None:
            self._pending = begun[one_object.end() :]
            self._form = _Form.ONE_OBJECT
        elif begun.startswith(_LINE_MARKS):
            self._form = _Form.FIRST_LINE
        elif begun and not any(mark.startswith(begun) for mark in _LINE_MARKS):
            self._form = _Form.PLAIN

    def _take_complete_characters(self) -> str:
        """Take the complete characters; anything after the closing quote stays pending."""
        whole = _WHOLE_CHARACTERS.match(self._pending)
        assert whole is not None, "the pattern also matches the empty string"
        self._pending = self._pending[whole.end() :]
        try:
            return str(json.loads(f'"{whole[0]}"', strict=False))
        except ValueError:
            return whole[0]

    def _take(self) -> str:
        taken, self._pending = self._pending, ""
        return taken


def text_of_value(value: Any) -> str | None:
    """Return the new text in a JSON value of TGI, LMI or OpenAI, or None for any other value."""
    if isinstance(value, list):
        texts = [text_of_value(item) for item in value]
        known = [text for text in texts if text is not None]
        return "\n".join(known) if known and len(known) == len(texts) else None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("choices"), list):
        return "".join(_text_of_choice(choice) for choice in value["choices"] if isinstance(choice, dict))
    if isinstance(value.get("token"), dict):
        token = value["token"]
        return "" if token.get("special") or token.get("special_token") else str(token.get("text") or "")
    if "generated_text" in value:
        return str(value["generated_text"] or "")
    return None


def finish_reason_of(value: Any) -> str | None:
    """Return the finish reason in a JSON value of TGI, LMI or OpenAI; `repetition` if the answer repeated itself."""
    if isinstance(value, list):
        return next((reason for reason in map(finish_reason_of, value) if reason is not None), None)
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    ends = choices if isinstance(choices, list) else [value.get("details")]
    for end in ends:
        if isinstance(end, dict) and end.get("finish_reason"):
            return "repetition" if end.get("stop_reason") == "repetition_detected" else str(end["finish_reason"])
    return None


def _text_of_choice(choice: dict[str, Any]) -> str:
    inner = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or (inner.get("content") if isinstance(inner, dict) else "") or "")
