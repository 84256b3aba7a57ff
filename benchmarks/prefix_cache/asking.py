"""Prompts of a given length, and the time to the first token of a server's answer to one."""

import http.client
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.harness.servers import HOST, MODEL_NAME, Launch, headrace_command

ANSWER_S = 600.0


def make_prompt(num_tokens: int, number: int) -> list[int]:
    """Return token ids that no other number's prompt begins with, of a vocabulary of at least 20,000."""
    return [1000 + (number * 7919 + index * index * 31 + index * 17) % 19_000 for index in range(num_tokens)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An answer, and how long its first token took."""

    ttft_s: float
    text: str
    cached_tokens: int


def launch(model: str, cache: Path | None, **options: object) -> Launch:
    """Return the command of a server, with the prefix cache in a folder or in memory only."""
    flags = {"served-model-name": MODEL_NAME, "log-level": "warning", "max-model-len": 8192} | options
    if cache is not None:
        flags |= {"prefix-cache-dir": cache}
    pairs = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    return Launch(arguments=(headrace_command(), "serve", model, *pairs))


def ask(port: int, prompt: list[int], *, num_tokens: int = 16) -> Asked:
    """Ask by OpenAI's stream and read the whole answer."""
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
        started_s = perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        first_s, text, cached = 0.0, "", 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if not first_s:
                first_s = perf_counter() - started_s
            text += "".join(choice["text"] for choice in event["choices"])
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    if response.status != http.client.OK or not first_s:
        raise RuntimeError(f"The server answered {response.status}.")
    return Asked(ttft_s=first_s, text=text, cached_tokens=cached)
