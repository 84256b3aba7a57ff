"""Scripted answers for an `EchoBackend`: reasoning, text and calls of tools, as a model writes them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.answer_format.call_forms import TOOL_CALL, TOOL_CALL_END
from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.generation import ChatPrompt, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer; its reasoning is told apart by an `EchoBackend(answer_format=REASONING_TAGS)` only."""

    reasoning: str = ""
    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, object]]] = ()
    """Names and arguments of tools, for requests whose `tool_choice` is `auto`."""

    def __str__(self) -> str:
        reasoning = f"{REASONING_TAGS.start}{self.reasoning}{REASONING_TAGS.end}\n" if self.reasoning else ""
        calls = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in self.calls)
        return reasoning + "\n".join(
            filter(None, [self.text, *(f"{TOOL_CALL}\n{call}\n{TOOL_CALL_END}" for call in calls)])
        )


def in_turns(*answers: Answer) -> Callable[[Prompt], Answer]:
    """Return a script for `EchoScript.answer`: a chat with n earlier answers gets answer n, or the last one."""

    def answer(prompt: Prompt) -> Answer:
        messages = prompt.messages if isinstance(prompt, ChatPrompt) else ()
        earlier = sum(message.get("role") == "assistant" for message in messages)
        return answers[min(earlier, len(answers) - 1)]

    return answer
