"""A grammar that applies after the reasoning of an answer, which is free."""

import copy
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from headrace.core.answer_format.parser import AnswerParser, Section
from headrace.inference.engine.structured_output.json_names import clear
from headrace.inference.engine.structured_output.state import GrammarState

Words = npt.NDArray[np.uint32]


class DelayedGrammar:
    """
    The state of one sequence before and in its grammar; has the interface of `GrammarState`.

    Where reasoning is optional, the first token is either the reasoning's start tag or the first one of the grammar.
    The model cannot end the answer before the grammar has begun, except after a call of a function, in the models
    that write calls with a header.
    """

    def __init__(
        self,
        grammar: GrammarState,
        *,
        parser: AnswerParser,
        text_of: Callable[[int], str],
        start_id: int | None,
        end_ids: Iterable[int],
        arguments: Mapping[str, GrammarState],
    ) -> None:
        """
        Wrap a grammar.

        Args:
            grammar: The state at the beginning of the grammar of the content.
            parser: Finds the end of the reasoning.
            text_of: Returns the text of a token, separators included.
            start_id: The token of the start tag; None if the tag is several tokens.
            end_ids: The tokens with which the model ends an answer.
            arguments: The grammars of the arguments, by function.
        """
        self._grammar = grammar
        self._parser = parser
        self._text_of = text_of
        self._start_id = start_id
        self._end_ids = tuple(end_ids)
        self._arguments = arguments
        self._begun: GrammarState | None = None
        self._free = np.full(grammar.num_words, 0xFFFFFFFF, np.uint32)
        self._endless = self._free.copy()
        clear(self._endless, list(self._end_ids))
        self._enter()

    @property
    def source(self) -> str:
        """The grammar of the content."""
        return self._grammar.source

    @property
    def active(self) -> GrammarState | None:
        """The state whose mask limits the next token, or None in the reasoning."""
        return self._grammar if self._begun is None and self._is_undecided else self._begun

    @property
    def is_complete(self) -> bool:
        """True if only the end of the answer may follow."""
        return self._begun is not None and self._begun.is_complete

    @property
    def error(self) -> str | None:
        """The reason why the grammar cannot continue, or None."""
        return None if self._begun is None else self._begun.error

    def mask(self) -> Words:
        """Return the allowed next tokens as bits; valid until a token is accepted."""
        if self._begun is not None:
            return self._begun.mask()
        if self._is_undecided:
            assert self._start_id is not None
            words = self._grammar.mask().copy()
            words[self._start_id // 32] |= np.uint32(1 << self._start_id % 32)
            return words
        may_end = self._parser.section is Section.CALL and not self._arguments
        return self._free if may_end else self._endless

    def only_token(self) -> int | None:
        """Return the token that must come next, if no other one is allowed."""
        return None if self._begun is None else self._begun.only_token()

    def accept(self, token_id: int) -> None:
        """Advance by a drawn token."""
        if self._begun is None and self._is_undecided and token_id != self._start_id:
            self._begun = self._grammar
        if self._begun is not None:
            self._begun.accept(token_id)
            return
        self._parser.feed(self._text_of(token_id))
        self._enter()

    def fork(self) -> "DelayedGrammar":
        """Return an independent copy of the state."""
        return DelayedGrammar(
            self._grammar.fork(),
            parser=copy.deepcopy(self._parser),
            text_of=self._text_of,
            start_id=self._start_id,
            end_ids=self._end_ids,
            arguments={name: grammar.fork() for name, grammar in self._arguments.items()},
        )

    @property
    def _is_undecided(self) -> bool:
        return self._parser.section is Section.UNDECIDED

    def _enter(self) -> None:
        """Begin the grammar if the answer has reached the section that it constrains."""
        section = self._parser.section
        if section is Section.CONTENT or (section is Section.UNDECIDED and self._start_id is None):
            self._begun = self._grammar
        elif section is Section.CALL:
            self._begun = self._arguments.get(self._parser.called)
