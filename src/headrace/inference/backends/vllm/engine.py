"""A `ChoiceEngine` on vLLM's `AsyncLLM`: one of its requests per choice. Everything runs on the event loop."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.engine_stats import EngineStats
from headrace.core.errors import EngineFailed, HeadraceError, Unavailable
from headrace.core.generation import Chunk, FinishReason, TokenLogprob
from headrace.inference.backends.vllm.adapters import AdapterFacts
from headrace.inference.backends.vllm.errors import request_error
from headrace.inference.backends.vllm.sampling import check_params
from headrace.inference.backends.vllm.stats import StepStats
from headrace.inference.backends.vllm.step_watch import StepWatch
from headrace.inference.engine.core.choice import Choice, prompt_token
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.service.stream import ChunkStream
from headrace.inference.engine.text.detokenizer import TokenTable

if TYPE_CHECKING:
    from headrace.inference.backends.vllm.client import AsyncLLMClient

_log = structlog.get_logger("headrace.engine")

_STOP_S = 10.0
"""Seconds for vLLM's processes to end after SIGTERM, before SIGKILL."""
_REASONS = {"length": FinishReason.LENGTH, "stop": FinishReason.EOS, "abort": FinishReason.ABORT}


ReadAdapter = Callable[[Path], AdapterFacts]


