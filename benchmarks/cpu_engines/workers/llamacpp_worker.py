"""
llama.cpp through its own `llama-batched-bench`: the same numbers of tokens, random ones.

Loads the model for each cell again; the tool's clock starts after that. One token less than requested is decoded,
because the first one comes from the prompt's last row. The tool feeds random tokens instead of sampling, which
saves the search for the best token.
"""

import json
import subprocess
import time
from typing import Any

from benchmarks.harness.worker import FIRST_PROMPT, Generation, serve


class LlamaCppEngine:
    """A program that runs once for each cell."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generation:
        if [list(FIRST_PROMPT)] == prompts:
            return self._first_token()
        lengths = {len(prompt) for prompt in prompts}
        if len(lengths) != 1:
            raise ValueError(f"Prompts of {sorted(lengths)} tokens, but the tool knows one length.")
        (length,) = lengths
        shape = ["-npp", str(length), "-ntg", str(num_tokens - 1), "-npl", str(len(prompts))]
        context = ["-c", str(len(prompts) * (length + num_tokens))]
        rows = self._run("llama-batched-bench", *shape, *context, "--output-format", "jsonl")
        row = next(json.loads(line) for line in rows.splitlines() if line.startswith("{"))
        if (row["pp"], row["tg"], row["pl"]) != (length, num_tokens - 1, len(prompts)):
            raise ValueError(f"Asked for {shape}, measured {row}.")
        return Generation(row["t"], [row["tg"] + 1] * row["pl"])

    def _first_token(self) -> Generation:
        started_s = time.perf_counter()
        self._run("llama-completion", "-no-cnv", "-n", "1", "-p", "The " * len(FIRST_PROMPT), "-c", "64")
        return Generation(time.perf_counter() - started_s, [1])

    def _run(self, tool: str, *options: str) -> str:
        command = [f"{self._settings['tools']}/{tool}", "-m", self._settings["model"], *self._settings["options"]]
        result = subprocess.run(
            [*command, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise RuntimeError(f"{tool} exited with {result.returncode}: {result.stderr[-2000:]}")
        return result.stdout

    def describe(self) -> dict[str, Any]:
        return {"version": self._settings["version"], "options": self._settings["options"]}


if __name__ == "__main__":
    serve(LlamaCppEngine)
