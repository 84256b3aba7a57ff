"""
The worker's side of the protocol: load once, then answer commands until the input ends.

Runs in the peers' own environments, so it imports nothing but the standard library. Messages are JSON, one per line:
commands on the standard input, answers on what was the standard output (which is moved away first, as libraries
write to it). The first answer comes after a first token has been produced.
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
    """Run a worker. The settings are the first argument, as JSON."""
    # A frozen process would not notice that its parent has ended, and would keep its memory.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        engine = load(settings)
        engine.generate([list(FIRST_PROMPT)], 1)
        answer(ready=True, description=engine.describe())
        for line in sys.stdin:
            command = json.loads(line)
            answer(**asdict(engine.generate(command["prompts"], command["num_tokens"])))
    except Exception as error:  # noqa: BLE001 - the parent decides what a failure means
        traceback.print_exc()
        answer(error=f"{type(error).__name__}: {error}")
