"""
Calls and results of earlier turns, and tools, in the forms that a chat template reads.

Where a template shows no tools, the system prompt describes them, and calls and results are text. The form of the calls
is that of Hermes and Qwen, which many models have seen and `wire.openai.tool_calls` reads, unless the template shows
calls in a form of its own (DeepSeek V3.1). Where a template shows tools but no calls, they are in the text beside them,
in the form of the family (LFM2, Granite 3.3).
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from headrace.core.answer_format.call_forms import (
    DEEPSEEK_CALLS,
    JSON_ENDS,
    PYTHON_CALLS,
    TOOL_CALL,
    TOOL_CALL_END,
)
from headrace.core.generation import ChatPrompt
from headrace.inference.models.chat_forms import (
    PROBE_CALL,
    PROBE_CHATS,
    PROBE_FUNCTION,
    PROBE_TOOLS,
    Message,
    Messages,
    Render,
    joined_text,
    joined_turns,
    rendered_or_none,
)
from headrace.inference.models.render_limits import RenderingTooLong

_PYTHON_SIGNS: Final = (PYTHON_CALLS.start, "List of tools: ")
"""Texts in the templates of models that write calls as Python does (LFM2)."""
_GEMMA_TURN: Final = "<|turn>"
_GEMMA_TURN_END: Final = "<turn|>\n"
_SHORT_ID: Final = re.compile(r"[0-9A-Za-z]{9}")
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


_DEEPSEEK_INSTRUCTIONS: Final = f"""\
## Tools
You have access to the following tools:
{{tools}}
IMPORTANT: ALWAYS adhere to this exact format for tool use:
{DEEPSEEK_CALLS.start}{DEEPSEEK_CALLS.call}tool_call_name{DEEPSEEK_CALLS.arguments}tool_call_arguments\
{DEEPSEEK_CALLS.call_end}{{{{{{{{additional_tool_calls}}}}}}}}{DEEPSEEK_CALLS.end}

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""
"""Source: the model card of DeepSeek V3.1, whose template shows calls but leaves tools to the system prompt."""
_ARGUMENTS: Final = {"probe_a": "4410962738"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTurns:
    """The way in which a template reads the calls of earlier turns."""

    are_shown: bool
    """False: it shows only the text beside them."""
    have_text: bool
    """It reads arguments as JSON text, not as an object."""
    take_long_ids: bool = True
    """False: an id must have nine letters or digits (Mistral)."""


def find_call_turns(render: Render) -> CallTurns:
    chats = [_chat_with_call(arguments) for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS))]
    chats += [_chat_with_call(_ARGUMENTS, call_id="call_0123456789"), PROBE_CHATS["user"]]
    try:
        of_object, of_text, of_long_id, without = [rendered_or_none(render, chat, PROBE_TOOLS) for chat in chats]
    except RenderingTooLong:
        return CallTurns(are_shown=True, have_text=False)
    reads_text = of_text is not None and json.dumps(_ARGUMENTS) in of_text
    is_python = of_object is not None and str(_ARGUMENTS) in of_object and "'arguments': " not in of_object
    have_text = reads_text and (of_object is None or is_python)
    shown = of_text if have_text else of_object
    are_shown = shown is None or shown.count(PROBE_FUNCTION) > (without or "").count(PROBE_FUNCTION)
    take_long_ids = of_object is None or of_long_id is not None
    return CallTurns(are_shown=are_shown, have_text=have_text, take_long_ids=take_long_ids)


def _chat_with_call(arguments: object, *, call_id: object = PROBE_CALL["id"]) -> Messages:
    call = {**PROBE_CALL, "id": call_id, "function": {"name": PROBE_FUNCTION, "arguments": arguments}}
    return (*PROBE_CHATS["user"], {"role": "assistant", "content": "", "tool_calls": [call]})


def with_tools_as_text(prompt: ChatPrompt, *, reads_system: bool) -> ChatPrompt:
    """
    Return a chat that needs no support for tools from its template.

    If that does not show system messages (`reads_system`), their text begins the user's first message.
    """
    messages = [*_without_tool_roles(prompt.messages)]
    if prompt.tools:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in prompt.tools)
        messages = _with_instructions(messages, _INSTRUCTIONS.format(tools=listed), reads_system=reads_system)
    return replace(prompt, messages=messages, tools=None)


