"""Encoder-decoder networks answer as transformers' `generate` does, several at a time, and can be cancelled."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import GenerationConfig, PreTrainedModel

from headrace.core.errors import InvalidRequest, SettingsError
from headrace.core.generation import Grammar
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import ask, ask_all, request, running
from tests.inference.models.model_files import byte_level_tokenizer
from tests.parity.networks import VOCAB_SIZE

SIZES = {"vocab_size": VOCAB_SIZE, "d_model": 32, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
BART = SIZES | {
    "bos_token_id": 0,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "forced_eos_token_id": None,
}
T5 = SIZES | {"d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
NETWORKS = {
    "t5": ("T5ForConditionalGeneration", T5),
    "flan t5": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", BART),
    "bart, forced first token": ("BartForConditionalGeneration", BART | {"forced_bos_token_id": 7}),
    "pegasus": ("PegasusForConditionalGeneration", BART),
    "m2m": ("M2M100ForConditionalGeneration", BART),
}


def write(name: str, folder: Path) -> PreTrainedModel:
    architecture, values = NETWORKS[name]
    model_class = getattr(transformers, architecture)
    torch.manual_seed(1)
    values = dict(values)
    forced = values.pop("forced_bos_token_id", None)
    values.pop("forced_eos_token_id", None)
    model = model_class(model_class.config_class(**values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 1.5 * parameter.shape[-1] ** -0.5)
    model.generation_config = GenerationConfig(decoder_start_token_id=0, pad_token_id=0, forced_bos_token_id=forced)
    model.save_pretrained(folder)
    byte_level_tokenizer(VOCAB_SIZE).save(str(folder / "tokenizer.json"))
    return model


def load(folder: Path, **settings: object) -> AsyncEngine:
    values = {"backend": "transformers", "dtype": "fp32", "threads": 1, "max_model_len": 96, "max_num_seqs": 4}
    return load_engine(ServerSettings(model=str(folder), **values | settings))


def prompts() -> list[tuple[int, ...]]:
    rng = np.random.default_rng(3)
    return [tuple(rng.integers(2, VOCAB_SIZE, length).tolist()) for length in (40, 5, 33, 12, 1, 7)]


def generate(model: PreTrainedModel, prompt: tuple[int, ...]) -> list[int]:
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=9,
            do_sample=False,
            eos_token_id=VOCAB_SIZE + 1,
        )
    return output[0, 1:].tolist()


@pytest.mark.parametrize("name", NETWORKS)
async def test_answers_of_several_requests_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    model = write(name, tmp_path)
    expected = [generate(model, prompt) for prompt in prompts()]
    async with running(load(tmp_path)) as engine:
        assert engine.info.device == "cpu (encoder-decoder)"
        assert engine.info.is_encoder_decoder
        answers = await asyncio.gather(
            *(ask(engine, request(prompt, max_new_tokens=9, ignore_eos=True)) for prompt in prompts())
        )
    assert [answer.ids for answer in answers] == expected


async def test_choices_logprobs_and_cancellation(tmp_path: Path) -> None:
    model = write("t5", tmp_path)
    prompt = prompts()[0]
    async with running(load(tmp_path)) as engine:
        sampled = request(
            prompt, n=3, best_of=3, temperature=1.0, seed=4, max_new_tokens=6, ignore_eos=True, logprobs=2
        )
        choices = await ask_all(engine, sampled)
        reader = asyncio.create_task(ask(engine, request(prompt, "endless", max_new_tokens=50, ignore_eos=True)))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        with pytest.raises(InvalidRequest, match="Logprobs of the prompt"):
            await ask(engine, request(prompt, prompt_logprobs=0, max_new_tokens=2))
        assert len((await ask(engine, request(prompt, max_new_tokens=2, ignore_eos=True))).ids) == 2

    assert len({tuple(choice.ids) for choice in choices}) == 3
    answer = choices[0]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[0, *answer.ids]])).logits
    expected = torch.log_softmax(logits[0].float(), -1)
    for index, token in enumerate(answer.tokens):
        assert token.logprob == pytest.approx(expected[index, token.id].item(), abs=1e-3)


async def test_a_grammar_holds(tmp_path: Path) -> None:
    write("t5", tmp_path)
    async with running(load(tmp_path)) as engine:
        answer = await ask(engine, request("abc", max_new_tokens=20, grammar=Grammar("regex", "(yes|no)")))
    assert answer.text in {"yes", "no"}


def test_adapters_are_refused(tmp_path: Path) -> None:
    write("t5", tmp_path)
    with pytest.raises(SettingsError, match="encoder-decoder networks have no adapters"):
        load(tmp_path, enable_lora=True)


def test_auto_serves_an_encoder_decoder(tmp_path: Path) -> None:
    write("bart", tmp_path)
    info = load(tmp_path, backend="auto", dtype="auto").info
    assert (info.backend, info.family, info.max_prompt_tokens) == ("transformers", "bart", 95)
