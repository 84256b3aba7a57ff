"""The engine of choices on a client that answers as vLLM does, without vLLM."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.core.errors import EngineFailed, InvalidRequest, Unavailable
from headrace.core.generation import FinishReason, Grammar, RepetitionDetection
from headrace.inference.backends.vllm.adapters import AdapterFacts
from headrace.inference.backends.vllm.engine import VllmEngine
from headrace.inference.backends.vllm.sampling import grammar_source_of, sampling_arguments, structured_output_arguments
from headrace.inference.backends.vllm.stats import StepStats
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.engine.service.prompt_tokens import TextParts
from headrace.inference.engine.text.detokenizer import TokenTable
from tests.inference.engine.support import EOS, LIMITS, VOCAB_SIZE, ask, ask_all, byte_tokenizer, make_engine, request
from tests.waiting import WAIT_S


@dataclass
class FakeClient:
    """Answers with the bytes of a text, one token an output; its processes may die."""

    text: str = "hello world"
    is_speculating: bool = False
    vocab_size: int = VOCAB_SIZE
    has_died: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[dict[str, Any]] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)
    num_closed: int = 0
    num_kills: int = 0
    num_shutdowns: int = 0

    async def generate(self, choice, adapter) -> AsyncIterator[Any]:
        arguments = sampling_arguments(choice)
        self.seen.append({**arguments, "adapter": adapter, "grammar": grammar_source_of(choice)})
        try:
            for position, token_id in enumerate([*self.text.encode(), EOS]):
                if position == 3:
                    await self.gate.wait()
                if self.has_died:
                    raise RuntimeError("EngineCore encountered an issue.")
                yield self.output(choice, arguments, token_id, position)
        finally:
            self.num_closed += 1

    def output(self, choice, arguments, token_id: int, position: int) -> Any:
        logprobs = None if arguments["logprobs"] is None else [self.entry(token_id)]
        prompt = choice.sequence.tokens[: choice.sequence.num_prompt_tokens].tolist()
        return SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=[token_id], logprobs=logprobs, finish_reason=None)],
            metrics=SimpleNamespace(queued_ts=1.0, scheduled_ts=1.5),
            num_cached_tokens=2,
            prompt_logprobs=[None, *map(self.entry, prompt[1:])] if position == 0 else None,
        )

    def entry(self, token_id: int) -> dict[int, Any]:
        """The chosen token is the third most likely, as entries of vLLM have it: first."""
        entry = {token_id: SimpleNamespace(logprob=-3.0, rank=3)}
        return entry | {97: SimpleNamespace(logprob=-1.0, rank=1), 98: SimpleNamespace(logprob=-2.0, rank=2)}

    async def add_adapter(self, facts: AdapterFacts, adapter_id: int) -> str:
        if facts.path.name == "slow":
            await self.gate.wait()
        if facts.path.name == "broken":
            raise ValueError("the shapes differ")
        self.adapters.append(f"{facts.path.name}-{adapter_id}")
        return self.adapters[-1]

    async def remove_adapter(self, adapter: str) -> None:
        self.adapters.remove(adapter)

    def kill(self) -> None:
        self.num_kills += 1

    def shutdown(self, timeout_s: float) -> None:
        self.num_shutdowns += 1


@asynccontextmanager
async def serving(step_timeout_s: float = WAIT_S, **changes) -> AsyncIterator[tuple[AsyncEngine, FakeClient]]:
    client = FakeClient(**changes)
    client.gate.set()
    info = make_engine().info
    tokenizer = byte_tokenizer()
    table = TokenTable(tokenizer)
    read = lambda path: AdapterFacts(path=path, identity=path.name, rank=2)  # noqa: E731
    stats = StepStats(num_blocks=10, block_tokens=16)
    core = VllmEngine(client, table, stats, num_adapter_slots=1, read_adapter=read, step_timeout_s=step_timeout_s)
    parts = TextParts(tokenizer=tokenizer, chat_template=None, eos_token_ids=tokenizer.eos_token_ids)
    engine = AsyncEngine(core, parts, table, LIMITS, info)
    await engine.start()
    client.seen.clear()
    client.num_closed = 0
    try:
        yield engine, client
    finally:
        client.gate.set()
        await engine.close(deadline_s=WAIT_S)
        await engine.close(deadline_s=0)
        assert client.num_shutdowns == 1


async def test_tokens_become_our_text_and_the_end_token_ends_it() -> None:
    async with serving() as (engine, client):
        answer = await ask(engine, request("ab", max_new_tokens=50))
        assert (answer.text, answer.finish.reason, answer.finish.stop) == ("hello world", FinishReason.EOS, EOS)
        assert (answer.finish.prompt_tokens, answer.finish.output_tokens) == (2, 12)
        assert answer.finish.cached_tokens == 2
        stats = engine.stats()
        assert (stats.num_running, stats.prompt_tokens_total, stats.cached_tokens_total) == (0, 2, 2)
        assert client.seen[0]["max_tokens"] == 50
        assert client.seen[0]["stop_token_ids"] == [EOS]


async def test_a_stop_string_cuts_the_text_and_closes_the_request() -> None:
    async with serving() as (engine, client):
        answer = await ask(engine, request("ab", max_new_tokens=50, stop=("lo w",)))
        assert (answer.text, answer.finish.reason, answer.finish.stop) == ("hel", FinishReason.STOP, "lo w")
        assert client.num_closed == 1


async def test_an_answer_that_repeats_itself_is_cut_here() -> None:
    rule = RepetitionDetection(max_pattern_size=1, min_pattern_size=1, min_count=2)
    async with serving() as (engine, client):
        answer = await ask(engine, request("ab", max_new_tokens=50, repetition_detection=rule))
        assert (answer.text, answer.finish.reason) == ("hell", FinishReason.REPETITION)
        assert client.num_closed == 1


async def test_the_length_is_counted_here_and_a_text_of_no_tokens_is_asked_for_one() -> None:
    async with serving() as (engine, client):
        answer = await ask(engine, request("ab", max_new_tokens=5))
        assert (answer.text, answer.finish.reason) == ("hello", FinishReason.LENGTH)
        answer = await ask(engine, request("ab", max_new_tokens=0, prompt_logprobs=0))
        assert (answer.text, answer.finish.reason, answer.finish.output_tokens) == ("", FinishReason.LENGTH, 0)
        assert client.seen[-1]["max_tokens"] == 1


async def test_logprobs_are_of_the_chosen_token_and_of_the_most_likely() -> None:
    async with serving() as (engine, _):
        answer = await ask(engine, request("xy", max_new_tokens=1, logprobs=2, prompt_logprobs=1))
        (token,) = answer.tokens
        assert (token.text, token.logprob) == ("h", -3.0)
        assert [(top.text, top.logprob) for top in token.top] == [("a", -1.0), ("b", -2.0)]
        first, second = answer.prompt
        assert (first.text, first.logprob, first.top) == ("x", None, ())
        assert (second.text, second.logprob, [top.text for top in second.top]) == ("y", -3.0, ["a"])
        assert (first.rank, second.rank) == (None, 3)


async def test_every_choice_is_a_request_with_a_seed_of_its_own_if_the_client_gave_one() -> None:
    async with serving() as (engine, client):
        answers = await ask_all(engine, request("ab", n=3, seed=7, temperature=1.0, max_new_tokens=2))
        assert answers[0].finish.seed == 7
        seeds = [seen["seed"] for seen in client.seen]
        assert (len(set(seeds)), seeds[0]) == (3, 7)
        answer = await ask(engine, request("ab", temperature=1.0, max_new_tokens=2))
        assert (answer.finish.seed, client.seen[-1]["seed"]) == (None, None)


@pytest.mark.parametrize(
    ("sampling", "param"),
    [({"typical_p": 0.5}, "typical_p"), ({"temperature": 2.5}, "temperature"), ({"min_p": 0.1}, "min_p")],
)
async def test_what_vllm_cannot_draw_is_refused_by_name(sampling: dict[str, float], param: str) -> None:
    async with serving(is_speculating=True) as (engine, client):
        with pytest.raises(InvalidRequest) as caught:
            await ask(engine, request("ab", **sampling))
        assert caught.value.param == param
        assert engine.stats().num_running == 0
        assert client.seen == []


async def test_a_closed_request_is_closed_in_vllm_too() -> None:
    async with serving() as (engine, client):
        client.gate.clear()
        chunks = engine.generate(request("ab", max_new_tokens=50))
        await anext(chunks)
        assert engine.stats().num_running == 1
        await chunks.aclose()
        assert engine.stats().num_running == 0
        await asyncio.sleep(0)
        assert client.num_closed == 1


async def test_requests_at_the_deadline_of_a_shutdown_end_with_an_abort() -> None:
    async with serving() as (engine, client):
        client.gate.clear()
        asking = asyncio.create_task(ask(engine, request("ab", max_new_tokens=50)))
        while not client.seen:
            await asyncio.sleep(0)
        await engine.close(deadline_s=0)
        answer = await asking
        assert answer.finish.reason is FinishReason.ABORT
        with pytest.raises(Unavailable):
            await ask(engine, request("ab"))


async def test_the_death_of_a_process_ends_requests_and_refuses_new_ones() -> None:
    async with serving() as (engine, client):
        client.gate.clear()
        asking = asyncio.create_task(ask(engine, request("ab", max_new_tokens=50)))
        while not client.seen:
            await asyncio.sleep(0)
        assert engine.is_healthy
        client.has_died = True
        assert not engine.is_healthy
        client.gate.set()
        answer = await asking
        assert answer.finish.reason is FinishReason.ERROR
        assert "process of vLLM" in (answer.finish.message or "")
        with pytest.raises(Unavailable, match="crashed"):
            await ask(engine, request("ab"))


async def test_a_step_that_hangs_ends_requests_and_the_processes() -> None:
    async with serving(step_timeout_s=0.05) as (engine, client):
        client.gate.clear()
        answers = await asyncio.gather(*[ask(engine, request("ab", max_new_tokens=50)) for _ in range(2)])
        assert {answer.finish.reason for answer in answers} == {FinishReason.ERROR}
        assert "vLLM has not ended a step within 0.05 s" in (answers[0].finish.message or "")
        assert (engine.is_healthy, engine.stats().num_running, client.num_kills) == (False, 0, 1)
        with pytest.raises(Unavailable, match="has not ended a step"):
            await ask(engine, request("ab"))
        assert client.num_closed == 2


async def test_an_adapter_that_a_hanging_step_holds_up_is_not_waited_for() -> None:
    async with serving(step_timeout_s=0.05) as (engine, client):
        client.gate.clear()
        with pytest.raises(EngineFailed, match="has not ended a step"):
            await engine.load_adapter("slow", Path("slow"))
        assert (engine.is_healthy, client.num_kills) == (False, 1)


async def test_adapters_are_loaded_under_new_ids_and_used_by_slot() -> None:
    async with serving() as (engine, client):
        await engine.load_adapter("tone", Path("first"))
        await ask(engine, replace(request("ab", max_new_tokens=2), adapter="tone"))
        assert client.seen[-1]["adapter"] == "first-1"
        await engine.unload_adapter("tone")
        await engine.load_adapter("tone", Path("second"))
        assert client.adapters == ["second-2"]
        await engine.unload_adapter("tone")
        with pytest.raises(Exception, match="cannot apply the adapter in broken: the shapes differ"):
            await engine.load_adapter("bad", Path("broken"))


async def test_a_grammar_reaches_vllm_in_the_form_of_llguidance() -> None:
    async with serving(text='{"a": 1}') as (engine, client):
        schema = '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}'
        answer = await ask(engine, request("ab", max_new_tokens=50, grammar=Grammar("json_schema", schema)))
        assert (answer.text, answer.finish.reason) == ('{"a": 1}', FinishReason.EOS)
        (key,) = structured_output_arguments(client.seen[-1]["grammar"])
        assert key == "json"
        await ask(engine, request("ab", max_new_tokens=2, grammar=Grammar("choice", '["{", "x"]')))
        assert structured_output_arguments(client.seen[-1]["grammar"])["grammar"].startswith("start: CHOICE")
