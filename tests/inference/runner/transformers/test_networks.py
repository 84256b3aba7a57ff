"""Every architecture generates what transformers' own `generate` does: in batches, in chunks, after a cached prefix."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.runner.transformers.support import choose_tier, network_facts
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import ask, request, running
from tests.inference.runner.transformers.checkpoints import NAMES, tier_of, write_network
from tests.parity.networks import VOCAB_SIZE

NEW_TOKENS = 8
CONTEXT = 96


def load(folder: Path, **settings: object) -> AsyncEngine:
    values = {
        "backend": "transformers",
        "dtype": "fp32",
        "threads": 1,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": 24,
        "max_num_seqs": 4,
    }
    return load_engine(ServerSettings(model=str(folder), **values | settings))


def prompts() -> list[tuple[int, ...]]:
    """Prompts longer than a step, a block and a window, and one that begins as another does."""
    rng = np.random.default_rng(3)
    long, short = (tuple(rng.integers(2, VOCAB_SIZE, length).tolist()) for length in (70, 5))
    return [long, short, (*long[:40], *short)]


def generate(model: PreTrainedModel, prompt: tuple[int, ...]) -> list[int]:
    greedy = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
    model.generation_config = GenerationConfig(pad_token_id=0)
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), generation_config=greedy
        )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", NAMES)
async def test_a_batch_has_the_tokens_of_the_library(name: str, tmp_path: Path) -> None:
    model = write_network(name, tmp_path)
    assert choose_tier(network_facts(model, max_model_len=CONTEXT)) is tier_of(name)
    expected = [generate(model, prompt) for prompt in prompts()]

    async with running(load(tmp_path)) as engine:
        assert engine.info.device == f"cpu ({tier_of(name).value})"
        wanted = [
            request(prompt, f"r{index}", max_new_tokens=NEW_TOKENS, ignore_eos=True)
            for index, prompt in enumerate(prompts())
        ]
        together = await asyncio.gather(*(ask(engine, asked) for asked in wanted))
        again = await ask(engine, wanted[0])

    assert [answer.ids for answer in together] == expected
    assert again.ids == expected[0]
    assert again.finish.cached_tokens == 64
