"""
The forms of messages and tools that a chat template reads, and other forms of a chat for templates that accept few.

The source of a template does not tell: loops, macros and filters read content in many ways. So short chats with marked
texts are rendered.

Joined turns, where the user's and the assistant's must alternate. Tools described in the system prompt, with calls and
results as text, where a template shows none: the form of the calls is that of Hermes and Qwen, which many models have
seen and `wire.openai.tool_calls` reads.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Final

from headrace.core.answer_format.call_forms import PYTHON_CALLS, TOOL_CALL, TOOL_CALL_END
from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt
from headrace.inference.models.render_limits import RenderingTooLong, RenderLimits

Messages = Sequence[Mapping[str, object]]
Render = Callable[[Messages, Messages | None], str]
"""Renders messages and tools; raises `InvalidRequest` if the template refuses them."""

PROBE_LIMITS: Final = RenderLimits(
    max_steps=5_000, max_seconds=1.0, max_characters=32 * 1024, max_bytes=16 * 1024 * 1024
)
"""Limits by steps, so that the forms found do not depend on the load of the machine."""
_USER: Final = {"role": "user", "content": "2648079315"}  # digits, which no template changes
_SYSTEM: Final = {"role": "system", "content": "7305194821"}
_ASSISTANT: Final = {"role": "assistant", "content": "9182465037"}
_FUNCTION: Final = "probe_6310584"
_CALL: Final = {"id": "probe0001", "type": "function", "function": {"name": _FUNCTION, "arguments": {}}}
_RESULT: Final = {"role": "tool", "content": "5827301649", "name": _FUNCTION, "tool_call_id": "probe0001"}
_CHATS: Final[Mapping[str, Messages]] = MappingProxyType(
    {
        "user": (_USER,),
        "system": (_SYSTEM, _USER),
        "assistant": (_USER, _ASSISTANT, {**_USER, "content": "4071638252"}),
        "tool": (_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _RESULT),
    }
)
"""A chat for each role, with one message of it that has a marked text; the user's form is found first."""
_TEXTS: Final = {message["role"]: str(message["content"]) for message in (_USER, _SYSTEM, _ASSISTANT, _RESULT)}
_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": _FUNCTION,
            "description": "A test.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "A."}}},
        },
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentForms:
    """The roles whose text a template shows to the model, and those whose content it reads as a list of parts only."""

    shown: frozenset[str]
    in_parts: frozenset[str]


def as_parts(message: Mapping[str, object], roles: frozenset[str]) -> Mapping[str, object]:
    """Return a message of one of the roles with its text as a list of one part."""
    content = message.get("content")
    role = message.get("role")
    if not isinstance(role, str) or role not in roles or not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def find_content_forms(render: Render) -> ContentForms:
    shown: set[str] = set()
    in_parts: frozenset[str] = frozenset()
    try:
        for role in _CHATS:
            forms = (in_parts, in_parts | {role})
            chats = {form: [as_parts(message, form) for message in _CHATS[role]] for form in forms}
            shows = (form for form, chat in chats.items() if _TEXTS[role] in (_rendered(render, chat, None) or ""))
            found = next(shows, None)
            if found is None and role == "user":
                break  # nor will it show the others
            if found is not None:
                shown.add(role)
                in_parts = found
    except RenderingTooLong:  # a probe shows nothing about this template
        return ContentForms(shown=frozenset(_CHATS), in_parts=frozenset())
    return ContentForms(shown=frozenset(shown), in_parts=in_parts)


def shows_tools(render: Render) -> bool:
    try:
        for chat in (_CHATS["user"], _CHATS["system"]):
            if _rendered(render, chat, None) is not None:
                return _FUNCTION in (_rendered(render, chat, _TOOLS) or "")
    except RenderingTooLong:
        return True
    return True  # it needs a chat of another kind, and may use tools there


