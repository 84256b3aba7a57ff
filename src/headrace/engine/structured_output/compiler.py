"""
Compiled grammars and the masks of allowed tokens, by llguidance.

`GrammarCompiler` runs on threads of its own: a schema that takes a second to compile delays only its own requests,
which are not queued yet, and other large ones. `GrammarState` is the state of one sequence in its grammar; only the
engine thread uses it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from headrace.core.errors import Busy, InvalidRequest
from headrace.core.generation import Grammar, GrammarKind
from headrace.core.threads import lower_thread_priority
from headrace.engine.structured_output.json_names import BEGINNING, JsonPlace, NameIndex, clear, follow, is_allowed
from headrace.engine.structured_output.source import GrammarError, grammar_source, has_maps, pattern_sources
from headrace.models.tokenizer import Tokenizer

_log = structlog.get_logger("headrace.engine")

_MAX_KEPT = 128
_MAX_KEPT_CHARS = 8_000_000
"""Characters of all cached grammars; the compiled form takes about ten times as much memory."""
_MAX_PENDING = 64
_MIN_PARALLEL_MASKS = 4
_NUM_MASK_THREADS = 2
_LARGE_CHARS = 20_000
_MAX_ERROR_CHARS = 300
_JSON_KINDS = ("json_schema", "json_object")
_NAMES: dict[GrammarKind, str] = {
    "json_schema": "JSON schema",
    "json_object": "white space pattern",
    "regex": "regular expression",
    "choice": "list of choices",
    "lark": "Lark grammar",
    "ebnf": "grammar",
    "structural_tag": "structural tag",
}
_MEANINGS = {
    "NoExtension": "it allows no text at all.",
    "circular references with sibling keys": "a `$ref` that leads back to itself has other keywords beside it. "
    "Move them into the schema that it refers to.",
    "oneOf constraints are not supported": "a value may fit two branches of its `oneOf`. Use `anyOf`.",
    "min/maxProperties only supported": "`minProperties` and `maxProperties` are supported where all `properties` are "
    "`required`, and 1 where none is.",
    "too many expressions constructed": "it is too complex. Use smaller bounds in `{m,n}`, and do not nest them.",
    "lexer precomputation failed": "it is too complex. Use fewer repetitions.",
    "recursion limit exceeded": "it is nested too deeply. Use `$defs` and `$ref` to make it flatter.",
}
"""Explanations of llguidance's errors, by a part of their text."""