class VllmEngine:
    """Runs each choice as a request of vLLM, and makes our chunks of its tokens; `ChoiceEngine` has the contract."""

    def __init__(
        self,
        client: "AsyncLLMClient",
        table: TokenTable,
        stats: StepStats,
        *,
        num_adapter_slots: int,
        read_adapter: ReadAdapter,
        step_timeout_s: float,
    ) -> None:
        self._client = client
        self._table = table
        self._stats = stats
        self.num_adapter_slots = num_adapter_slots
        self._read_adapter = read_adapter
        self._step_timeout_s = step_timeout_s
        self._step_watch: StepWatch | None = None
        self._adapters: dict[int, Any] = {}
        """vLLM's adapters by slot. On the event loop only, as all that follows."""
        self._adapter_ids = count(1)
        self._tasks: dict[Choice, asyncio.Task[None]] = {}
        self._observer = EngineObserver()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crash: Exception | None = None
        self._is_stopping = False

    @property
    def vocab_size(self) -> int:
        return self._client.vocab_size

    @property
    def delays_grammars(self) -> bool:
        """False: vLLM applies a grammar from the first token of an answer."""
        return False

    @property
    def is_healthy(self) -> bool:
        """False once a process of vLLM has ended, or a step hangs."""
        return self.crash is None

    @property
    def crash(self) -> Exception | None:
        """The reason why vLLM's engine has ended before `stop`, if it has."""
        if self._crash is None and not self._is_stopping and self._client.has_died:
            self._note_crash("a process of vLLM ended unexpectedly")
        return self._crash

    def start(self) -> None:
        """Serve the running event loop."""
        self._loop = asyncio.get_running_loop()

    def begin_service(self, observer: EngineObserver) -> None:
        """
        Reset the totals after the warm-up and report to `observer` from now on.

        From now on steps have a time limit; those of the warm-up may compile kernels and have none.
        """
        self._observer = observer
        self._stats.totals.clear()
        assert self._loop is not None
        self._step_watch = StepWatch(
            self._step_timeout_s,
            num_reports=lambda: self._stats.num_reports,
            on_hang=self._fail_hung,
            loop=self._loop,
        )

    def add(self, choices: list[Choice]) -> None:
        if self._is_stopping:
            raise Unavailable("The engine has stopped. Send the request to another server or try again later.")
        check_params(choices[0].sequence.params, speculates=self._client.is_speculating)
        for choice in choices:
            if choice.sequence.params.seed is None:
                choice.reported_seed = None  # vLLM drew without it: the seed could not reproduce the answer
            self._tasks[choice] = asyncio.get_running_loop().create_task(self._run(choice))
        self._note_load()

    def abort(self, choices: Iterable[Choice], *, message: str) -> None:
        """End choices; cancelling their tasks aborts them in vLLM."""
        for choice in choices:
            task = self._tasks.get(choice)
            if task is not None:
                self._end(choice, choice.finish(FinishReason.ABORT, message=message))
                task.cancel()

    def fill_adapter_slot(self, slot: int, path: Path) -> AdapterFacts:
        """Load an adapter into vLLM under a new id; blocks."""
        assert self._loop is not None
        facts = self._read_adapter(path)
        asyncio.run_coroutine_threadsafe(self._replace_adapter(slot, facts), self._loop).result()
        return facts

    def stats(self) -> EngineStats:
        return self._stats.engine_stats(len(self._tasks))

    def stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._client.shutdown(_STOP_S)

    async def _replace_adapter(self, slot: int, facts: AdapterFacts) -> None:
        if (old := self._adapters.pop(slot, None)) is not None:
            await self._between_steps(self._client.remove_adapter(old))
        try:
            loaded = await self._between_steps(self._client.add_adapter(facts, next(self._adapter_ids)))
        except EngineFailed:
            raise
        except Exception as error:
            raise facts.refusal(error) from error
        self._adapters[slot] = loaded

    async def _between_steps(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call that vLLM answers between two steps."""
        try:
            return await asyncio.wait_for(call, self._step_timeout_s)
        except TimeoutError as error:
            self._fail_hung()
            raise EngineFailed(f"The engine crashed: {self.crash}.") from error

    async def _run(self, choice: Choice) -> None:
        """Read the outputs of one choice until its end; the last chunk says how it ended."""
        slot = choice.sequence.adapter_slot
        try:
            async with aclosing(self._client.generate(choice, None if slot < 0 else self._adapters[slot])) as outputs:
                async for output in outputs:
                    for chunk in self._chunks(choice, output):
                        if chunk.finish is not None:
                            self._end(choice, chunk)
                            return
                        _put(choice, chunk)
        except Exception as error:  # noqa: BLE001 - an edge: whatever vLLM raises ends this choice, not the server
            self._end(choice, self._failed(choice, error))
        else:
            self._end(choice, choice.finish(FinishReason.ERROR, message="vLLM ended the answer without a reason."))

    def _chunks(self, choice: Choice, output: Any) -> Iterator[Chunk]:
        """Yield our chunks for the new tokens of an output."""
        self._note_first(choice, output)
        if choice.sequence.max_total_tokens == choice.sequence.num_prompt_tokens:
            yield choice.finish_prompt()
            return
        completion = output.outputs[0]
        for position, token_id in enumerate(completion.token_ids):
            entry = completion.logprobs[position] if completion.logprobs is not None else {}
            logprob = entry[token_id].logprob if entry else None
            chunk = choice.take_token(token_id, logprob, self._top(entry, choice.sequence.params.logprobs))
            if chunk is not None:
                yield chunk
        if completion.finish_reason is not None:  # our own count of tokens and end tokens comes first
            reason = _REASONS.get(completion.finish_reason, FinishReason.ERROR)
            yield choice.finish(reason, message=f"vLLM ended the answer: {completion.finish_reason}.")

    def _note_first(self, choice: Choice, output: Any) -> None:
        """Take times, cached tokens and the scored prompt from the first output."""
        if choice.admitted_s is not None:
            return
        sequence = choice.sequence
        times = output.metrics
        queue_s = max(0.0, times.scheduled_ts - times.queued_ts) if times is not None else 0.0
        choice.admitted_s = min(sequence.arrived_s + queue_s, time.perf_counter())
        sequence.num_cached_tokens = output.num_cached_tokens or 0
        self._stats.totals["prompt_tokens_total"] += sequence.num_prompt_tokens
        self._stats.totals["cached_tokens_total"] += sequence.num_cached_tokens
        if not sequence.scores_prompt:
            return
        for position, entry in enumerate(output.prompt_logprobs or ()):
            if entry:
                token_id = int(sequence.tokens[position])
                top = self._top(entry, sequence.params.prompt_logprobs)
                own = entry[token_id]
                choice.prompt.append(prompt_token(self._table, token_id, own.logprob, own.rank, top))

    def _top(self, entry: Any, count: int | None) -> tuple[TokenLogprob, ...]:
        """Return the `count` most likely tokens; vLLM's entry also has the chosen one, whatever its rank."""
        if not count:
            return ()
        special = self._table.special_ids
        ranked = sorted(entry.items(), key=lambda item: item[1].rank)[:count]
        return tuple(TokenLogprob(i, self._table.text(i), value.logprob, i in special) for i, value in ranked)

    def _failed(self, choice: Choice, error: Exception) -> Chunk:
        if self.crash is not None:
            return choice.finish(FinishReason.ERROR, message=f"The engine crashed: {self.crash}.")
        found = error if isinstance(error, HeadraceError) else request_error(error)
        _log.warning("engine.request_failed", request_id=choice.request_id, error=found.message)
        return choice.finish(FinishReason.ERROR, message=found.message, param=getattr(found, "param", None))

    def _end(self, choice: Choice, chunk: Chunk) -> None:
        """Deliver the last chunk of a choice, once."""
        if self._tasks.pop(choice, None) is None:
            return
        self._note_load()
        assert chunk.finish is not None
        if choice.on_end is not None:
            choice.on_end()
        self._observer.choice_finished(choice)
        _put(choice, chunk)

    def _note_load(self) -> None:
        if self._step_watch is not None:
            self._step_watch.note(is_busy=bool(self._tasks))

    def _fail_hung(self) -> None:
        """End all choices and vLLM's processes, because a step hangs."""
        if self.crash is not None or self._is_stopping:
            return
        self._note_crash(f"vLLM has not ended a step within {self._step_timeout_s:g} s")
        self._client.kill()
        for choice, task in list(self._tasks.items()):
            self._end(choice, choice.finish(FinishReason.ERROR, message=f"The engine crashed: {self._crash}."))
            task.cancel()

    def _note_crash(self, reason: str) -> None:
        self._crash = EngineFailed(reason)
        _log.error("engine.crashed", error=reason)


def _put(choice: Choice, chunk: Chunk) -> None:
    stream = choice.owner
    assert isinstance(stream, ChunkStream)
    stream.put(chunk)