def shows_calls(render: Render) -> bool:
    """Return whether a template shows the calls of earlier turns; those of LFM2 show the text beside them only."""
    try:
        shown = _rendered(render, _CHATS["tool"][:2], _TOOLS)
    except RenderingTooLong:
        return True
    return shown is None or shown.count(_FUNCTION) > (_rendered(render, _CHATS["user"], _TOOLS) or "").count(_FUNCTION)


def _rendered(render: Render, messages: Messages, tools: Messages | None) -> str | None:
    try:
        return render(messages, tools)
    except RenderingTooLong:
        raise
    except InvalidRequest:
        return None


Message = Mapping[str, object]
_JOINED: Final = ("system", "user", "assistant")
_PYTHON_SIGNS: Final = (PYTHON_CALLS.start, "List of tools: ")
"""Texts in the templates of models that write calls as Python does (LFM2)."""
_GEMMA_TURN: Final = "<|turn>"
_GEMMA_TURN_END: Final = "<turn|>\n"
_RESULT_ROLES: Final = ("tool", "function")
_INSTRUCTIONS: Final = f"""\
You can call functions to answer the user. Their signatures are between these tags:
<tools>
{{tools}}
</tools>
To call a function, answer with its name and its arguments as JSON, between these tags:
{TOOL_CALL}
{{{{"name": "<name of the function>", "arguments": {{{{"<name of an argument>": "<value>"}}}}}}}}
{TOOL_CALL_END}
Write one such block for each call and nothing after the last one. The results then come between \
<tool_response> and </tool_response>. If no function helps, answer without a call."""