class GrammarState:
    """The state of one sequence in its grammar."""

    def __init__(
        self,
        matcher: Any,
        *,
        num_mask_bytes: int,
        vocab_size: int,
        names: NameIndex | None = None,
        place: JsonPlace = BEGINNING,
    ) -> None:
        """Wrap a matcher; with `names`, no object of the answer repeats a name."""
        self.matcher = matcher
        self._names = names
        self._place = place
        self.num_words = -(-vocab_size // 32)
        self._words = np.zeros(max(self.num_words, num_mask_bytes // 4), np.uint32)
        self._num_mask_bytes = num_mask_bytes
        self.has_mask = False
        """Whether the mask of this place is computed."""

    @property
    def is_complete(self) -> bool:
        """True if only the end of the answer may follow."""
        return bool(self.matcher.is_stopped())

    @property
    def fills_words(self) -> bool:
        """True if the matcher's mask is as wide as the model's vocabulary."""
        return self._num_mask_bytes == 4 * self.num_words

    @property
    def error(self) -> str | None:
        """The reason why the grammar cannot continue (a limit of the parser), or None."""
        return _reason(self.matcher.get_error()) if self.matcher.is_error() else None

    def mask(self) -> npt.NDArray[np.uint32]:
        """Return the allowed next tokens as bits, ceil(vocab / 32) words; valid until a token is accepted."""
        if not self.has_mask:
            self.take_mask(self._grammar_mask())
        return self._words[: self.num_words]

    def take_mask(self, words: npt.NDArray[np.uint32]) -> None:
        """Keep a mask that the matcher computed, without the tokens that repeat a name."""
        self._words[: self.num_words] = words
        self._forbid_repeats(self._words[: self.num_words])
        self.has_mask = True

    def only_token(self) -> int | None:
        """Return the token that must come next, if no other one is allowed."""
        words = self.mask()
        places = np.flatnonzero(words)
        if len(places) != 1:
            return None
        word = int(words[places[0]])
        return None if word & (word - 1) else 32 * int(places[0]) + word.bit_length() - 1

    def _grammar_mask(self) -> npt.NDArray[np.uint32]:
        self.matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._num_mask_bytes)
        return self._words[: self.num_words]

    def _forbid_repeats(self, words: npt.NDArray[np.uint32]) -> None:
        """Forbid the tokens in a mask of this state that complete a used name, unless nothing else is allowed."""
        if self._names is None:
            return
        repeating = self._names.repeating(self._place, words)
        spelling = [token for token in self._names.spelling(self._place) if is_allowed(words, np.array([token]))[0]]
        repeating += [token for token in spelling if self._must_repeat_after(token)]
        if repeating:
            before = words.copy()
            clear(words, repeating)
            if not words.any():
                words[:] = before

    def _must_repeat_after(self, token_id: int) -> bool:
        letters = [] if self._names is None else self._names.letters
        if any(self.matcher.validate_tokens([token_id, letter]) == 2 for letter in letters):
            return False  # 100 times as cheap as a fork
        after = self.fork()
        after.accept(token_id)
        return after.has_only_repeats()

    def has_only_repeats(self) -> bool:
        """Return whether only the end of a used name may follow: with `^[0-9]{4}$`, after its fourth digit."""
        words = self._grammar_mask()
        if self._names is not None:
            clear(words, self._names.repeating(self._place, words))
        return not words.any()

    def accept(self, token_id: int) -> None:
        """Advance by a drawn token."""
        self.matcher.consume_token(token_id)
        self.has_mask = False
        if self._names is not None:
            self._place = follow(self._place, self._names.tokens[token_id])

    def fork(self) -> "GrammarState":
        """Return an independent copy of the state."""
        return GrammarState(
            self.matcher.deep_copy(),
            num_mask_bytes=self._num_mask_bytes,
            vocab_size=32 * self.num_words,
            names=self._names,
            place=self._place,
        )


class GrammarMasks:
    """
    Computes the masks of many states, on two threads if there are several.

    One mask takes 10 to 300 us, a step of 32 sequences tens of milliseconds.
    """

    def __init__(self) -> None:
        self._executor: Any = None
        self._words = np.zeros((0, 0), np.uint32)

    def prepare(self, states: Iterable[GrammarState]) -> None:
        """Compute the masks of the states that have none."""
        lacking = [state for state in states if not state.has_mask]
        if len(lacking) < _MIN_PARALLEL_MASKS or not all(state.fills_words for state in lacking):
            for state in lacking:
                state.mask()
            return
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(_NUM_MASK_THREADS)
        num_words = lacking[0].num_words
        if self._words.shape[0] < len(lacking):
            self._words = np.zeros((len(lacking), num_words), np.uint32)
        work = [(state.matcher, index) for index, state in enumerate(lacking)]
        self._executor.unsafe_compute_mask_ptr(work, self._words.ctypes.data, 4 * num_words, len(lacking))
        for state, words in zip(lacking, self._words, strict=False):
            state.take_mask(words)


class GrammarCompiler:
    """
    Compiles grammars off the event loop and caches the latest.

    Large ones have a thread of their own, so that small ones never wait for them. Concurrent requests with the same
    grammar share one compilation, and refusals are cached like results.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._names: NameIndex | None = None
        self._kept: OrderedDict[Grammar, asyncio.Future[GrammarState | str]] = OrderedDict()
        self._num_pending = 0
        self._small = ThreadPoolExecutor(1, thread_name_prefix="headrace-grammar")
        self._large = ThreadPoolExecutor(
            1, thread_name_prefix="headrace-grammar-large", initializer=lower_thread_priority
        )

    async def compile(self, grammar: Grammar) -> GrammarState:
        """
        Return a new state at the beginning of the grammar.

        Raises:
            InvalidRequest: The grammar is not valid or uses an unsupported feature.
            Busy: Too many grammars are being compiled.
        """
        future = self._kept.get(grammar)
        if future is None:
            future = self._start(grammar)
        self._kept.move_to_end(grammar)
        found = await asyncio.shield(future)  # others may wait for it too
        if isinstance(found, str):
            text = f"The {_NAMES[grammar.kind]} cannot be used: {found}"
            raise InvalidRequest(text, param=grammar.param, kind=grammar.kind)
        return found.fork()

    async def build_vocabulary(self) -> None:
        """
        Build llguidance's form of the vocabulary, which the first grammar would wait for.

        llguidance holds the GIL meanwhile (0.2 s for 49,000 tokens): call it while there is no request.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._large, self._tokenizer.grammar_tokenizer)
        except Exception as error:  # noqa: BLE001 - an edge: requests without a grammar are served all the same
            _log.warning("engine.no_grammars", error=repr(error))

    def close(self) -> None:
        """Stop the threads after the compilations in progress."""
        self._small.shutdown(wait=True, cancel_futures=True)
        self._large.shutdown(wait=True, cancel_futures=True)

    def _start(self, grammar: Grammar) -> "asyncio.Future[GrammarState | str]":
        if self._num_pending >= _MAX_PENDING:
            raise Busy(f"{_MAX_PENDING} schemas and grammars are being compiled already. Try again in a second.")
        executor = self._large if len(grammar.text) > _LARGE_CHARS else self._small
        future = asyncio.get_running_loop().run_in_executor(executor, self._build, grammar)
        self._num_pending += 1
        future.add_done_callback(lambda done: self._finish(grammar, done))
        self._kept[grammar] = future
        num_chars = sum(len(kept.text) for kept in self._kept)
        while len(self._kept) > _MAX_KEPT or (num_chars > _MAX_KEPT_CHARS and len(self._kept) > 1):
            num_chars -= len(self._kept.popitem(last=False)[0].text)
        return future

    def _finish(self, grammar: Grammar, future: "asyncio.Future[GrammarState | str]") -> None:
        self._num_pending -= 1
        if (future.cancelled() or future.exception() is not None) and self._kept.get(grammar) is future:
            del self._kept[grammar]

    def _build(self, grammar: Grammar) -> GrammarState | str:
        """Return the initial state, or the reason why the grammar cannot be used."""
        from llguidance import LLMatcher

        tokenizer = self._tokenizer.grammar_tokenizer()
        try:
            source = grammar_source(grammar)
            matcher = LLMatcher(tokenizer, source, log_level=0)
        except GrammarError as error:
            return str(error)
        except (ValueError, RuntimeError) as error:  # llguidance's own
            return _reason(str(error))
        if matcher.is_error():
            return _reason(matcher.get_error())
        num_mask_bytes = -(-tokenizer.vocab_size // 32) * 4
        names = self._name_index() if grammar.kind in _JSON_KINDS and has_maps(source) else None
        state = GrammarState(matcher, num_mask_bytes=num_mask_bytes, vocab_size=self._vocab_size, names=names)
        # Some faults show only when the first mask is computed: refuse the request before it is queued.
        trial = state.fork()
        trial.mask()
        if trial.error is not None:
            return trial.error
        return (_pattern_error(tokenizer, source) if grammar.kind == "json_schema" else None) or state

    def _name_index(self) -> NameIndex:
        """Return the index, built once (or once per thread, in a race)."""
        if self._names is None:
            tokenizer = self._tokenizer
            self._names = NameIndex(
                [b"" if i in tokenizer.special_ids else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
            )
        return self._names


def _pattern_error(tokenizer: Any, source: str) -> str | None:
    """Return why a pattern of a JSON schema cannot be enforced, or None: it would fail in the middle of an answer."""
    from llguidance import LLMatcher

    for pattern in pattern_sources(source):
        matcher = LLMatcher(tokenizer, pattern, log_level=0)
        matcher.consume_tokens(tokenizer.greedy_tokenize('"'))
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            return f"a `pattern` in it cannot be used: {_reason(matcher.get_error())}"
    return None


def _reason(error: str) -> str:
    """Return the first sentence of an error, without the parser's state, which is long and quotes the answer."""
    meaning = next((meaning for part, meaning in _MEANINGS.items() if part in error), None)
    return meaning or error.strip().split("\n<state>")[0].split("\n  while processing")[0][:_MAX_ERROR_CHARS]
