"""The transformers backend through our engine: sampling, logprobs, grammars, cancellation, adapters and refusals."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from headrace.core.errors import NotFound, SettingsError, UnsupportedModel
from headrace.core.generation import FinishReason, Grammar
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import ask, ask_all, request, running
from tests.inference.runner.transformers.checkpoints import write_network
from tests.inference.runner.transformers.test_adapters import save_adapter
from tests.parity.networks import VOCAB_SIZE

PROMPT = tuple(np.random.default_rng(9).integers(2, VOCAB_SIZE, 40).tolist())


def load(folder: Path, **settings: object) -> AsyncEngine:
    values = {"backend": "transformers", "dtype": "fp32", "threads": 1, "max_model_len": 96, "max_num_seqs": 8}
    return load_engine(ServerSettings(model=str(folder), **values | settings))


def next_logprobs(model: PreTrainedModel, tokens: tuple[int, ...]) -> np.ndarray:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), -1).numpy()


@pytest.mark.parametrize("name", ["bloom", "qwen 3"])
async def test_logprobs_are_those_of_the_network(name: str, tmp_path: Path) -> None:
    model = write_network(name, tmp_path)
    async with running(load(tmp_path)) as engine:
        asked = request(PROMPT, max_new_tokens=4, logprobs=3, prompt_logprobs=0, ignore_eos=True)
        answer = await ask(engine, asked)

    expected = next_logprobs(model, PROMPT + tuple(answer.ids))
    for index, token in enumerate(answer.tokens):
        row = expected[len(PROMPT) - 1 + index]
        assert token.logprob == pytest.approx(row[token.id], abs=1e-3)
        assert [top.id for top in token.top] == np.argsort(-row)[:3].tolist()
    scored = [token.logprob for token in answer.prompt[1:]]
    assert scored == pytest.approx([expected[at, token] for at, token in enumerate(PROMPT[1:])], abs=1e-3)


async def test_choices_of_one_request_share_the_prompt_and_differ_by_their_seed(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    async with running(load(tmp_path)) as engine:
        asked = request(PROMPT, n=3, best_of=3, max_new_tokens=6, temperature=1.0, seed=7, ignore_eos=True)
        first, again = await ask_all(engine, asked), await ask_all(engine, asked)
        drafted = request((5, 6, 7) * 10, max_new_tokens=12, ignore_eos=True)
        assert len((await ask(engine, drafted)).ids) == 12

    assert len({tuple(choice.ids) for choice in first}) == 3
    assert [choice.ids for choice in first] == [choice.ids for choice in again]


async def test_a_grammar_holds(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    schema = {"type": "object", "properties": {"size": {"enum": ["small", "large"]}}, "required": ["size"]}
    async with running(load(tmp_path)) as engine:
        asked = request(
            "size: ",
            max_new_tokens=40,
            temperature=1.0,
            grammar=Grammar("json_schema", json.dumps(schema), whitespace_pattern=""),
        )
        answer = await ask(engine, asked)
    assert answer.finish.reason is FinishReason.EOS
    assert json.loads(answer.text)["size"] in {"small", "large"}


async def test_a_request_whose_reader_is_cancelled_frees_its_blocks(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    async with running(load(tmp_path)) as engine:
        has_begun = asyncio.Event()

        async def read() -> None:
            async for _ in engine.generate(request(PROMPT, "endless", max_new_tokens=50, ignore_eos=True)):
                has_begun.set()

        reader = asyncio.create_task(read())
        await has_begun.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        answer = await ask(engine, request(PROMPT, "next", max_new_tokens=2, ignore_eos=True))
        assert len(answer.ids) == 2
    # `running` has checked that all blocks are free


async def test_each_request_of_a_batch_names_its_adapter(tmp_path: Path) -> None:
    logits = save_adapter("bloom", tmp_path, 1)
    (tmp_path / "adapter-1").rename(tmp_path / "tuned")
    engine = load(tmp_path / "model", enable_lora=True, adapter=(f"tuned={tmp_path / 'tuned'}",), max_loras=2)
    tokens = tuple(np.random.default_rng(5).integers(2, VOCAB_SIZE, 20).tolist())
    async with running(engine):
        plain = request(tokens, "plain", max_new_tokens=1, ignore_eos=True)
        tuned = replace(plain, request_id="tuned", adapter="tuned")
        answers = await asyncio.gather(ask(engine, plain), ask(engine, tuned))
        assert answers[1].ids == [int(logits[-1].argmax())]
        assert answers[0].ids != answers[1].ids
        await engine.unload_adapter("tuned")
        with pytest.raises(NotFound, match="tuned"):
            await ask(engine, tuned)


def test_the_info_says_what_runs(tmp_path: Path) -> None:
    write_network("bloom", tmp_path)
    info = load(tmp_path, dtype="auto").info
    assert (info.backend, info.family, info.dtype, info.kv_dtype) == ("transformers", "bloom", "fp32", "fp32")
    assert info.device == "cpu (one call a sequence)"
    assert info.num_parameters > 0
    assert not info.is_batch_invariant


def test_a_model_that_the_native_engine_lacks_is_served_by_transformers(tmp_path: Path) -> None:
    write_network("gpt neo", tmp_path)
    info = load(tmp_path, backend="auto", dtype="auto").info
    assert info.backend == "transformers"
    assert "native does not run GPTNeoForCausalLM" in info.backend_reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "embed"}, "serves no embeddings|only generates"),
        ({"rope": {"rope_type": "linear", "factor": 2.0}}, "rope is set, but the transformers backend"),
        ({"kv_dtype": "int8"}, "kv_dtype is int8; expected auto"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2, but the transformers backend runs on one device"),
        ({"batch_invariant": True}, "batch_invariant is on, but the transformers backend"),
        ({"dtype": "w8a8"}, "dtype is 'w8a8'; expected one of auto, bf16, fp16, fp32"),
        ({"max_model_len": 1000}, r"made for 128 positions\. Set it to 128 at most\.$"),
    ],
)
def test_settings_of_other_backends_are_refused(settings: dict[str, object], message: str, tmp_path: Path) -> None:
    write_network("llama", tmp_path)
    with pytest.raises((SettingsError, UnsupportedModel), match=message):
        load(tmp_path, **settings)
