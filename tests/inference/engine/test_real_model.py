"""
The guarantees of the engine on the native runtime with the small real model.

Of batch invariance these prove what random networks cannot: real logits, whose best tokens nearly tie, a real tokenizer
and chat template, in the default format. `test_native_bytes` has every format.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace.core.generation import ChatPrompt, FinishReason, GenerationRequest, Grammar
from headrace.inference.engine.core import scheduler
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import Answer, FreeRows, ask, ask_together, core_of, request, running, thread_of

pytestmark = pytest.mark.model

CHAT_PAGE = Path(headrace.__file__).parent / "serving/server/web/index.html"
SYSTEM = "You answer in one short sentence, politely, and never mention the weather. " * 4


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


@asynccontextmanager
async def engine_on(path: Path, cache_dir: Path, **changes: object) -> AsyncIterator[AsyncEngine]:
    settings = ServerSettings(model=str(path), cache_dir=cache_dir, max_model_len=512, threads=1)
    async with running(load_engine(replace(settings, **changes))) as engine:
        yield engine


def chat(text: str, **sampling: object) -> GenerationRequest:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return replace(request("", **sampling), prompt=ChatPrompt(messages=messages))


def mixed_requests() -> list[GenerationRequest]:
    wanted = [request("🌊 漢字 " * n + "Once", max_new_tokens=60, ignore_eos=True) for n in range(6)]
    wanted += [chat(f"What is {n} plus {n}?", max_new_tokens=12) for n in range(3)]
    wanted += [request(f"{n}, {n + 1},", max_new_tokens=16, temperature=0.9, seed=n, top_p=0.9) for n in range(3)]
    return wanted


def essence(answer: Answer) -> tuple[object, ...]:
    return answer.text, tuple(answer.ids), answer.finish.reason


async def test_answers_do_not_depend_on_the_batch_the_cache_chunks_or_preemption(
    smollm2_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = mixed_requests()
    async with engine_on(smollm2_path, cache_dir, max_draft_tokens=0, enable_prefix_caching=False) as engine:
        alone = [essence(await ask(engine, request)) for request in wanted]
        block_bytes = thread_of(engine)._runner.info.kv_cache_bytes // thread_of(engine)._runner.limits.num_blocks
    async with engine_on(smollm2_path, cache_dir, max_num_batched_tokens=96) as engine:
        together = await ask_together(engine, wanted)
        again = await ask_together(engine, wanted)
        assert engine.stats().cached_tokens_total > 0
    assert [essence(answer) for answer in together] == alone
    assert [essence(answer) for answer in again] == alone
    # Three of the long answers, of three blocks each at their end, collide in eight blocks; with drafts they would be
    # too short-lived.
    tiny = {"max_draft_tokens": 0, "max_model_len": 192, "kv_cache_bytes": 8 * block_bytes}
    async with engine_on(smollm2_path, cache_dir, **tiny) as engine:
        core_of(engine).scheduler._expected_output_tokens = 1.0
        monkeypatch.setattr(scheduler, "_EXPECTATION_WEIGHT", 0.0)  # it never learns that answers are longer
        squeezed = await ask_together(engine, wanted)
        assert engine.stats().preemptions_total > 0
    assert [essence(answer) for answer in squeezed] == alone


async def test_the_kv_cache_holds_no_more_tokens_than_it_is_given(smollm2_path: Path, cache_dir: Path) -> None:
    async with engine_on(smollm2_path, cache_dir, max_model_len=None, max_kv_cache_tokens=600) as engine:
        assert engine.stats().num_blocks * engine.stats().block_tokens == 576
        assert engine.info.max_model_len == 600 - 600 % 32


def repetitive_requests() -> list[GenerationRequest]:
    copied = "The lock was dug in 1643. It was made of oak and leaked. In 1781 a flood broke it. "
    wanted = [chat(f"Copy this text word for word: {copied}", max_new_tokens=40, logprobs=2)]
    wanted += [request(copied * 3 + "The lock", max_new_tokens=40, temperature=t, seed=3) for t in (0.0, 0.7, 1.2)]
    wanted += [request(copied * 2, max_new_tokens=40, repetition_penalty=1.1, frequency_penalty=0.3, min_new_tokens=20)]
    wanted += [request("1, 2, 3, 1, 2, 3, 1, 2,", max_new_tokens=40, stop=("3, 1, 2, 3, 1, 2, 3, 4",), ignore_eos=True)]
    wanted += [request("🌊 漢字 🌊 漢字 🌊", max_new_tokens=30, ignore_eos=True, prompt_logprobs=1)]
    return wanted


async def test_draft_tokens_do_not_change_any_bit(smollm2_path: Path, cache_dir: Path) -> None:
    """Log probabilities too: a verified row is computed exactly as the row of a plain step."""
    wanted = repetitive_requests()
    async with engine_on(smollm2_path, cache_dir, max_draft_tokens=0, enable_prefix_caching=False) as engine:
        plain = [await ask(engine, request) for request in wanted]
    async with engine_on(smollm2_path, cache_dir, max_draft_tokens=7) as engine:
        core_of(engine).scheduler._row_costs = FreeRows()
        together = await ask_together(engine, wanted)
        assert 0 < engine.stats().accepted_tokens_total < engine.stats().drafted_tokens_total
    assert [(a.text, a.tokens, a.prompt, a.finish.reason) for a in together] == [
        (a.text, a.tokens, a.prompt, a.finish.reason) for a in plain
    ]


@pytest.mark.parametrize("dtype", ["bf16", "w8a16", "auto"])
async def test_a_question_is_answered_correctly(dtype: str, smollm2_path: Path, cache_dir: Path) -> None:
    async with engine_on(smollm2_path, cache_dir, dtype=dtype) as engine:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        wanted = replace(request("", max_new_tokens=20), prompt=ChatPrompt(messages=messages))
        answer = await ask(engine, wanted)
    assert "Paris" in answer.text
    assert answer.finish.reason is FinishReason.EOS


async def test_the_first_suggestion_of_the_chat_page_is_answered_right_with_every_seed(
    smollm2_path: Path, cache_dir: Path
) -> None:
    suggestion = re.search(r'id="suggestions">\s*<button type="button">([^<]+)<', CHAT_PAGE.read_text())
    assert suggestion is not None
    assert suggestion[1] == "How do plants make their food?"
    prompt = ChatPrompt(messages=[{"role": "user", "content": suggestion[1]}])
    async with engine_on(smollm2_path, cache_dir) as engine:
        usual = engine.info.recommended
        assert (engine.info.dtype, engine.info.kv_dtype) == ("w4a16", "bf16")
        wanted = [
            replace(
                request(
                    "",
                    max_new_tokens=24,
                    temperature=usual.temperature,
                    top_p=usual.top_p,
                    repetition_penalty=usual.repetition_penalty,
                    seed=seed,
                ),
                prompt=prompt,
            )
            for seed in range(20)
        ]
        answers = await asyncio.gather(*(ask(engine, request) for request in wanted))
    assert [answer.text for answer in answers if "photosynthesis" not in answer.text] == []


async def test_prompt_logprobs_equal_those_of_generation(smollm2_path: Path, cache_dir: Path) -> None:
    async with engine_on(smollm2_path, cache_dir) as engine:
        start = await ask(engine, request("The sea is", max_new_tokens=12, logprobs=1, ignore_eos=True))
        _, spans = engine.tokenize("The sea is")
        assert engine.detokenize(tuple(span.id for span in spans)) == "The sea is"
        prompt = (*(span.id for span in spans), *start.ids)
        scored = await ask(engine, request(prompt, max_new_tokens=1, prompt_logprobs=1))
    assert scored.prompt is not None
    assert [token.logprob for token in scored.prompt[len(spans) :]] == [token.logprob for token in start.tokens]


async def test_a_grammar_constrains_the_real_model(smollm2_path: Path, cache_dir: Path) -> None:
    async with engine_on(smollm2_path, cache_dir) as engine:
        grammar = Grammar("regex", r'\{"city": "[A-Z][a-z]{2,9}"\}')
        answer = await ask(engine, chat("Name a city as JSON.", max_new_tokens=40, grammar=grammar))
    assert answer.text.startswith('{"city": "')
    assert answer.text.endswith('"}')
    assert answer.finish.reason is FinishReason.EOS
