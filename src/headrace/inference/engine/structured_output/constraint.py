"""
Limits of the tokens of an answer: its grammar, tokens that a request names, and the budget of its reasoning.

All have the interface of `GrammarState`, and one may contain another. Used by the engine thread alone.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.core.answer_format.parser import AnswerParser, Section
from headrace.inference.engine.structured_output.json_names import clear
from headrace.inference.engine.structured_output.state import DelayedGrammar, GrammarState, Words

_MIN_PARALLEL_MASKS = 4
_NUM_MASK_THREADS = 2


def _all_tokens(num_words: int) -> Words:
    return np.full(num_words, 0xFFFFFFFF, np.uint32)


@dataclass(slots=True, eq=False, kw_only=True)
class TokenRules:
    """The tokens that an answer may have, and its grammar; has the interface of `GrammarState`."""

    allowed: Words
    """The tokens that are allowed by themselves, as bits."""
    bad: Mapping[tuple[int, ...], Sequence[int]]
    """Tokens → those that are forbidden after them."""
    grammar: GrammarState | DelayedGrammar | None
    _latest: tuple[int, ...] = field(default=(), init=False)
    """As many tokens of the answer as the longest key of `bad` has."""
    _lengths: tuple[int, ...] = field(init=False)
    """Lengths of the keys of `bad`, which may be thousands."""

    def __post_init__(self) -> None:
        self._lengths = tuple(sorted({len(before) for before in self.bad}))

    @property
    def source(self) -> str | None:
        return None if self.grammar is None else self.grammar.source

    @property
    def active(self) -> GrammarState | None:
        return None if self.grammar is None else self.grammar.active

    @property
    def is_complete(self) -> bool:
        return self.grammar is not None and self.grammar.is_complete

    @property
    def error(self) -> str | None:
        return None if self.grammar is None else self.grammar.error

    def mask(self) -> Words:
        words = self.allowed.copy() if self.grammar is None else self.grammar.mask() & self.allowed
        for length in self._lengths:
            clear(words, self.bad.get(self._latest[-length:], ()))
        return words

    def only_token(self) -> int | None:
        """Return None: a token that the grammar forces may be forbidden, so it is drawn."""
        return None

    def accept(self, token_id: int) -> None:
        if self._lengths:
            self._latest = (*self._latest, token_id)[-self._lengths[-1] :]
        if self.grammar is not None:
            self.grammar.accept(token_id)

    def fork(self) -> "TokenRules":
        return replace(self, grammar=None if self.grammar is None else self.grammar.fork())


@dataclass(slots=True, eq=False, kw_only=True)
class ReasoningBudget:
    """
    The budget of the reasoning of an answer, and the grammar of the rest; has the interface of `GrammarState`.

    When the budget is used up, the tokens that end the reasoning are the only ones allowed, one after the other.
    """

    tokens_left: int
    parser: AnswerParser
    text_of: Callable[[int], str]
    """Returns the text of a token, separators included."""
    endings: tuple[tuple[int, ...], ...]
    """
    The tokens with which the reasoning is ended the first time, the second time, and so on; the last ones count for
    all later times. A model that writes messages may begin to reason again.
    """
    num_words: int
    grammar: GrammarState | DelayedGrammar | TokenRules | None
    """The limits of the answer; a grammar delays itself where it applies after the reasoning."""
    _forced: tuple[int, ...] = field(default=(), init=False)
    """The rest of an ending."""

    def __post_init__(self) -> None:
        self._end_if_used_up()

    @property
    def source(self) -> str | None:
        return None if self.grammar is None else self.grammar.source

    @property
    def active(self) -> GrammarState | None:
        return None if self._forced or self.grammar is None else self.grammar.active

    @property
    def is_complete(self) -> bool:
        return not self._forced and self.grammar is not None and self.grammar.is_complete

    @property
    def error(self) -> str | None:
        return None if self.grammar is None else self.grammar.error

    def mask(self) -> Words:
        if self._forced:
            words = np.zeros(self.num_words, np.uint32)
            words[self._forced[0] // 32] = np.uint32(1 << self._forced[0] % 32)
            return words
        return _all_tokens(self.num_words) if self.grammar is None else self.grammar.mask()

    def only_token(self) -> int | None:
        if self._forced:
            return self._forced[0]
        return None if self.grammar is None else self.grammar.only_token()

    def accept(self, token_id: int) -> None:
        if self.grammar is not None:
            self.grammar.accept(token_id)
        was_reasoning = self.parser.section is Section.REASONING
        self.parser.feed(self.text_of(token_id))
        if self._forced:
            self._forced = self._forced[1:]
        elif was_reasoning and self.parser.section is Section.REASONING:
            self.tokens_left -= 1
        self._end_if_used_up()

    def fork(self) -> "ReasoningBudget":
        fork = copy.copy(self)
        fork.grammar, fork.parser = None if self.grammar is None else self.grammar.fork(), copy.deepcopy(self.parser)
        return fork

    def _end_if_used_up(self) -> None:
        if not self._forced and self.tokens_left <= 0 and self.parser.section is Section.REASONING:
            self._forced, *later = self.endings
            self.endings = tuple(later) or self.endings


Constraint = GrammarState | DelayedGrammar | TokenRules | ReasoningBudget
"""The limits of the next token: a grammar, the tokens of the request, and around them the budget of its reasoning."""


class GrammarMasks:
    """
    Computes the masks of many states, on two threads if there are several.

    One mask takes 10 to 300 us, a step of 32 sequences tens of milliseconds.
    """

    def __init__(self) -> None:
        self._executor: Any = None
        self._words = np.zeros((0, 0), np.uint32)

    def prepare(self, grammars: Iterable[Constraint]) -> None:
        """Compute the masks of the grammars that have none."""
        lacking = [state for grammar in grammars if (state := grammar.active) is not None and not state.has_mask]
        # The executor writes into rows of one array: all masks must be as wide as the model's vocabulary.
        fills_rows = all(state.num_mask_bytes == 4 * state.num_words for state in lacking)
        if len(lacking) < _MIN_PARALLEL_MASKS or not fills_rows:
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
