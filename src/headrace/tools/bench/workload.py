"""
The workload: prompts, lengths and arrival times, generated from a seed.

The same seed and settings give the same workload, independent of the server. Pure: no clock, no I/O.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Literal

from headrace.core.errors import SettingsError

_WORD_LIST = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face level office door health person art war history party result change morning
reason research girl guy moment air teacher force education foot boy age policy music process market sense
nation plan college interest death course
"""
WORDS = tuple(_WORD_LIST.split())
"""Common English words: in nearly every tokenizer a space and one of these is one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """
    A distribution of lengths in tokens.

    `fixed`: always `low`. `uniform`: from `low` to `high`, both included. `exponential`: mean `low`, cut at `high`.
    """

    kind: Literal["fixed", "uniform", "exponential"]
    low: int
    high: int

    def __str__(self) -> str:
        """Return the form that `parse_lengths` parses."""
        return {"fixed": f"{self.low}", "uniform": f"{self.low}-{self.high}", "exponential": f"~{self.low}"}[self.kind]

    def draw(self, rng: random.Random) -> int:
        """Draw a length of at least 1."""
        if self.kind == "fixed":
            return self.low
        if self.kind == "uniform":
            return rng.randint(self.low, self.high)
        return max(1, min(self.high, round(rng.expovariate(1 / self.low))))


def parse_lengths(text: str) -> Lengths:
    """
    Parse `128`, `64-256` (uniform) or `~200` (exponential with that mean, cut at eight times the mean).

    Raises:
        SettingsError: the text has none of these forms, or a length is not positive.
    """
    try:
        if text.startswith("~"):
            mean = int(text[1:])
            lengths = Lengths(kind="exponential", low=mean, high=8 * mean)
        elif "-" in text:
            low, high = (int(part) for part in text.split("-"))
            lengths = Lengths(kind="uniform", low=low, high=high)
        else:
            lengths = Lengths(kind="fixed", low=int(text), high=int(text))
    except ValueError:
        raise SettingsError(
            f"The length is '{text}'; expected 128 (fixed), 64-256 (uniform) or ~200 (exponential, mean 200)."
        ) from None
    if lengths.low < 1 or lengths.high < lengths.low:
        raise SettingsError(f"The length is '{text}'; expected at least 1, and a range from low to high.")
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """
    The arrival process of requests.

    `closed`: `concurrency` clients, each of which sends a request when its previous one has ended.
    `poisson`, `constant`: requests arrive at `rate_per_s` however many are in flight (open loop), as independent users
    do; this makes a growing queue visible.
    """

    kind: Literal["closed", "poisson", "constant"]
    concurrency: int = 1
    rate_per_s: float = 0.0

    def times_s(self, rng: random.Random) -> Iterator[float]:
        """Yield arrival times from the start of the run without end; all 0 in a closed loop."""
        now_s = 0.0
        for index in count():
            if self.kind == "constant":
                now_s = index / self.rate_per_s
            yield now_s
            if self.kind == "poisson":
                now_s += rng.expovariate(self.rate_per_s)

    @property
    def label(self) -> str:
        """A short label for the head of a table."""
        return f"C={self.concurrency}" if self.kind == "closed" else f"{self.rate_per_s:g}/s {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The prompt of a request: plain `text`, or chat `messages` from a data set."""

    text: str
    messages: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A request of the workload, with its arrival time."""

    index: int
    arrival_s: float
    """Seconds from the start of the run; 0 in a closed loop."""
    question: Question
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WordScale:
    """The measured token count of a text on a server: `tokens = fixed + per_word * words`."""

    fixed: float = 0.0
    per_word: float = 1.0

    def words_for(self, tokens: int) -> int:
        """Return the number of words for about this many tokens, at least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


def fit_word_scale(few: tuple[int, int], many: tuple[int, int]) -> WordScale:
    """Fit a line through two probes of (words, tokens that the server counted); a flat line is ignored."""
    per_word = (many[1] - few[1]) / (many[0] - few[0])
    if per_word <= 0:
        return WordScale()
    return WordScale(fixed=few[1] - per_word * few[0], per_word=per_word)


