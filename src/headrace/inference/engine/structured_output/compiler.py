"""
Compilation of grammars by llguidance.

Compilation runs on its own threads: a schema that takes a second to compile delays only its own requests, which are not
queued yet, and other large grammars. A compilation that takes too long is abandoned: its thread cannot be stopped, so
the next one gets another thread. llguidance's own limits end it after some seconds, without holding the GIL meanwhile.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from headrace.core.errors import Busy, InvalidRequest, Unavailable
from headrace.core.generation import Grammar, GrammarKind
from headrace.core.threads import at_low_priority
from headrace.inference.engine.structured_output.json_names import NameIndex
from headrace.inference.engine.structured_output.source import (
    UNFORCED,
    GrammarError,
    grammar_source,
    has_maps,
    pattern_sources,
)
from headrace.inference.engine.structured_output.state import ForcedText, GrammarState, explain_error
from headrace.inference.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

T = TypeVar("T")

_log = structlog.get_logger("headrace.engine")

_MAX_KEPT = 128
_MAX_KEPT_CHARS = 8_000_000
"""Characters of all cached grammars; the compiled form takes about ten times as much memory."""
_MAX_PENDING = 64
_MAX_ABANDONED = 2
"""Maximum number of abandoned compilations that still run, for small and for large grammars each."""
_LARGE_CHARS = 20_000
_CLOSED = "The server is shutting down. Try again later."
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


class _Lane:
    """Compiles one grammar at a time on a thread, in the order of arrival, and abandons those that take too long."""

    def __init__(self, name: str, *, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._turn = asyncio.Semaphore(1)
        self._abandoned: set[asyncio.Future[Any]] = set()
        self._executor = self._new_executor()

    async def run(self, work: Callable[[], T], *, on_start: Callable[[], None] = lambda: None) -> T:
        """
        Run `work` on the thread; `on_start` is called when its turn has come.

        Raises:
            TimeoutError: `work` did not end in time; it continues in the background.
            Busy: `_MAX_ABANDONED` abandoned compilations are still running.
        """
        async with self._turn:
            if len(self._abandoned) >= _MAX_ABANDONED:
                raise Busy("Grammars that take too long to compile occupy the server. Try again in a second.")
            on_start()
            running = asyncio.get_running_loop().run_in_executor(self._executor, work)
            try:
                done, _ = await asyncio.wait({running}, timeout=self._timeout_s)
            except asyncio.CancelledError:
                running.cancel()  # the thread would report its result to an event loop that may be closed
                raise
            if not done:
                # Its thread ends with it; the next compilation gets another one.
                self._abandoned.add(running)
                running.add_done_callback(self._note_end)
                self._executor.shutdown(wait=False)
                self._executor = self._new_executor()
                raise TimeoutError
            return running.result()

    def close(self) -> None:
        """Let the thread end after the compilation in progress, without waiting: the event loop serves meanwhile."""
        for running in self._abandoned:
            running.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _note_end(self, ended: "asyncio.Future[Any]") -> None:
        self._abandoned.discard(ended)
        if not ended.cancelled():
            ended.exception()  # retrieved, so that asyncio does not log it as never retrieved

    def _new_executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix=self._name)


class _Compilation:
    """The compilation of a grammar, and the number of requests that wait for it."""

    def __init__(self, lane: _Lane, build: Callable[[], GrammarState | str]) -> None:
        self.task = asyncio.create_task(lane.run(build, on_start=self._note_start))
        self._num_waiting = 0
        self._is_queued = True

    @property
    def is_dropped(self) -> bool:
        return self.task.cancelling() > 0

    async def result(self) -> GrammarState | str:
        """Wait for the result; drop the compilation if it is still queued when the last request has left."""
        self._num_waiting += 1
        try:
            return await asyncio.shield(self.task)  # other requests may wait for it too
        finally:
            self._num_waiting -= 1
            if self._is_queued and not self._num_waiting:
                self.task.cancel()

    def _note_start(self) -> None:
        self._is_queued = False


class GrammarCompiler:
    """
    Compiles grammars off the event loop and caches the latest.

    Large ones have a thread of their own, so that small ones never wait for them. Concurrent requests with the same
    grammar share one compilation, and refusals are cached like results.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, timeout_s: float = 10.0) -> None:
        """Create an empty cache; `vocab_size` is the number of rows of the model's output."""
        self._tokenizer = tokenizer
        self._timeout_s = timeout_s
        self._vocab_size = vocab_size
        self._names: NameIndex | None = None
        self._forced: ForcedText | None = None
        self._kept: OrderedDict[Grammar, _Compilation] = OrderedDict()
        self._pending: set[_Compilation] = set()
        self._is_closed = False
        self._small = _Lane("headrace-grammar", timeout_s=timeout_s)
        self._large = _Lane("headrace-grammar-large", timeout_s=timeout_s)

    async def compile(self, grammar: Grammar) -> GrammarState:
        """
        Return a new state at the beginning of the grammar.

        Raises:
            InvalidRequest: The grammar is not valid, uses an unsupported feature or takes too long to compile.
            Busy: Too many grammars are being compiled.
            Unavailable: The compiler was closed.
        """
        compilation = self._kept.get(grammar)
        if compilation is None or compilation.is_dropped:
            compilation = self._start(grammar)
        self._kept.move_to_end(grammar)
        try:
            found = await compilation.result()
        except TimeoutError:
            found = f"Its compilation took more than {self._timeout_s:g} s (grammar_timeout_s). Use a smaller one."
        except asyncio.CancelledError:
            if not compilation.task.cancelled():  # the client has left
                raise
            raise Unavailable(_CLOSED) from None
        if isinstance(found, str):
            text = f"The {_NAMES[grammar.kind]} cannot be used: {found}"
            raise InvalidRequest(text, param=grammar.param, kind=grammar.kind)
        return found.fork()

    async def build_vocabulary(self) -> None:
        """
        Build llguidance's form of the vocabulary, which the first grammar would wait for.

        llguidance holds the GIL meanwhile (0.2 s for 49,000 tokens, 1 s for 262,000): call it while no request runs.
        """
        try:
            await self._large.run(self._tokenizer.grammar_tokenizer)
        except TimeoutError:
            return  # the build continues in the background
        except Exception as error:  # noqa: BLE001 - an edge: requests without a grammar are served all the same
            _log.warning("engine.no_grammars", error=repr(error))

    def close(self) -> None:
        """Refuse the requests that wait; the threads end after the compilations in progress, which are not awaited."""
        self._is_closed = True
        for compilation in self._pending:
            compilation.task.cancel()
        self._small.close()
        self._large.close()

    def _start(self, grammar: Grammar) -> _Compilation:
        if self._is_closed:
            raise Unavailable(_CLOSED)
        if len(self._pending) >= _MAX_PENDING:
            raise Busy(f"{_MAX_PENDING} schemas and grammars are being compiled already. Try again in a second.")
        lane = self._large if len(grammar.text) > _LARGE_CHARS else self._small
        compilation = _Compilation(lane, partial(self._build, grammar))
        self._pending.add(compilation)
        compilation.task.add_done_callback(lambda _: self._finish(grammar, compilation))
        self._kept[grammar] = compilation
        num_chars = sum(len(kept.text) for kept in self._kept)
        while len(self._kept) > _MAX_KEPT or (num_chars > _MAX_KEPT_CHARS and len(self._kept) > 1):
            num_chars -= len(self._kept.popitem(last=False)[0].text)
        return compilation

    def _finish(self, grammar: Grammar, compilation: _Compilation) -> None:
        self._pending.discard(compilation)
        has_failed = compilation.task.cancelled() or compilation.task.exception() is not None
        if has_failed and self._kept.get(grammar) is compilation:
            del self._kept[grammar]

    def _build(self, grammar: Grammar) -> GrammarState | str:
        """Return the initial state, or the reason why the grammar cannot be used."""
        tokenizer = self._tokenizer.grammar_tokenizer()
        try:
            source = grammar_source(grammar)
            make = partial(new_matcher, tokenizer, source)
            matcher = at_low_priority(make) if len(grammar.text) > _LARGE_CHARS else make()
        except GrammarError as error:
            return str(error)
        except (ValueError, RuntimeError) as error:  # llguidance's own
            return explain_error(str(error))
        if matcher.is_error():
            return explain_error(matcher.get_error())
        state = GrammarState(
            matcher=matcher,
            source=source,
            num_mask_bytes=-(-tokenizer.vocab_size // 32) * 4,
            num_words=-(-self._vocab_size // 32),
            names=self._name_index() if grammar.kind in _JSON_KINDS and has_maps(source) else None,
            forced=self._forced_text() if grammar.kind in UNFORCED else None,
        )
        # Some faults show only when the first mask is computed: refuse the request before it is queued.
        trial = state.fork()
        trial.mask()
        if trial.error is not None:
            return trial.error
        return (_pattern_error(tokenizer, source) if grammar.kind == "json_schema" else None) or state

    def _name_index(self) -> NameIndex:
        """Return the index, built once (or once per thread, in a race)."""
        if self._names is None:
            self._names = NameIndex(self._tokenizer.spelled_tokens)
        return self._names

    def _forced_text(self) -> ForcedText:
        """Return the search for forced texts, built once, as the index is."""
        if self._forced is None:
            self._forced = ForcedText(self._tokenizer.spelled_tokens)
        return self._forced


def new_matcher(tokenizer: "LLTokenizer", source: str) -> "LLMatcher":
    """Compile a grammar; up to seconds without the GIL."""
    from llguidance import LLMatcher

    return LLMatcher(tokenizer, source, log_level=0)


def _pattern_error(tokenizer: "LLTokenizer", source: str) -> str | None:
    """Return why a pattern of a JSON schema cannot be enforced, or None: it would fail in the middle of an answer."""
    for pattern in pattern_sources(source):
        matcher = new_matcher(tokenizer, pattern)
        matcher.consume_tokens(tokenizer.greedy_tokenize('"'))
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            return f"a `pattern` in it cannot be used: {explain_error(matcher.get_error())}"
    return None
