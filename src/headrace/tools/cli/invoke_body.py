"""The body that `headrace invoke` sends for a prompt, and what it says about how the answer ended. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headrace.core.generation import RepetitionDetection
from headrace.tools.cli.group import UserFailed
from headrace.tools.cli.sampling_options import MAX_NEW_TOKENS
from headrace.tools.cli.tables import count_of

_OPENAI_NAMES = {"max_new_tokens": "max_tokens"}
_LOOKS_LIKE_JSON = re.compile(r"""\s*\{\s*(["'}]|$)""")
"""A brace that begins an object, also one with Python's quotes; not that of `{ return 0; }`."""
_INPUTS_ONLY = frozenset(
    {
        "decoder_input_details",
        "details",
        "do_sample",
        "return_full_text",
        "stop_sequences",
        "top_n_tokens",
        "truncate",
        "watermark",
    }
)
"""Parameters of TGI and LMI for which OpenAI's requests have no field."""
CONTEXT_EXCEEDED = '"context_length_exceeded"'
"""The code in the body of a refusal: prompt and answer do not fit into the context."""


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
            raise UserFailed("--parameter cannot be combined with --content-type, which sends PROMPT unchanged.")
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
            raise UserFailed("--parameter cannot be combined with a JSON prompt. Put the parameter into the JSON.")
        return text.encode()
    body: dict[str, Any] = {"inputs": text, "parameters": {"return_full_text": False, **_values(parameters)}}
    if is_streamed:
        body["stream"] = True
    return json.dumps(body).encode()


def openai_body(
    given: bytes,
    parameters: tuple[str, ...],
    models: Sequence[Mapping[str, Any]],
    *,
    is_streamed: bool,
    is_completion: bool,
) -> dict[str, Any] | None:
    """
    Return a chat of one user message, or a text to complete, for a server that lists its model as Headrace does.

    None: the server lists no such model, or a parameter has no field in OpenAI's requests.

    Args:
        given: the prompt.
        parameters: `NAME=VALUE`; `max_new_tokens` becomes `max_tokens`.
        models: the models that the server lists.
        is_streamed: the answer is streamed.
        is_completion: the text is completed even by a model that has a chat template.
    """
    model = next((model for model in models if isinstance(model.get("has_chat_template"), bool)), None)
    values = _values(parameters)
    if model is None or _INPUTS_ONLY & values.keys():
        return None
    text = given.decode("utf-8", "replace")
    is_chat = model["has_chat_template"] and not is_completion
    return {
        **({"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}),
        "max_tokens": _max_tokens(model),
        "temperature": 0,  # greedy, as `inputs` are decoded by default; OpenAI's default is 1
        "repetition_detection": asdict(RepetitionDetection()),
        **{_OPENAI_NAMES.get(name, name): value for name, value in values.items()},
        **({"stream": True} if is_streamed else {}),
    }


def without_maximum(body: Mapping[str, Any], parameters: tuple[str, ...]) -> dict[str, Any] | None:
    """Return a chat whose answer may fill the context; None if the user has set the maximum, or it is no chat."""
    is_given = {"max_tokens", "max_completion_tokens", "max_new_tokens"} & _values(parameters).keys()
    if "messages" not in body or is_given:
        return None
    return {name: value for name, value in body.items() if name != "max_tokens"}


def ending_note(finish_reason: str | None, body: Mapping[str, Any] | None, *, has_text: bool) -> str | None:
    """Return the note below an answer that was cut or has no text; `body` is the result of `openai_body`."""
    if finish_reason == "repetition":
        advice = "-p repetition_detection=null lets it go on." if body is not None else ""
        return f"The answer was stopped because it repeated itself. {advice}".rstrip()
    if finish_reason == "length":
        limit = None if body is None else body.get("max_tokens")
        most = count_of(limit, "token") if isinstance(limit, int) else "its maximum of tokens"
        what = f"The answer was cut at {most}."
        within = "" if has_text else " It has no text: it ended within its reasoning."
        return f"{what}{within}" + (" Raise -p max_tokens=N." if body is not None else "")
    if has_text:
        return None
    reason = "" if finish_reason is None else f" (finish reason: {finish_reason})"
    return f"The answer has no text: the model ended it at once{reason}."


def _max_tokens(model: Mapping[str, Any]) -> int:
    """Return the default maximum: half of a short context, so that the prompt has room."""
    length = model.get("max_model_len")
    return min(MAX_NEW_TOKENS, length // 2) if isinstance(length, int) and length > 1 else MAX_NEW_TOKENS


def _values(parameters: tuple[str, ...]) -> dict[str, Any]:
    return dict(_parameter(parameter) for parameter in parameters)


def _parameter(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the value is JSON if it parses as JSON, else a string."""
    name, equals, raw = text.partition("=")
    if not equals or not name:
        raise UserFailed(f"--parameter is {text!r}; expected NAME=VALUE.")
    try:
        return name, json.loads(raw)
    except ValueError:
        return name, raw
