"""The state of a sequence in its grammar, and the masks of allowed tokens; used by the engine thread alone."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.answer_format.parser import AnswerParser, Section
from headrace.inference.engine.structured_output.json_names import (
    BEGINNING,
    JsonPlace,
    NameIndex,
    clear,
    follow,
    is_allowed,
)

Words = npt.NDArray[np.uint32]

_MAX_ERROR_CHARS = 300
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
"""Explanations of llguidance's errors for the author of a grammar, by a part of their text."""


_MAX_FORCED_BYTES = 32
"""Longest token that is looked for: each of its bytes takes a mask."""


def explain_error(error: str) -> str:
    """Return the first sentence of an error, without the parser's state, which is long and quotes the answer."""
    meaning = next((meaning for part, meaning in _MEANINGS.items() if part in error), None)
    return meaning or error.strip().split("\n<state>")[0].split("\n  while processing")[0][:_MAX_ERROR_CHARS]


class ForcedText:
    """
    A search for the token that must come next, for grammars in which llguidance must not look for it.

    llguidance's search for the only text that can follow has no end after `/a+/ /a/`; this one ends with a token.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        """Keep the bytes of all tokens, which are empty for special ones."""
        self._tokens = tokens
        self._of_bytes = {token[0]: index for index, token in enumerate(tokens) if len(token) == 1}

    def next_token(self, matcher: Any, words: Words, num_mask_bytes: int) -> int | None:
        """Return the longest token in the mask of a matcher's state, if no text can follow but it and more."""
        allowed = self._allowed(words)
        texts = [self._tokens[index] for index in allowed]
        text = max(texts, key=len, default=b"")
        if not 0 < len(text) <= _MAX_FORCED_BYTES or not all(texts) or not all(map(text.startswith, texts)):
            return None
        return allowed[texts.index(text)] if self._is_only(text, matcher, num_mask_bytes) else None

    def _is_only(self, text: bytes, matcher: Any, num_mask_bytes: int) -> bool:
        """Return whether each byte of a text is the only one that can follow those before it."""
        words, num_consumed = np.zeros(num_mask_bytes // 4, np.uint32), 0
        try:
            for byte, following in pairwise(text):
                if byte not in self._of_bytes:
                    return False
                matcher.consume_token(self._of_bytes[byte])
                num_consumed += 1
                matcher.unsafe_compute_mask_ptr(words.ctypes.data, num_mask_bytes)
                allowed = self._allowed(words)
                if not allowed or any(self._tokens[index][:1] != bytes([following]) for index in allowed):
                    return False
            return True
        finally:
            matcher.rollback(num_consumed)

    def _allowed(self, words: Words) -> list[int]:
        """Return the tokens in a mask; none if there are too many to be beginnings of one."""
        places = np.flatnonzero(words)
        if len(places) > _MAX_FORCED_BYTES:
            return []
        bits = np.unpackbits(words[places].view(np.uint8), bitorder="little").reshape(-1, 32)
        rows, columns = np.nonzero(bits)
        found: list[int] = (32 * places[rows] + columns).tolist()
        return found if len(found) <= _MAX_FORCED_BYTES else []


@dataclass(slots=True, eq=False, kw_only=True)
class GrammarState:
    """The state of one sequence in its grammar."""

    matcher: Any
    """llguidance's state."""
    source: str
    """The grammar in llguidance's form."""
    num_mask_bytes: int
    """Size of the matcher's mask, whose vocabulary may be smaller than the model's."""
    num_words: int
    """Size of a mask of the model's vocabulary: ceil(vocab / 32) words."""
    names: NameIndex | None
    """If given, no object of the answer repeats a name."""
    forced: ForcedText | None = None
    """If given, a text that must come is divided into the longest tokens."""
    place: JsonPlace = BEGINNING
    has_mask: bool = field(default=False, init=False)
    """True if the mask of this place is computed."""
    _words: Words = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._words = np.zeros(max(self.num_words, self.num_mask_bytes // 4), np.uint32)

    @property
    def active(self) -> "GrammarState | None":
        """The state whose mask limits the next token; None: any token is allowed."""
        return self

    @property
    def is_complete(self) -> bool:
        """True if only the end of the answer may follow."""
        return bool(self.matcher.is_stopped())

    @property
    def error(self) -> str | None:
        """The reason why the grammar cannot continue (a limit of the parser), or None."""
        return explain_error(self.matcher.get_error()) if self.matcher.is_error() else None

    def mask(self) -> Words:
        """Return the allowed next tokens as bits, ceil(vocab / 32) words; valid until a token is accepted."""
        if not self.has_mask:
            self.take_mask(self._grammar_mask())
        return self._words[: self.num_words]

    def take_mask(self, words: Words) -> None:
        """Keep a mask that the matcher computed, without the tokens that repeat a name; of a forced text one token."""
        own = self._words[: self.num_words]
        own[:] = words
        self._forbid_repeats(own)
        only = None if self.forced is None else self.forced.next_token(self.matcher, own, self.num_mask_bytes)
        if only is not None:
            own[:] = 0
            own[only // 32] = np.uint32(1 << only % 32)
        self.has_mask = True

    def only_token(self) -> int | None:
        """Return the token that must come next, if no other one is allowed."""
        words = self.mask()
        places = np.flatnonzero(words)
        if len(places) != 1:
            return None
        word = int(words[places[0]])
        return None if word & (word - 1) else 32 * int(places[0]) + word.bit_length() - 1

    def _grammar_mask(self) -> Words:
        self.matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self.num_mask_bytes)
        return self._words[: self.num_words]

    def _forbid_repeats(self, words: Words) -> None:
        """Forbid the tokens in a mask of this state that complete a used name, unless nothing else is allowed."""
        if self.names is None:
            return
        repeating = self.names.repeating(self.place, words)
        spelling = [token for token in self.names.spelling(self.place) if is_allowed(words, np.array([token]))[0]]
        repeating += [token for token in spelling if self._must_repeat_after(token, self.names.letters)]
        if repeating:
            before = words.copy()
            clear(words, repeating)
            if not words.any():
                words[:] = before

    def _must_repeat_after(self, token_id: int, letters: Iterable[int]) -> bool:
        if any(self.matcher.validate_tokens([token_id, letter]) == 2 for letter in letters):
            return False  # 100 times as cheap as a fork
        after = self.fork()
        after.accept(token_id)
        return after.has_only_repeats()

    def has_only_repeats(self) -> bool:
        """Return whether only the end of a used name may follow: with `^[0-9]{4}$`, after its fourth digit."""
        words = self._grammar_mask()
        if self.names is not None:
            clear(words, self.names.repeating(self.place, words))
        return not words.any()

    def accept(self, token_id: int) -> None:
        """Advance by a drawn token."""
        self.matcher.consume_token(token_id)
        self.has_mask = False
        if self.names is not None:
            self.place = follow(self.place, self.names.tokens[token_id])

    def fork(self) -> "GrammarState":
        return replace(self, matcher=self.matcher.deep_copy())


@dataclass(slots=True, eq=False, kw_only=True)
class DelayedGrammar:
    """
    A grammar that applies after the reasoning of an answer, which is free; has the interface of `GrammarState`.

    Where reasoning is optional, the first token is either the reasoning's start tag or the first one of the grammar.
    The model cannot end the answer before the grammar has begun, except after a call of a function, in the models
    that write calls with a header.
    """

    grammar: GrammarState
    """The state at the beginning of the grammar of the content."""
    parser: AnswerParser
    """Finds the end of the reasoning."""
    text_of: Callable[[int], str]
    """Returns the text of a token, separators included."""
    start_id: int | None
    """The token of the start tag; None if the tag is several tokens."""
    end_ids: frozenset[int]
    """The tokens with which the model ends an answer."""
    arguments: Mapping[str, GrammarState]
    """The grammars of the arguments, by function."""
    _begun: GrammarState | None = field(default=None, init=False)
    _free: Words = field(init=False, repr=False)
    _endless: Words = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._free = np.full(self.grammar.num_words, 0xFFFFFFFF, np.uint32)
        self._endless = self._free.copy()
        clear(self._endless, self.end_ids)
        self._enter()

    @property
    def source(self) -> str:
        return self.grammar.source

    @property
    def active(self) -> GrammarState | None:
        return self.grammar if self._begun is None and self._is_undecided else self._begun

    @property
    def is_complete(self) -> bool:
        return self._begun is not None and self._begun.is_complete

    @property
    def error(self) -> str | None:
        return None if self._begun is None else self._begun.error

    def mask(self) -> Words:
        if self._begun is not None:
            return self._begun.mask()
        if self._is_undecided:
            assert self.start_id is not None
            words = self.grammar.mask().copy()
            words[self.start_id // 32] |= np.uint32(1 << self.start_id % 32)
            return words
        may_end = self.parser.section is Section.CALL and not self.arguments
        return self._free if may_end else self._endless

    def only_token(self) -> int | None:
        return None if self._begun is None else self._begun.only_token()

    def accept(self, token_id: int) -> None:
        if self._begun is None and self._is_undecided and token_id != self.start_id:
            self._begun = self.grammar
        if self._begun is not None:
            self._begun.accept(token_id)
            return
        self.parser.feed(self.text_of(token_id))
        self._enter()

    def fork(self) -> "DelayedGrammar":
        return replace(
            self,
            grammar=self.grammar.fork(),
            parser=copy.deepcopy(self.parser),
            arguments={name: grammar.fork() for name, grammar in self.arguments.items()},
        )

    @property
    def _is_undecided(self) -> bool:
        return self.parser.section is Section.UNDECIDED

    def _enter(self) -> None:
        """Begin the grammar if the answer has reached the section that it constrains."""
        section = self.parser.section
        if section is Section.CONTENT or (section is Section.UNDECIDED and self.start_id is None):
            self._begun = self.grammar
        elif section is Section.CALL:
            self._begun = self.arguments.get(self.parser.called)