def describes_deepseek_calls(template: str) -> bool:
    """Return whether a template has DeepSeek's calls without the name of their type (V3.1, not V3 and R1)."""
    return DEEPSEEK_CALLS.call in template and "```json" not in template


def with_deepseek_tools(prompt: ChatPrompt, *, reads_system: bool) -> ChatPrompt:
    """Return a chat with its tools in the system prompt, as DeepSeek V3.1 has learnt them."""
    if not prompt.tools:
        return prompt
    functions = [function for tool in prompt.tools if isinstance(function := tool.get("function"), Mapping)]
    listed = "".join(
        f"\n### {function.get('name')}\nDescription: {function.get('description', '')}\n\n"
        f"Parameters: {json.dumps(function.get('parameters', {}), ensure_ascii=False)}\n"
        for function in functions
    )
    text = _DEEPSEEK_INSTRUCTIONS.format(tools=listed)
    messages = _with_instructions([*prompt.messages], text, reads_system=reads_system)
    return replace(prompt, messages=messages, tools=None)


def _with_instructions(messages: list[Message], text: str, *, reads_system: bool) -> list[Message]:
    first = messages[0]
    if first.get("role") == "system":
        messages = [{**first, "content": f"{first.get('content')}\n\n{text}"}, *messages[1:]]
    else:
        messages = [{"role": "system", "content": text}, *messages]
    return messages if reads_system else _with_system_in_user_turn(messages)


def with_calls_in_content(prompt: ChatPrompt, template: str) -> ChatPrompt:
    """Return a chat whose calls are in the texts beside them, if the template's text points to their form."""
    marker = next((marker for marker in JSON_ENDS if marker in template), None)
    if any(sign in template for sign in _PYTHON_SIGNS):
        write = _python_calls
    elif marker is None:
        return prompt
    else:
        write = _json_calls if marker == TOOL_CALL else partial(_listed_calls, marker)
    return replace(prompt, messages=[_with_calls_as_text(message, write) for message in prompt.messages])


def with_text_arguments(prompt: ChatPrompt) -> ChatPrompt:
    """Return a chat whose calls have their arguments as JSON text."""
    return replace(prompt, messages=[_with_text_arguments(message) for message in prompt.messages])


def _with_text_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence):
        return message
    return {**message, "tool_calls": [{**call, "function": _text_function(call.get("function"))} for call in calls]}


def _text_function(function: object) -> object:
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return function
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def with_short_ids(prompt: ChatPrompt) -> ChatPrompt:
    """Return a chat whose calls and results have ids of nine letters and digits."""
    return replace(prompt, messages=[_with_short_ids(message) for message in prompt.messages])


def _with_short_ids(message: Message) -> Message:
    short = dict(message)
    if "tool_call_id" in message:
        short["tool_call_id"] = _short_id(message["tool_call_id"])
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence):
        short["tool_calls"] = [{**call, "id": _short_id(call.get("id"))} for call in calls]
    return short


def _short_id(call_id: object) -> str:
    text = str(call_id)
    return text if _SHORT_ID.fullmatch(text) else f"{zlib.crc32(text.encode()):09x}"


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


def _json_calls(functions: Sequence[object]) -> str:
    return "\n".join(map(_json_call, functions))


def _json_call(function: object) -> str:
    return f"{TOOL_CALL}\n{json.dumps(function, ensure_ascii=False)}\n{TOOL_CALL_END}"


def _listed_calls(marker: str, functions: Sequence[object]) -> str:
    return f"{marker}{json.dumps(functions, ensure_ascii=False)}{JSON_ENDS[marker]}"


def _python_calls(functions: Sequence[object]) -> str:
    return "\n".join(map(_python_call, functions))


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


def _with_calls_as_text(message: Message, write: Callable[[Sequence[object]], str] = _json_calls) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence) or not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    functions = [call.get("function") if isinstance(call, Mapping) else call for call in calls]
    content = joined_text(message.get("content"), write(functions))
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