def make_text(num_words: int, rng: random.Random) -> str:
    """Return random common words; requests share prefixes only by chance, so a prefix cache gains nothing."""
    return " ".join(rng.choices(WORDS, k=num_words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Questions of random words with lengths from distributions."""

    prompt_tokens: Lengths
    output_tokens: Lengths
    shared_prefix_tokens: int = 0
    """Number of leading tokens shared by all requests (a system prompt); they count towards `prompt_tokens`."""
    scale: WordScale = WordScale()

    def questions(self, seed: int) -> Iterator[tuple[Question, int]]:
        """Yield (question, max_tokens) without end."""
        prefix = make_text(self._prefix_words(), random.Random(f"prefix {seed}"))
        rng = random.Random(f"questions {seed}")
        while True:
            num_words = self.scale.words_for(self.prompt_tokens.draw(rng))
            max_tokens = self.output_tokens.draw(rng)
            tail = make_text(max(1, num_words - self._prefix_words()), rng)
            yield Question(text=f"{prefix} {tail}".lstrip()), max_tokens

    def _prefix_words(self) -> int:
        return round(self.shared_prefix_tokens / self.scale.per_word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Questions from a file in a seeded order, repeated when they run out."""

    rows: tuple[tuple[Question, int | None], ...]
    output_tokens: Lengths
    """Answer lengths of rows without `max_tokens`."""

    def questions(self, seed: int) -> Iterator[tuple[Question, int]]:
        """Yield (question, max_tokens) without end."""
        rng = random.Random(f"questions {seed}")
        while True:
            for question, max_tokens in rng.sample(self.rows, len(self.rows)):
                yield question, max_tokens or self.output_tokens.draw(rng)


def parse_dataset(lines: Iterable[str], output_tokens: Lengths) -> Dataset:
    """
    Parse JSON lines: `{"prompt": "...", "max_tokens": 64}` or `{"messages": [...]}`; `max_tokens` is optional.

    Raises:
        SettingsError: a line is invalid (the message has its number), or there is no line.
    """
    rows = tuple(_parse_row(line, number) for number, line in enumerate(lines, start=1) if line.strip())
    if not rows:
        raise SettingsError("The data set is empty; expected at least one line of JSON.")
    return Dataset(rows=rows, output_tokens=output_tokens)


def _parse_row(line: str, number: int) -> tuple[Question, int | None]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise SettingsError(f"Line {number} of the data set is not JSON: {error}.") from error
    if not isinstance(row, dict) or not (isinstance(row.get("prompt"), str) or isinstance(row.get("messages"), list)):
        raise SettingsError(f"Line {number} of the data set has no string 'prompt' and no list 'messages'.")
    max_tokens = row.get("max_tokens")
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise SettingsError(
            f"Line {number} of the data set has max_tokens {max_tokens!r}; expected a whole number of at least 1."
        )
    messages: Sequence[dict[str, str]] = row.get("messages") or ()
    try:
        text = row.get("prompt") or "\n".join(message["content"] for message in messages)
    except (KeyError, TypeError):
        raise SettingsError(f"Line {number} of the data set has a message without a text 'content'.") from None
    return Question(text=text, messages=tuple(messages)), max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests of a run: their number or duration, arrivals and questions."""

    arrivals: Arrivals
    source: Synthetic | Dataset
    seed: int
    num_requests: int | None = None
    duration_s: float | None = None
    """No request is sent after this. With `num_requests` too, whichever is reached first ends the run."""

    def requests(self) -> Iterator[PlannedRequest]:
        """Yield the requests in order of arrival."""
        times_s = self.arrivals.times_s(random.Random(f"arrivals {self.seed}"))
        pairs = zip(times_s, self.source.questions(self.seed), strict=False)
        for index, (arrival_s, (question, max_tokens)) in enumerate(islice(pairs, self.num_requests)):
            if self.duration_s is not None and arrival_s >= self.duration_s:
                return
            yield PlannedRequest(index=index, arrival_s=arrival_s, question=question, max_tokens=max_tokens)
