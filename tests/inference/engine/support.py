"""Engines on the fake runner, and helpers that read whole answers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache

import tokenizers

from headrace.core.engine_stats import EngineStats
from headrace.core.generation import (
    Chunk,
    Finish,
    GenerationRequest,
    ModelInfo,
    PoolingInfo,
    RequestLimits,
    SamplingParams,
    Token,
)
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.engine import Engine
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.prefix_store.store import FileStore
from headrace.inference.engine.service.async_engine import AsyncEngine, runner_engine
from headrace.inference.engine.service.prompt_tokens import TextParts
from headrace.inference.engine.service.thread import EngineThread, ReadAdapter
from headrace.inference.engine.spec_decode.drafting import RowCostModel
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.pooling import Pooler
from headrace.inference.models.tokenizer import Tokenizer, byte_characters
from headrace.inference.runner.step import Runner, RunnerLimits, StepInput, StepOutput
from headrace.testing.fake_runner import FAKE_LIMITS, FAKE_SPEC, FakeRunner, Script
from tests.inference.engine.books import check_scheduler
from tests.waiting import WAIT_S

EOS = 256
BOS = 257
VOCAB_SIZE = 264
SPEC = replace(FAKE_SPEC, vocab_size=VOCAB_SIZE)
LIMITS = EngineLimits(
    request=RequestLimits(max_best_of=16, max_stop_sequences=16, max_top_n_tokens=20),
    max_model_len=512,
    max_prompt_tokens=400,
    max_num_seqs=64,
    max_num_batched_tokens=256,
    max_waiting_seqs=256,
    max_draft_tokens=0,
    max_step_s=None,
    enable_prefix_caching=True,
)


@cache
def byte_tokenizer() -> Tokenizer:
    """One token a byte, whose id is the byte; 256 is `<eos>`, 257 `<bos>`."""
    vocab = byte_characters()
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<bos>"])
    return Tokenizer(backend, vocab_size=VOCAB_SIZE, bos_token_id=BOS, eos_token_ids=[EOS])


def runner_limits(num_blocks: int = 512, **changes: int) -> RunnerLimits:
    return replace(FAKE_LIMITS, num_blocks=num_blocks, **changes)


def make_engine(
    *,
    limits: EngineLimits = LIMITS,
    room: RunnerLimits | None = None,
    script: Script | None = None,
    bias: Mapping[int, float] | None = None,
    fail_on_steps: Collection[int] = (),
    before_step: Callable[[StepInput], None] | None = None,
    chat_template: ChatTemplate | None = None,
    observer: EngineObserver | None = None,
    runner_type: type[FakeRunner] = FakeRunner,
    pooler: Pooler | None = None,
    pooling: PoolingInfo | None = None,
    generates: bool = True,
    read_adapter: ReadAdapter | None = None,
    tokenizer: Tokenizer | None = None,
    runner: Runner | None = None,
    store: FileStore | None = None,
) -> AsyncEngine:
    """An engine that is not started: on a runner, or on a fake one of the type and with the options given."""
    tokenizer = tokenizer or byte_tokenizer()
    runner = runner or runner_type(
        replace(SPEC, vocab_size=tokenizer.vocab_size),
        room or runner_limits(),
        script=script,
        bias=bias,
        fail_on_steps=fail_on_steps,
        before_step=before_step,
    )
    info = ModelInfo(
        name="fake",
        revision=None,
        family="fake",
        dtype="fake",
        kv_dtype="fake",
        device="fake",
        max_model_len=limits.max_model_len,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_num_seqs=limits.max_num_seqs,
        vocab_size=tokenizer.vocab_size,
        num_parameters=0,
        has_chat_template=chat_template is not None,
        has_states=runner.limits.num_state_slots > 0,
        created_s=int(time.time()),
        generates=generates,
        pooling=pooling,
    )
    parts = TextParts(
        tokenizer=tokenizer,
        chat_template=chat_template,
        eos_token_ids=tokenizer.eos_token_ids,
        pooler=pooler or Pooler(),
    )
    return runner_engine(runner, parts, limits, info, observer=observer, read_adapter=read_adapter, store=store)


def thread_of(engine: AsyncEngine) -> EngineThread:
    assert isinstance(engine._engine, EngineThread)
    return engine._engine


def core_of(engine: AsyncEngine) -> Engine:
    return thread_of(engine)._engine


@asynccontextmanager
async def running(engine: AsyncEngine) -> AsyncIterator[AsyncEngine]:
    """Start an engine, and check its books after use."""
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close(deadline_s=5)
        check_scheduler(core_of(engine).scheduler)
        assert core_of(engine).scheduler.pool.num_free == core_of(engine).scheduler.pool.num_blocks


class FreeRows(RowCostModel):
    """A cost model by which every row is free: sequences draft whenever they have a match."""

    def row_cost(self, *, sequences: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: tuple[Token, ...]
    finish: Finish
    prompt: tuple[Token, ...] | None
    chunks: tuple[Chunk, ...]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


def request(prompt: str | tuple[int, ...] = "hello", request_id: str = "r", salt: str = "", **sampling: object):
    return GenerationRequest(request_id=request_id, prompt=prompt, sampling=SamplingParams(**sampling), cache_salt=salt)


async def ask_all(engine: AsyncEngine, wanted: GenerationRequest) -> list[Answer]:
    """Every choice of a request, by index."""
    chunks: dict[int, list[Chunk]] = {}
    async for chunk in engine.generate(wanted):
        chunks.setdefault(chunk.index, []).append(chunk)
    return [_answer(chunks[index]) for index in sorted(chunks)]


async def ask(engine: AsyncEngine, wanted: GenerationRequest) -> Answer:
    (answer,) = await ask_all(engine, wanted)
    return answer


def _answer(chunks: list[Chunk]) -> Answer:
    finishes = [chunk.finish for chunk in chunks if chunk.finish is not None]
    assert len(finishes) == 1
    assert chunks[-1].finish is not None
    prompts = [chunk.prompt for chunk in chunks if chunk.prompt is not None]
    assert len(prompts) <= 1
    return Answer(
        text="".join(chunk.text for chunk in chunks),
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        finish=finishes[0],
        prompt=prompts[0] if prompts else None,
        chunks=tuple(chunks),
    )


class Gate:
    """Holds the runner before each step until it is opened; counts and keeps what passes."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.steps: list[StepInput] = []

    def __call__(self, step: StepInput) -> None:
        assert self.is_open.wait(WAIT_S)
        self.steps.append(step)


