"""
Tools for chat templates that show none: described in the system prompt, with calls and results as text.

The form of the calls is that of Hermes and Qwen, which many models have seen and `wire.openai.tool_stream` reads.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.core.answer_format.call_markers import TOOL_CALL, TOOL_CALL_END
from headrace.core.generation import ChatPrompt
from headrace.models.chat_turns import joined_text, joined_turns

Message = Mapping[str, object]
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


def with_tools_as_text(prompt: ChatPrompt, *, reads_system: bool) -> ChatPrompt:
    """
    Return a chat that needs no support for tools from its template.

    Args:
        prompt: the chat.
        reads_system: the template shows system messages; otherwise their text begins the user's first message.
    """
    messages = [*_without_tool_roles(prompt.messages)]
    if prompt.tools:
        messages = _with_system_text(messages, _described(prompt.tools))
        if not reads_system:
            messages = _with_system_in_user_turn(messages)
    return replace(prompt, messages=messages, tools=None)


def uses_tools(prompt: ChatPrompt) -> bool:
    """Return whether a chat offers tools, or has calls or results of earlier ones."""
    return bool(prompt.tools) or any(
        message.get("tool_calls") or message.get("role") in _RESULT_ROLES for message in prompt.messages
    )


def _described(tools: Sequence[Mapping[str, object]]) -> str:
    return _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


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


def _with_calls_as_text(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence):
        return message
    content = message.get("content")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else call
        content = joined_text(content, f"{TOOL_CALL}\n{json.dumps(function, ensure_ascii=False)}\n{TOOL_CALL_END}")
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _with_system_text(messages: list[Message], text: str) -> list[Message]:
    first = messages[0]
    if first.get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first.get('content')}\n\n{text}"}, *messages[1:]]


def _with_system_in_user_turn(messages: list[Message]) -> list[Message]:
    """Return the messages with the text of the first one, the system's, in front of the first one of the user."""
    system, *others = messages
    place = next((number for number, message in enumerate(others) if message.get("role") == "user"), None)
    if place is None:
        return [{**system, "role": "user"}, *others]
    asked = others[place]
    others[place] = {**asked, "content": f"{system['content']}\n\n{asked.get('content')}"}
    return others