def joined_chats(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """
    Yield the chat in forms with fewer turns, those that change least first.

    Neighbouring messages of one role become one; then the user's text after the result of a tool becomes part of it.
    """
    before = [*messages]
    for form in (joined_turns(messages), joined_turns(_with_text_in_results(messages))):
        if form != before:
            yield form
        before = form


def joined_turns(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with neighbours of one role joined; results of tools stay apart, as each has its call."""
    turns: list[Message] = []
    for role, neighbours in groupby(messages, key=lambda message: message.get("role")):
        group = [*neighbours]
        turns += [_joined(group)] if role in _JOINED else group
    return turns


def joined_text(first: object, second: object) -> object:
    """Return two texts as one; an empty one has no line of its own."""
    return f"{first}\n{second}" if first and second else first or second


def _with_text_in_results(messages: Sequence[Message]) -> list[Message]:
    turns: list[Message] = []
    for message in messages:
        if message.get("role") == "user" and turns and turns[-1].get("role") == "tool":
            turns[-1] = {**turns[-1], "content": joined_text(turns[-1].get("content"), message.get("content"))}
        else:
            turns.append(message)
    return turns


def _joined(messages: Sequence[Message]) -> Message:
    joined: dict[str, object] = {}
    for message in messages:
        for key, value in message.items():
            before = joined.get(key)
            if isinstance(before, list) and isinstance(value, list):
                joined[key] = [*before, *value]
            elif key in {"role", "name"}:
                joined.setdefault(key, value)
            else:
                joined[key] = joined_text(before, value)
    return joined


def with_tools_as_text(prompt: ChatPrompt, *, reads_system: bool) -> ChatPrompt:
    """
    Return a chat that needs no support for tools from its template.

    If that does not show system messages (`reads_system`), their text begins the user's first message.
    """
    messages = [*_without_tool_roles(prompt.messages)]
    if prompt.tools:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in prompt.tools)
        text = _INSTRUCTIONS.format(tools=listed)
        first = messages[0]
        if first.get("role") == "system":
            messages = [{**first, "content": f"{first.get('content')}\n\n{text}"}, *messages[1:]]
        else:
            messages = [{"role": "system", "content": text}, *messages]
        if not reads_system:
            messages = _with_system_in_user_turn(messages)
    return replace(prompt, messages=messages, tools=None)


def writes_python_calls(template: str) -> bool:
    """Return whether a template is of a family whose models write calls as Python does."""
    return any(sign in template for sign in _PYTHON_SIGNS)


def with_python_calls(prompt: ChatPrompt) -> ChatPrompt:
    """Return a chat whose calls are in the texts beside them, as Python writes them."""
    return replace(prompt, messages=[_with_calls_as_text(message, _python_call) for message in prompt.messages])


def has_gemma_turns(template: str) -> bool:
    """Return whether a template is one of Gemma 4, whose older versions read results only as a part of the calls."""
    return "tool_responses" in template and _GEMMA_TURN in template


def with_results_in_calls(prompt: ChatPrompt) -> ChatPrompt:
    """Return a chat with results, and the text after them, in the message of their calls: one turn of Gemma's."""
    turns: list[dict[str, object]] = []
    for message in prompt.messages:
        before = turns[-1] if turns else {}
        calls, results = before.get("tool_calls"), before.get("tool_responses", [])
        role, content = message.get("role"), message.get("content")
        if role == "tool" and isinstance(calls, list) and isinstance(results, list):
            before["tool_responses"] = [*results, {"name": _called(message, calls), "response": content}]
        elif role == "assistant" and results and not (before.get("content") or message.get("tool_calls")):
            before["content"] = content
        else:
            turns.append(dict(message))
    return replace(prompt, messages=turns)


def _called(result: Message, calls: Sequence[Mapping[str, object]]) -> object:
    """Return the name of the function that a result is of."""
    functions = (call.get("function") for call in calls if call.get("id") == result.get("tool_call_id"))
    names = (function.get("name") for function in functions if isinstance(function, Mapping))
    return next(names, result.get("name", "unknown"))


def with_gemma_turn(rendered: str) -> str:
    """Open the model's turn if the last one is closed: templates leave that out after a call with text and a result."""
    before, end, rest = rendered.rpartition(_GEMMA_TURN_END)
    is_open = not end or _GEMMA_TURN in rest
    return rendered if is_open else f"{before}{end}{_GEMMA_TURN}model\n{rest}"


def uses_tools(prompt: ChatPrompt) -> bool:
    """Return whether a chat offers tools, or has calls or results of earlier ones."""
    return bool(prompt.tools) or any(
        message.get("tool_calls") or message.get("role") in _RESULT_ROLES for message in prompt.messages
    )


def _without_tool_roles(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with calls and results as text; results are one turn of the user with the text after them."""
    results: list[Message] = []
    for message in messages:
        if message.get("role") in _RESULT_ROLES:
            results.append({"role": "user", "content": f"<tool_response>\n{message.get('content')}\n</tool_response>"})
        elif results and message.get("role") == "user":
            yield from joined_turns([*results, message])
            results = []
        else:
            yield from joined_turns(results)
            results = []
            yield _with_calls_as_text(message)
    yield from joined_turns(results)


def _json_call(function: object) -> str:
    return f"{TOOL_CALL}\n{json.dumps(function, ensure_ascii=False)}\n{TOOL_CALL_END}"


def _python_call(function: object) -> str:
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return _json_call(function)
    values = ", ".join(f"{name}={_literal(value)}" for name, value in function["arguments"].items())
    return f"{PYTHON_CALLS.start}[{function.get('name')}({values})]{PYTHON_CALLS.end}"


def _literal(value: object) -> str:
    """Return a JSON value as Python's literal, with JSON's strings, which mean the same."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(str(name))}: {_literal(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return str(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _with_calls_as_text(message: Message, write: Callable[[object], str] = _json_call) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence):
        return message
    content = message.get("content")
    for call in calls:
        content = joined_text(content, write(call.get("function") if isinstance(call, Mapping) else call))
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _with_system_in_user_turn(messages: list[Message]) -> list[Message]:
    """Return the messages with the text of the first one, the system's, in front of the first one of the user."""
    system, *others = messages
    place = next((number for number, message in enumerate(others) if message.get("role") == "user"), None)
    if place is None:
        return [{**system, "role": "user"}, *others]
    asked = others[place]
    others[place] = {**asked, "content": f"{system['content']}\n\n{asked.get('content')}"}
    return others
