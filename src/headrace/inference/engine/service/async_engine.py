"""
The `Backend` around a `ChoiceEngine`: admission, text and adapters, whatever computes the tokens.

`AsyncEngine` handles the text on both sides (templates, tokens, grammars, stop strings) and the admission of requests.
Our own engine runs on a thread, which meets the event loop only in `EngineThread` (commands in) and `stream` (chunks
out).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from headrace.core.engine_stats import EngineStats
from headrace.core.errors import Busy, EngineFailed, Unavailable
from headrace.core.generation import (
    AdapterInfo,
    ChatPrompt,
    Chunk,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    PoolingParams,
    SamplingParams,
    TextSpan,
    Token,
)
from headrace.inference.engine.backend import Drain, Take, relay_chunks
from headrace.inference.engine.config import EngineLimits, fit_to_runner
from headrace.inference.engine.core.choice import Choice
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.prefix_store.store import FileStore
from headrace.inference.engine.service.adapters import AdapterContent, AdapterRegistry, LoadedAdapter
from headrace.inference.engine.service.prompt_tokens import TextParts
from headrace.inference.engine.service.request_processor import RequestProcessor
from headrace.inference.engine.service.stream import ChunkStream
from headrace.inference.engine.service.thread import EngineThread, ReadAdapter
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.runner.step import Runner

_WARM_UP_TOKENS = 64
_WARM_UP_ANSWER_TOKENS = 4
_MAX_RETRY_AFTER_S = 60.0
_FAILURES = (FinishReason.ERROR, FinishReason.ABORT)
_VOCABULARY_DELAY_S = 1.0
"""Seconds after the start before the vocabulary for grammars is built: requests may be waiting for this engine."""


class ChoiceEngine(Protocol):
    """
    Schedules choices and produces their tokens: our own engine on its thread, or the engine of another library.

    It runs choices until each has ended, and delivers their chunks to the `ChunkStream` that owns them. Every choice
    ends with exactly one chunk that has `finish`, also after an abort or a crash. The methods are called on the event
    loop of `start` unless they say otherwise, and return at once.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_adapter_slots(self) -> int: ...

    @property
    def delays_grammars(self) -> bool:
        """True if a grammar may begin in the middle of an answer: choices then have a `DelayedGrammar`."""
        ...

    @property
    def is_healthy(self) -> bool:
        """False once the engine cannot generate any more."""
        ...

    @property
    def crash(self) -> Exception | None:
        """The exception that ended the engine, if any."""
        ...

    def start(self) -> None: ...

    def begin_service(self, observer: EngineObserver) -> None:
        """Reset the totals after the warm-up and report to `observer` from now on."""
        ...

    def add(self, choices: list[Choice]) -> None:
        """
        Queue the choices of a request.

        Raises:
            InvalidRequest: A parameter is out of this engine's range; no choice was queued.
            Unavailable: The engine has ended.
        """
        ...

    def abort(self, choices: Iterable[Choice], *, message: str) -> None:
        """End choices soon; those that have ended already are skipped."""
        ...

    def fill_adapter_slot(self, slot: int, path: Path) -> AdapterContent:
        """
        Read an adapter into a slot that no choice uses. Called on a thread; blocks.

        Raises:
            BrokenModel, UnsupportedModel: The folder cannot be read or applied to this model.
            SettingsError: Adapters are off.
        """
        ...

    def stats(self) -> EngineStats: ...

    def stop(self) -> None:
        """Stop after the queued aborts and free the model. Called on a thread; blocks. Idempotent."""
        ...


