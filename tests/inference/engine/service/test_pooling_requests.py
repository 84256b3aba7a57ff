"""Requests that pool instead of generating, beside requests that generate."""

import asyncio
from dataclasses import replace

import pytest

from headrace.core.errors import Busy, InvalidRequest, PromptTooLong
from headrace.core.generation import (
    ChatPrompt,
    FinishReason,
    GenerationRequest,
    Pooled,
    PoolingInfo,
    PoolingParams,
)
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.models.pooling import Pooler
from headrace.inference.runner.step import StepInput
from tests.inference.engine.support import (
    LIMITS,
    SPEC,
    Gate,
    ask,
    make_engine,
    request,
    runner_limits,
    running,
    settled,
)

INFO = PoolingInfo(method="mean", size=SPEC.hidden_size, max_tokens=LIMITS.max_model_len)
MEAN = Pooler(method="mean")


def pooling_request(prompt: object, request_id: str = "p", **params: object) -> GenerationRequest:
    return GenerationRequest(request_id=request_id, prompt=prompt, pooling=PoolingParams(**params))  # type: ignore[arg-type]


async def pool(engine: AsyncEngine, wanted: GenerationRequest) -> Pooled:
    """The result of a request, which comes in one chunk."""
    (chunk,) = [chunk async for chunk in engine.generate(wanted)]
    assert chunk.finish is not None
    assert chunk.finish.reason is FinishReason.POOLED
    assert chunk.finish.output_tokens == 0
    assert chunk.pooled is not None
    return chunk.pooled


TEXTS = tuple(f"text {number} " * (1 + 5 * number) for number in range(9))


async def alone(texts: tuple[str, ...] = TEXTS, **params: object) -> list[Pooled]:
    async with running(make_engine(pooler=MEAN, pooling=INFO)) as engine:
        return [await pool(engine, pooling_request(text, **params)) for text in texts]


async def test_an_input_has_the_same_bytes_alone_in_company_in_chunks_and_after_preemption() -> None:
    expected = await alone()
    gate = Gate()
    limits = replace(LIMITS, max_num_batched_tokens=24, max_num_seqs=24)
    room = runner_limits(num_blocks=64)
    async with running(make_engine(limits=limits, room=room, before_step=gate, pooler=MEAN, pooling=INFO)) as engine:
        generations = [ask(engine, request(f"story {n}", max_new_tokens=60, ignore_eos=True)) for n in range(6)]
        pools = [pool(engine, pooling_request(text, f"p{n}")) for n, text in enumerate(TEXTS)]
        results = await asyncio.gather(*generations, *pools)
    assert list(results[6:]) == expected
    assert any(is_mixed(step) for step in gate.steps), "no step generated and pooled at once"


def is_mixed(step: StepInput) -> bool:
    return len(step.rows) > 0 and len(step.hidden_rows) > 0


async def test_a_pooled_input_leaves_nothing_in_the_prefix_cache_and_needs_no_logits() -> None:
    gate = Gate()
    async with running(make_engine(before_step=gate, pooler=MEAN, pooling=INFO)) as engine:
        before, warm_up = engine.stats().num_cached_blocks, len(gate.steps)
        await pool(engine, pooling_request("x" * 300))
        await settled(engine, lambda stats: stats.num_running == 0)
        assert engine.stats().num_cached_blocks == before
        assert all(len(step.rows) == 0 for step in gate.steps[warm_up:])
        assert engine.stats().output_tokens_total == 0


async def test_the_documents_of_a_reranker_share_the_blocks_of_their_query() -> None:
    pooler = Pooler(method="last", labels=("yes",), pair_template="query: {query} document: {document} answer:")
    info = replace(INFO, method="last", labels=("yes",), size=1)
    async with running(make_engine(pooler=pooler, pooling=info)) as engine:
        query = "what is it? " * 12
        for number in range(3):
            await pool(engine, pooling_request(query, document=f"{number}", task="score"))
        assert engine.stats().cached_tokens_total >= 2 * 144


async def test_closing_a_pooling_request_frees_its_blocks() -> None:
    gate = Gate()
    async with running(make_engine(before_step=gate, pooler=MEAN, pooling=INFO)) as engine:
        gate.is_open.clear()
        task = asyncio.create_task(pool(engine, pooling_request("y" * 400)))
        await settled(engine, lambda stats: stats.num_running == 1)
        task.cancel()
        gate.is_open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(engine, lambda stats: stats.num_running == 0 and stats.num_free_blocks == stats.num_blocks)


async def test_pooling_requests_count_towards_the_queue_limit() -> None:
    gate = Gate()
    limits = replace(LIMITS, max_num_seqs=1, max_waiting_seqs=1)
    async with running(make_engine(limits=limits, before_step=gate, pooler=MEAN, pooling=INFO)) as engine:
        gate.is_open.clear()
        tasks = [asyncio.create_task(pool(engine, pooling_request("z"))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await pool(engine, pooling_request("z"))
        gate.is_open.set()
        await asyncio.gather(*tasks)


async def test_an_input_may_fill_the_context_but_not_exceed_it() -> None:
    async with running(make_engine(pooler=MEAN, pooling=INFO)) as engine:
        await pool(engine, pooling_request("a" * LIMITS.max_model_len))
        with pytest.raises(PromptTooLong) as raised:
            await pool(engine, pooling_request("a" * (LIMITS.max_model_len + 1)))
        assert raised.value.prompt_tokens == LIMITS.max_model_len + 1


@pytest.mark.parametrize(("side", "kept"), [("left", "bb"), ("right", "aa")])
async def test_an_input_that_is_too_long_is_cut_on_the_side_that_the_request_names(side: str, kept: str) -> None:
    async with running(make_engine(pooler=MEAN, pooling=INFO)) as engine:
        cut = await pool(engine, pooling_request("aabb", truncate=side, max_tokens=2))
        assert cut == await pool(engine, pooling_request(kept))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dimensions": 9}, "`dimensions` is 9; expected between 1 and 8"),
        ({"dimensions": 0}, "`dimensions` is 0"),
        ({"task": "score"}, "no head for scores"),
    ],
)
async def test_what_a_model_does_not_compute_is_refused(params: dict[str, object], message: str) -> None:
    async with running(make_engine(pooler=MEAN, pooling=INFO)) as engine:
        with pytest.raises(InvalidRequest, match=message):
            await pool(engine, pooling_request("a", **params))


async def test_a_server_for_generation_refuses_to_embed_and_one_for_embeddings_to_generate() -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(InvalidRequest, match="only generates text"):
            await pool(engine, pooling_request("a"))
    async with running(make_engine(pooler=MEAN, pooling=INFO, generates=False)) as engine:
        with pytest.raises(InvalidRequest, match="computes embeddings and generates no text"):
            await ask(engine, request("a"))


async def test_a_chat_is_pooled_with_its_template_and_needs_one() -> None:
    chat = ChatPrompt(messages=[{"role": "user", "content": "hi"}])
    async with running(make_engine(pooler=MEAN, pooling=INFO)) as engine:
        with pytest.raises(InvalidRequest, match="no chat template"):
            await pool(engine, pooling_request(chat))


async def test_a_step_that_fails_ends_the_pooling_request_with_an_error() -> None:
    async with running(make_engine(fail_on_steps={4, 5, 6}, pooler=MEAN, pooling=INFO)) as engine:
        finishes = []
        for _ in range(4):
            finishes += [chunk.finish async for chunk in engine.generate(pooling_request("a"))]
        assert {finish.reason for finish in finishes if finish} == {FinishReason.POOLED, FinishReason.ERROR}
