"""
The worker's side of the protocol: load once, then answer commands until the input ends.

Runs in the peers' own environments, so it imports nothing but the standard library. Messages are JSON, one per line:
commands on the standard input, answers on what was the standard output (which is moved away first, as libraries
write to it). The first answer comes when the engine is ready.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

_PR_SET_PDEATHSIG = 1
FIRST_PROMPT = tuple(range(100, 116))
"""The prompt of the first token."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Answers a command."""


@dataclass(frozen=True)
class Generation:
    """The outcome of one cell."""

    seconds: float
    output_tokens: list[int]
    """Numbers of generated tokens, by prompt."""


class Engine(Protocol):
    """An engine with a loaded model."""

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generation:
        """Generate exactly this number of tokens for each prompt, greedily, all prompts at once, and time it."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return versions and settings that matter."""
        ...


def serve(load: Callable[[dict[str, Any]], Engine]) -> None:
    """Run the worker of an engine, which is ready when it has produced a first token."""

    def start(settings: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
        engine = load(settings)
        engine.generate([list(FIRST_PROMPT)], 1)
        return engine.describe(), lambda command: asdict(engine.generate(command["prompts"], command["num_tokens"]))

    answer_commands(start)


def answer_commands(start: Callable[[dict[str, Any]], tuple[dict[str, Any], Answer]]) -> None:
    """Run a worker. The settings are the first argument, as JSON; `start` returns a description and what answers."""
    # A frozen process would not notice that its parent has ended, and would keep its memory.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        description, answer = start(json.loads(sys.argv[1]))
        send(ready=True, description=description)
        for line in sys.stdin:
            send(**answer(json.loads(line)))
    except Exception as error:  # noqa: BLE001 - the parent decides what a failure means
        traceback.print_exc()
        send(error=f"{type(error).__name__}: {error}")