class AsyncEngine:
    """A `Backend` with a `ChoiceEngine`, which it owns; `Backend` describes the methods."""

    def __init__(
        self,
        engine: ChoiceEngine,
        parts: TextParts,
        table: TokenTable,
        limits: EngineLimits,
        info: ModelInfo,
        *,
        observer: EngineObserver | None = None,
        start_adapters: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.limits = limits
        self.info = info
        self._observer = observer or EngineObserver()
        self._engine = engine
        self._processor = RequestProcessor(
            parts, table, limits, info, vocab_size=engine.vocab_size, delays_grammars=engine.delays_grammars
        )
        self._adapters = AdapterRegistry(engine.num_adapter_slots, engine.fill_adapter_slot)
        self._start_adapters = start_adapters
        self._streams: set[ChunkStream] = set()
        self._num_open = 0
        self._is_accepting = False
        self._is_drained = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._seconds_per_choice = 1.0
        self._freed_at_s = time.perf_counter()

    @property
    def is_healthy(self) -> bool:
        return self._engine.is_healthy

    async def start(self) -> None:
        """
        Start the engine, load the configured adapters and warm up.

        The warm-up produces a first token, and a few more for the step-time model, or pools a first prompt.

        Raises:
            EngineFailed: The model does not run.
            BrokenModel, UnsupportedModel: An adapter cannot be read or applied.
        """
        self._engine.start()
        try:
            for name, path in self._start_adapters.items():
                await self._adapters.load(name, path)
            await self._warm_up()
        except Exception:
            await asyncio.to_thread(self._engine.stop)
            raise
        self._engine.begin_service(self._observer)
        if self.info.generates:
            self._preparing = asyncio.create_task(self._build_grammar_vocabulary())

    async def _warm_up(self) -> None:
        self._is_accepting = True
        prompt_tokens = max(1, min(_WARM_UP_TOKENS, self.limits.max_prompt_tokens - _WARM_UP_ANSWER_TOKENS))
        sampling = SamplingParams(max_new_tokens=_WARM_UP_ANSWER_TOKENS, ignore_eos=True)
        vocab_size = self._engine.vocab_size
        prompt = tuple(index % vocab_size for index in range(prompt_tokens))
        pooling = None if self.info.generates else PoolingParams(task="embed_tokens", normalize=False)
        request = GenerationRequest(
            request_id="warm-up", prompt=prompt, sampling=sampling, pooling=pooling, cache_salt="warm-up"
        )
        async for chunk in self.generate(request):
            if chunk.finish is not None and chunk.finish.reason is FinishReason.ERROR:
                raise EngineFailed(f"The model produced no token at the start. {chunk.finish.message}")

    async def _build_grammar_vocabulary(self) -> None:
        """Build the vocabulary for grammars while there are no requests, so that neither the start nor streams wait."""
        await asyncio.sleep(_VOCABULARY_DELAY_S)
        await self._is_drained.wait()
        await self._processor.grammars.build_vocabulary()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        stream = await self._submit(request)
        params = request.sampling
        try:
            if params.best_of is not None and params.best_of > params.n:
                async for chunk in _best_chunks(stream, count=params.n, shows_logprobs=params.logprobs is not None):
                    yield chunk
            else:
                while not stream.is_finished:
                    yield await stream.next()
        finally:
            self._leave(stream)

    async def relay(self, request: GenerationRequest, take: Take, drain: Drain) -> None:
        if request.sampling.best_of is not None:
            await relay_chunks(self.generate(request), take, drain)
            return
        stream = await self._submit(request)
        try:
            while not await stream.feed(take):
                await drain()
        finally:
            self._leave(stream)

    @property
    def tokenizer_config(self) -> Mapping[str, object]:
        return self._processor.prompts.tokenizer_config

    def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool | None = None
    ) -> tuple[str, tuple[TextSpan, ...]]:
        return self._processor.prompts.tokenize(prompt, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: tuple[int, ...]) -> str:
        return self._processor.prompts.detokenize(token_ids)

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        return self._adapters.infos

    async def load_adapter(self, name: str, path: Path, *, replaces: bool = False) -> AdapterInfo:
        return await self._adapters.load(name, path, replaces=replaces)

    async def unload_adapter(self, name: str) -> None:
        self._adapters.unload(name)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def close(self, *, deadline_s: float) -> None:
        self._is_accepting = False
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(deadline_s))
        await asyncio.shield(self._closing)

    async def _submit(self, request: GenerationRequest) -> ChunkStream:
        """Check and queue a request; its places are taken before the first await, so that bursts are counted."""
        self._processor.check(request)
        num_choices = request.sampling.best_of or request.sampling.n
        self._take_places(num_choices)
        stream = ChunkStream(asyncio.get_running_loop())
        if not self._streams:
            self._freed_at_s = time.perf_counter()
        self._streams.add(stream)
        self._is_drained.clear()
        adapter: LoadedAdapter | None = None
        try:
            if request.adapter is not None:
                adapter = self._adapters.acquire(request.adapter, num_choices)
            choices = await self._processor.prepare(request, stream, now_s=time.perf_counter(), adapter=adapter)
            if adapter is not None:
                for choice in choices:
                    choice.on_end = partial(self._adapters.release, adapter)
            stream.open(choices)
            self._check_accepting()
            self._engine.add(stream.choices)
        except BaseException:
            if adapter is not None:
                self._adapters.release(adapter, num_choices)
            self._num_open -= num_choices
            self._forget(stream)
            raise
        return stream

    def _take_places(self, num_choices: int) -> None:
        self._check_accepting()
        places = self.limits.max_num_seqs + self.limits.max_waiting_seqs
        if self._num_open + num_choices > places:
            waiting = self._num_open + num_choices - self.limits.max_num_seqs
            raise Busy(
                f"{self._num_open} answers are running or queued and {num_choices} more were requested; "
                f"expected at most {places} in all: {self.limits.max_num_seqs} running (max_num_seqs) and "
                f"{self.limits.max_waiting_seqs} waiting (max_concurrent_requests). Try again later.",
                retry_after_s=min(_MAX_RETRY_AFTER_S, max(1.0, self._seconds_per_choice * min(waiting, num_choices))),
                num_open=self._num_open,
                max_open=places,
            )
        self._num_open += num_choices

    def _check_accepting(self) -> None:
        if self._engine.crash is not None:
            raise Unavailable(f"The engine has crashed: {self._engine.crash}. Restart the server.")
        if not self._is_accepting:
            state = "starting" if self._closing is None else "shutting down"
            raise Unavailable(f"The server is {state}. Try again later.")

    def _leave(self, stream: ChunkStream) -> None:
        """Release the places of a request and abort its unfinished choices."""
        if not stream.is_finished and self._engine.crash is None:
            self._engine.abort(stream.choices, message="The client closed the request.")
        self._num_open -= len(stream.choices)
        now_s = time.perf_counter()
        self._seconds_per_choice += 0.1 * (now_s - self._freed_at_s - self._seconds_per_choice)
        self._freed_at_s = now_s
        self._forget(stream)

    def _forget(self, stream: ChunkStream) -> None:
        self._streams.discard(stream)
        if not self._streams:
            self._is_drained.set()

    async def _close(self, deadline_s: float) -> None:
        if not await self._has_drained(deadline_s):
            choices = [choice for stream in self._streams for choice in stream.choices]
            self._engine.abort(choices, message="The server shut down before the answer was complete.")
            await self._has_drained(1.0)  # a moment to read the last chunk; some readers have stopped reading
        await asyncio.to_thread(self._engine.stop)
        if self._preparing is not None:
            self._preparing.cancel()
        self._processor.grammars.close()

    async def _has_drained(self, timeout_s: float) -> bool:
        if self._streams:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_drained.wait(), timeout_s)
        return not self._streams


