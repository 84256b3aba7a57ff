"""Terminal output: sanitised model text, and the line of figures below an answer."""

import sys
import time
from dataclasses import dataclass, field

import click

from headrace.core.answer_format.parser import Part, ReasoningText
from headrace.core.generation import Chunk, Finish
from headrace.tools.cli.answers import text_of
from headrace.tools.cli.tables import count_of

_HARMFUL = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127, *range(128, 160)) if code not in {9, 10}}


def printable(text: str) -> str:
    """Remove control characters: a model must not move the cursor or write the terminal's clipboard."""
    return text.translate(_HARMFUL)


def write_text(text: str) -> None:
    """Write a piece of an answer and flush; a file or pipe gets it unchanged."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def waiting_for_answer() -> str | None:
    """Return the status before the first part of an answer; None if stderr is no terminal."""
    return "waiting for the answer" if sys.stderr.isatty() else None


class PartWriter:
    """Writes an answer as it comes: reasoning dimmed on a terminal and left out of files and pipes."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_after_reasoning = False

    def write(self, part: Part) -> None:
        """Write a part; content begins on a line of its own after reasoning."""
        if isinstance(part, ReasoningText):
            if self._is_terminal:
                self._is_after_reasoning = True
                sys.stdout.write(click.style(printable(part.text), dim=True))
                sys.stdout.flush()
            return
        write_text(("\n\n" if self._is_after_reasoning else "") + text_of(part))
        self._is_after_reasoning = False


@dataclass(slots=True)
class Stopwatch:
    """Measures the speed of a streaming answer."""

    started_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float = 0.0
    num_pieces: int = 0
    finish: Finish | None = None

    def record(self, chunk: Chunk) -> None:
        """Record a chunk."""
        self.last_s = time.perf_counter()
        if chunk.text or chunk.tokens:
            self.num_pieces += max(1, len(chunk.tokens))
            self.first_s = self.first_s or self.last_s
        self.finish = chunk.finish or self.finish

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer, or its pieces if it was stopped before its finish."""
        return self.finish.output_tokens if self.finish is not None else self.num_pieces

    @property
    def elapsed_s(self) -> float:
        """Time since the start."""
        return time.perf_counter() - self.started_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def tokens_per_s(self) -> float | None:
        """Speed after the first token; None for fewer than two tokens."""
        if self.first_s is None or self.num_tokens < 2 or self.last_s <= self.first_s:
            return None
        return (self.num_tokens - 1) / (self.last_s - self.first_s)

    def line(self) -> str:
        """Return `12 tokens, 85 tokens/s, first after 40 ms, 30 of 60 prompt tokens from the cache`."""
        parts = [count_of(self.num_tokens, "token")]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        if self.ttft_s is not None:
            parts.append(f"first after {1000 * self.ttft_s:,.0f} ms")
        if self.finish is not None and self.finish.cached_tokens:
            parts.append(f"{self.finish.cached_tokens} of {self.finish.prompt_tokens} prompt tokens from the cache")
        return ", ".join(parts)
