"""The state of a sequence in its grammar, and the masks of allowed tokens; used by the engine thread alone."""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.inference.engine.structured_output.json_names import (
    BEGINNING,
    JsonPlace,
    NameIndex,
    clear,
    follow,
    is_allowed,
)
from headrace.inference.engine.structured_output.llguidance_errors import explain_error

_MIN_PARALLEL_MASKS = 4
_NUM_MASK_THREADS = 2


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
        source: str = "",
    ) -> None:
        """Wrap a matcher of the grammar `source`; with `names`, no object of the answer repeats a name."""
        self.matcher = matcher
        self._source = source
        self._names = names
        self._place = place
        self.num_words = -(-vocab_size // 32)
        self._words = np.zeros(max(self.num_words, num_mask_bytes // 4), np.uint32)
        self._num_mask_bytes = num_mask_bytes
        self.has_mask = False
        """True if the mask of this place is computed."""

    @property
    def source(self) -> str:
        """The grammar in llguidance's form."""
        return self._source

    @property
    def active(self) -> "GrammarState | None":
        """The state whose mask limits the next token; see `DelayedGrammar`."""
        return self

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
        return explain_error(self.matcher.get_error()) if self.matcher.is_error() else None

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
            source=self._source,
        )


class Constraint(Protocol):
    """The state of a sequence in the grammar that its answer must match."""

    @property
    def active(self) -> GrammarState | None:
        """The state whose mask limits the next token; None: any token is allowed."""
        ...

    @property
    def source(self) -> str:
        """The grammar in llguidance's form."""
        ...

    @property
    def is_complete(self) -> bool:
        """True if only the end of the answer may follow."""
        ...

    @property
    def error(self) -> str | None:
        """The reason why the grammar cannot continue, or None."""
        ...

    def mask(self) -> npt.NDArray[np.uint32]:
        """Return the allowed next tokens as bits; valid until a token is accepted."""
        ...

    def only_token(self) -> int | None:
        """Return the token that must come next, if no other one is allowed."""
        ...

    def accept(self, token_id: int) -> None:
        """Advance by a drawn token."""
        ...

    def fork(self) -> "Constraint":
        """Return an independent copy of the state."""
        ...


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
