"""
Hold the same chat with `headrace serve` and `llama-server`: time to first token, and prompt tokens computed.

Weights are random, so a bias on one token determines the answers: both servers give the same answer in every turn.
"""

import http.client
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.harness.machine import physical_cores
from benchmarks.harness.servers import HOST, MODEL_NAME, Launch, ServerProcess
from benchmarks.harness.turns import rotated
from benchmarks.synthetic.make import vocabulary

HEADRACE, LLAMA_SERVER = "Headrace", "llama-server"
ANSWER_TOKENS = 32
CONTEXT = 8192
START_S = 300.0
ANSWER_S = 300.0
LETTER, BIAS = "a", 100
"""The token that all answers consist of, and its bias."""
SYSTEM = "You answer questions about the timetable below. "
LINE = "Line {number} leaves at {hour:02}:{minute:02} from platform {platform}. "
SYSTEM_LINES, QUESTION_LINES = 30, 4
"""Each line is about 40 tokens: the file's vocabulary has one token for each byte."""

History = Literal["answers", "no reasoning"]
"""
What the next turn sends back: the answers as they were generated, or another text in their place.

The second is what clients of models that reason do: they drop the reasoning, which comes before the text.
"""
HISTORIES: tuple[History, ...] = get_args(History)
TEXT_WITHOUT_REASONING = "Yes, it does."

Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One answer of one server."""

    server: str
    history: History
    round: int
    turn: int
    prompt_tokens: int
    answer_tokens: int
    new_tokens: int
    """Tokens of the prompt that no earlier prompt or answer of this chat has."""
    computed_tokens: int
    """Tokens of the prompt that the server computed, by its own account."""
    ttft_s: float

    @property
    def recomputed_tokens(self) -> int:
        return max(0, self.computed_tokens - self.new_tokens)


def launches(path: Path, llama_server: Path, *, dtype: str, home: Path) -> dict[str, Launch]:
    """Return the commands of both servers, with the same threads and context, one answer at a time."""
    threads = str(physical_cores())
    ours = (
        *(sys.executable, "-P", "-m", "headrace", "serve", str(path), "--dtype", dtype, "--threads", threads),
        *("--max-model-len", str(CONTEXT), "--max-num-seqs", "1", "--max-draft-tokens", "0"),
        *("--served-model-name", MODEL_NAME),
    )
    theirs = (
        *(str(llama_server), "-m", str(path), "--alias", MODEL_NAME, "-t", threads, "-tb", threads),
        *("-c", str(CONTEXT), "-np", "1", "-fa", "on", "--no-webui"),
    )
    return {
        HEADRACE: Launch(arguments=ours, environment=(("HEADRACE_HOME", str(home)),)),
        LLAMA_SERVER: Launch(arguments=theirs),
    }


def run_chats(
    servers: dict[str, Launch], *, vocab: int, num_turns: int, num_rounds: int, logs: Path
) -> Iterator[ChatTurn]:
    """Start both servers and yield their answers; within a turn they answer one after the other, the other frozen."""
    bias = {str(vocabulary(vocab).index(LETTER)): BIAS}
    with ExitStack() as stack:
        running: dict[str, ServerProcess] = {}
        for name, launch in servers.items():
            running[name] = stack.enter_context(ServerProcess(launch, log=logs / f"{name}.log"))
            running[name].wait_for_token(timeout_s=START_S)
            running[name].freeze()
        for number, history in product(range(num_rounds), HISTORIES):
            chats = {name: _Chat(name, history, number, bias) for name in running}
            for turn in range(num_turns):
                for name in rotated(list(running), number + turn):
                    running[name].thaw()
                    yield chats[name].ask(running[name].port)
                    running[name].freeze()


class _Chat:
    """A chat with one server, which grows by a question and an answer each turn."""

    def __init__(self, server: str, history: History, number: int, bias: dict[str, int]) -> None:
        self._server, self._history, self._round, self._bias = server, history, number, bias
        # Chats start differently: none finds a prefix of another one.
        start = f"Chat {number}, {history}. {SYSTEM}{lines(0, SYSTEM_LINES)}"
        self._messages: list[Message] = [{"role": "system", "content": start}]
        self._turn = self._known_tokens = 0

    def ask(self, port: int) -> ChatTurn:
        """Ask the next question and take the answer into the history."""
        first = SYSTEM_LINES + self._turn * QUESTION_LINES
        question = f"These are new: {lines(first, QUESTION_LINES)}Does line {first} leave before line 7?"
        self._messages.append({"role": "user", "content": question})
        body = {
            "model": MODEL_NAME,
            "messages": self._messages,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "logit_bias": self._bias,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text, ttft_s, facts = stream(port, body)
        if text != LETTER * ANSWER_TOKENS:
            raise RuntimeError(f"{self._server} answered {text!r}; expected {ANSWER_TOKENS} times {LETTER!r}.")
        turn = self._turn_of(facts, ttft_s)
        self._messages.append(
            {"role": "assistant", "content": text if self._history == "answers" else TEXT_WITHOUT_REASONING}
        )
        self._known_tokens = turn.prompt_tokens + (ANSWER_TOKENS if self._history == "answers" else 0)
        self._turn += 1
        return turn

    def _turn_of(self, facts: dict[str, Any], ttft_s: float) -> ChatTurn:
        usage = facts["usage"]
        prompt = int(usage["prompt_tokens"])
        reused = int(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0))
        timings = facts.get("timings") or {"prompt_n": prompt - reused}
        return ChatTurn(
            server=self._server,
            history=self._history,
            round=self._round,
            turn=self._turn + 1,
            prompt_tokens=prompt,
            answer_tokens=int(usage["completion_tokens"]),
            new_tokens=prompt - self._known_tokens,
            computed_tokens=int(timings["prompt_n"]),
            ttft_s=ttft_s,
        )


def lines(first: int, count: int) -> str:
    """Return different lines of a timetable."""
    numbers = range(first, first + count)
    return "".join(LINE.format(number=n, hour=n * 7 % 24, minute=n * 13 % 60, platform=n * 5 % 17 + 1) for n in numbers)


def stream(port: int, body: dict[str, Any]) -> tuple[str, float, dict[str, Any]]:
    """Return the text of a chat completion, the seconds until its first token, and usage with what else was sent."""
    text, ttft_s, facts = "", 0.0, {}
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
        started_s = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise RuntimeError(f"The server answered {response.status}: {response.read(2000)!r}")
        for event in _events(response):
            facts |= {name: event[name] for name in ("usage", "timings") if event.get(name)}
            for choice in event.get("choices", ()):
                piece = choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
                ttft_s = ttft_s or (time.perf_counter() - started_s if piece else 0.0)
                text += piece
    return text, ttft_s, facts


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the JSON events of a stream up to its end."""
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])
