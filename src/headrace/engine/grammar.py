"""
Answers that must fit a grammar: which tokens may come next, by llguidance.

`GrammarCompiler` runs on a thread of its own, so that a schema that takes a second to compile delays only the request
that brought it (which has not entered the queue yet). `GrammarState` is one sequence's place in its grammar; it is used
by the engine thread only.
"""

import asyncio
import json
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Grammar
from headrace.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_WHITESPACE = r"\x20?|\n\x20{0,24}"
"""Between the tokens of JSON: a space or a line break with indentation. Small models fill `max_tokens` with more."""
_MAX_COMPILED = 128
_MAX_GRAMMAR_CHARS = 1_000_000
_MAX_ERROR_CHARS = 300
_MEANINGS = {"NoExtensionBias": "it allows no text at all.", "NoExtension": "it allows no text at all."}
"""Of llguidance's own words that say nothing to others."""


class GrammarState:
    """One sequence's place in a grammar."""

    def __init__(self, matcher: Any, *, num_mask_bytes: int, vocab_size: int) -> None:
        self._matcher = matcher
        self._words = np.zeros(max(-(-vocab_size // 32), num_mask_bytes // 4), np.uint32)
        self._num_mask_bytes = num_mask_bytes
        self._num_words = -(-vocab_size // 32)

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str | None:
        """Why the grammar cannot go on (a limit of the parser was hit), if so."""
        return _reason(self._matcher.get_error()) if self._matcher.is_error() else None

    def mask(self) -> npt.NDArray[np.uint32]:
        """Return the allowed next tokens as bits, ceil(vocab / 32) words; valid until the next call."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._num_mask_bytes)
        return self._words[: self._num_words]

    def accept(self, token_id: int) -> None:
        """Move on by the token that was drawn."""
        self._matcher.consume_token(token_id)

    def fork(self) -> "GrammarState":
        """Return an independent state at the same place."""
        return GrammarState(
            self._matcher.deep_copy(), num_mask_bytes=self._num_mask_bytes, vocab_size=32 * self._num_words
        )


class GrammarCompiler:
    """Compiles grammars off the event loop and keeps the latest `_MAX_COMPILED`."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiled: OrderedDict[Grammar, GrammarState] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-grammar")

    async def compile(self, grammar: Grammar) -> GrammarState:
        """
        Return a fresh state at the beginning of the grammar.

        Raises:
            InvalidRequest: The grammar is not valid, or uses a part that is not supported.
        """
        state = self._compiled.get(grammar)
        if state is None:
            if len(grammar.text) > _MAX_GRAMMAR_CHARS:
                raise InvalidRequest(
                    f"The grammar has {len(grammar.text)} characters, at most {_MAX_GRAMMAR_CHARS} are taken.",
                    param=grammar.param,
                )
            state = await asyncio.get_running_loop().run_in_executor(self._thread, self._build, grammar)
            self._compiled[grammar] = state
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return state.fork()

    def close(self) -> None:
        """Stop the thread; what is being compiled is finished first."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _build(self, grammar: Grammar) -> GrammarState:
        from llguidance import LLMatcher

        tokenizer = self._tokenizer.grammar_tokenizer()
        try:
            matcher = LLMatcher(tokenizer, _source(grammar), log_level=0)
        except ValueError as error:
            raise _invalid(grammar, str(error)) from error
        if matcher.is_error():
            raise _invalid(grammar, matcher.get_error())
        num_mask_bytes = -(-tokenizer.vocab_size // 32) * 4
        state = GrammarState(matcher, num_mask_bytes=num_mask_bytes, vocab_size=self._vocab_size)
        # Some faults show only once the first token is looked for: better now than after the request was let in.
        trial = state.fork()
        trial.mask()
        if trial.error is not None:
            raise _invalid(grammar, trial.error)
        return state


def _source(grammar: Grammar) -> str:
    """Return the grammar in llguidance's own form."""
    from llguidance import LLMatcher

    match grammar.kind:
        case "json_schema":
            return str(LLMatcher.grammar_from_json_schema(grammar.text, overrides=_json_options(grammar)))
        case "json_object":
            return str(LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=_json_options(grammar)))
        case "regex":
            return str(LLMatcher.grammar_from_regex(grammar.text))
        case "choice":
            return _choice_source(grammar)
        case "lark":
            return str(LLMatcher.grammar_from_lark(grammar.text))
        case "ebnf":
            return _ebnf_source(grammar)
        case "structural_tag":
            raise _invalid(grammar, "structural tags are not supported.")


def _json_options(grammar: Grammar) -> "JsonCompileOptions":
    return {"whitespace_pattern": _WHITESPACE if grammar.whitespace_pattern is None else grammar.whitespace_pattern}


def _choice_source(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    try:
        choices = msgspec.json.decode(grammar.text, type=list[str])
    except msgspec.DecodeError as error:
        raise _invalid(grammar, f"{error}.") from error
    if not any(choices):
        raise _invalid(grammar, "expected a list of strings that are not empty.")
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return str(LLMatcher.grammar_from_lark(f"start: {alternatives}"))


def _ebnf_source(grammar: Grammar) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(LLMatcher.grammar_from_lark(any_to_lark(grammar.text)))
    except Exception as error:  # the converter raises Exception itself
        raise _invalid(grammar, str(error)) from error


def _invalid(grammar: Grammar, reason: str) -> InvalidRequest:
    text = f"The {grammar.kind} grammar cannot be used: {_reason(reason)}"
    return InvalidRequest(text, param=grammar.param, kind=grammar.kind)


def _reason(error: str) -> str:
    """The sentence of an error, without the parser's state behind it, which is long and quotes the answer."""
    text = error.strip().split("\n<state>")[0][:_MAX_ERROR_CHARS]
    return _MEANINGS.get(text, text)
