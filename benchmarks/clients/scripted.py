"""
A stand-in for a model that can use tools: it copies files with the tools that a coding agent offers.

What is tried is the way of the calls and their results between agent and server, not what a small model would answer.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.generation import ChatPrompt, Prompt
from headrace.testing.answers import Answer
from headrace.testing.echo import EchoBackend, EchoScript
from headrace.testing.server import MODEL, EchoServer, echo_server

MAX_MODEL_LEN = 200_000
ANSWER = "The files are copied."
THOUGHT = "Both files are read at once."
_TASK = re.compile(r"Copy (\S+) and (\S+) to (\S+) with your tools")
_WAIT = "Count without end"
_CONTENT = re.compile(r"tulip \d+")

_READERS = ("Read", "read", "exec_command", "read_files")
_WRITERS = ("Write", "write", "exec_command", "editor")
"""The tools of Claude Code and Continue, OpenCode, Codex, and Cline."""
_PATHS = ("file_path", "filePath", "filepath", "path")


@contextmanager
def scripted_server() -> Iterator[EchoServer]:
    """Serve the stand-in until the block ends."""
    script = EchoScript(answer=answer, delay_s=0.001)
    backend = EchoBackend(max_model_len=MAX_MODEL_LEN, script=script, answer_format=REASONING_TAGS)
    with echo_server(backend) as server:
        yield server


def scripted_variables(server: EchoServer) -> dict[str, str]:
    """Return the environment variables by which the scripts of agents find the stand-in."""
    return {"CLIENT_SCRIPTED_URL": server.url, "CLIENT_SCRIPTED_MODEL": MODEL}


def answer(prompt: Prompt) -> Answer:
    """Return the next answer of the model: read both files at once, write what they hold, then say so."""
    messages: list[Mapping[str, Any]] = list(prompt.messages) if isinstance(prompt, ChatPrompt) else []
    texts = [str(message.get("content")) for message in messages]
    tools = {str(tool["function"]["name"]): tool["function"] for tool in _tools(prompt)}
    if tools and any(_WAIT in text for text in texts):
        return Answer(text=" ".join(map(str, range(MAX_MODEL_LEN // 2))))
    found = [match for text in texts for match in _TASK.findall(text)]
    if not found or not tools:
        return Answer(text="A title")
    *sources, target = found[-1]
    results = [str(message.get("content")) for message in messages if message.get("role") == "tool"]
    if not results:
        name = next(name for name in _READERS if name in tools)
        calls = [(name, _reading(name, tools[name], source)) for source in sources]
        return Answer(reasoning=THOUGHT, text=f"I use {name} twice.", calls=calls)
    if len(results) == len(sources):
        name = next(name for name in _WRITERS if name in tools)
        read = " and ".join(found for result in results for found in _CONTENT.findall(result)[:1])
        return Answer(text=f"I use {name}.", calls=[(name, _writing(name, tools[name], target, read))])
    return Answer(text=ANSWER)


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