async def _best_chunks(stream: ChunkStream, *, count: int, shows_logprobs: bool) -> AsyncIterator[Chunk]:
    """
    Wait for all candidates and yield the `count` with the best mean logprob, best first, one chunk each.

    Logprobs are computed for the ranking; without `shows_logprobs` they are left out.
    """
    pieces: dict[int, list[Chunk]] = {choice.index: [] for choice in stream.choices}
    while not stream.is_finished:
        chunk = await stream.next()
        pieces[chunk.index].append(chunk)
    prompt = next((c.prompt for chunks in pieces.values() for c in chunks if c.prompt is not None), None)
    endings = {index: chunks[-1].finish for index, chunks in pieces.items()}
    failed = {index for index, end in endings.items() if end is not None and end.reason in _FAILURES}
    ranked = sorted(stream.choices, key=lambda c: (c.index in failed, -c.mean_logprob, c.index))[:count]
    for place, choice in enumerate(ranked):
        yield _joined(pieces[choice.index], place, prompt if place == 0 else None, shows_logprobs=shows_logprobs)


def _joined(chunks: list[Chunk], place: int, prompt: tuple[Token, ...] | None, *, shows_logprobs: bool) -> Chunk:
    tokens = tuple(token for chunk in chunks for token in chunk.tokens)
    if not shows_logprobs:
        tokens = tuple(replace(token, logprob=None) for token in tokens)
    text = "".join(chunk.text for chunk in chunks)
    first, last = chunks[0], chunks[-1]
    return replace(first, index=place, text=text, tokens=tokens, prompt=prompt, finish=last.finish)


def runner_engine(
    runner: Runner,
    parts: TextParts,
    limits: EngineLimits,
    info: ModelInfo,
    *,
    observer: EngineObserver | None = None,
    read_adapter: ReadAdapter | None = None,
    start_adapters: Mapping[str, Path] = MappingProxyType({}),
    store: FileStore | None = None,
) -> AsyncEngine:
    """Return a backend of our own engine on a runner, which it owns, as it owns the store of its prefixes."""
    table = TokenTable(parts.tokenizer)
    limits = fit_to_runner(limits, runner.limits)
    engine = EngineThread(runner, table, limits, read_adapter=read_adapter, store=store)
    return AsyncEngine(engine, parts, table, limits, info, observer=observer, start_adapters=start_adapters)