async def settled(engine: AsyncEngine, condition: Callable[[EngineStats], bool]) -> None:
    """Wait, by turns of the event loop, until a fact about the engine holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition(engine.stats()):
            await asyncio.sleep(0)


class Held:
    """A runner that begins its first step when it is released."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.released = threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def execute(self, step: StepInput) -> StepOutput:
        assert self.released.wait(WAIT_S)
        return self.runner.execute(step)


async def ask_together(engine: AsyncEngine, wanted: Sequence[GenerationRequest]) -> list[Answer]:
    """Ask for all at once. No step begins before all have arrived, so that they meet however busy the machine is."""
    core = core_of(engine)
    held = Held(core._runner)
    core._runner = held
    tasks = [asyncio.create_task(ask(engine, request)) for request in wanted]
    await settled(engine, lambda stats: stats.num_running + stats.num_waiting == len(wanted))
    held.released.set()
    answers = await asyncio.gather(*tasks)
    core._runner = held.runner
    return answers


async def ask_and_leave(engine: AsyncEngine, asked: GenerationRequest, patience: int) -> None:
    """Read so many chunks of an answer, or all of them if there are fewer, and close the stream."""
    chunks = engine.generate(asked)
    async for _ in chunks:
        patience -= 1
        if patience <= 0:
            break
    await chunks.aclose()
