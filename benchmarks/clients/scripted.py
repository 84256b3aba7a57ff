"""
A stand-in for a model that can use tools: it copies a file with the tools that a coding agent offers.

What is tried is the way of the calls and their results between agent and server, not what a small model would answer.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.core.generation import ChatPrompt, Prompt
from headrace.testing.echo import EchoBackend, EchoScript
from headrace.testing.server import MODEL, echo_server

MAX_MODEL_LEN = 200_000
ANSWER = "The file is copied."
_TASK = re.compile(r"Copy (\S+) to (\S+) with your tools")
_CONTENT = re.compile(r"tulip \d+")

_READERS = ("Read", "read", "exec_command", "read_files")
_WRITERS = ("Write", "write", "exec_command", "editor")
"""The tools of Claude Code and Continue, OpenCode, Codex, and Cline."""
_PATHS = ("file_path", "filePath", "filepath", "path")


@contextmanager
def scripted_server() -> Iterator[tuple[str, str]]:
    """Serve the stand-in until the block ends; yield the address and the name of the model."""
    backend = EchoBackend(max_model_len=MAX_MODEL_LEN, script=EchoScript(answer=answer))
    with echo_server(backend) as server:
        yield server.url, MODEL


def answer(prompt: Prompt) -> str:
    """Return the next text of the model: read the file, write what its reader returned, then say so."""
    messages: list[Mapping[str, Any]] = list(prompt.messages) if isinstance(prompt, ChatPrompt) else []
    found = [match for message in messages for match in _TASK.findall(str(message.get("content")))]
    tools = {str(tool["function"]["name"]): tool["function"] for tool in _tools(prompt)}
    if not found or not tools:
        return "A title"
    source, target = found[-1]
    results = [str(message.get("content")) for message in messages if message.get("role") == "tool"]
    if not results:
        name = next(name for name in _READERS if name in tools)
        return _call(name, _reading(name, tools[name], source))
    if len(results) == 1:
        name = next(name for name in _WRITERS if name in tools)
        read = _CONTENT.search(results[0])
        text = read[0] if read else f"not found in: {results[0]}"
        return _call(name, _writing(name, tools[name], target, text))
    return ANSWER


def _tools(prompt: Prompt) -> list[dict[str, Any]]:
    return [dict(tool) for tool in prompt.tools or ()] if isinstance(prompt, ChatPrompt) else []


def _reading(name: str, function: Mapping[str, Any], source: str) -> dict[str, Any]:
    if name == "exec_command":
        return {"cmd": f"cat {source}"}
    if name == "read_files":
        return {"files": [{"path": source}]}
    return {_path_of(function): source}


def _writing(name: str, function: Mapping[str, Any], target: str, text: str) -> dict[str, Any]:
    if name == "exec_command":
        return {"cmd": f"echo '{text}' > {target}"}
    return {_path_of(function): target, "new_text" if name == "editor" else "content": text}


def _path_of(function: Mapping[str, Any]) -> str:
    """Return what a tool calls the path of its file."""
    properties = function["parameters"]["properties"]
    return next(name for name in _PATHS if name in properties)


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"I use {name}.\n<tool_call>\n{call}\n</tool_call>"
