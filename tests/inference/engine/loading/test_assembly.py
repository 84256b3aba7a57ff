"""An engine from the files of a model, with a rope setting or state layers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import PromptTooLong, SettingsError
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import ask, ask_all, request, running
from tests.parity.checkpoints import write_checkpoint


async def test_a_rope_setting_lets_requests_exceed_the_original_context(tmp_path: Path) -> None:
    write_checkpoint("llama", tmp_path / "model")
    given = {"model": str(tmp_path / "model"), "cache_dir": str(tmp_path), "threads": "1"}
    settings, _ = load_settings(given, {}, {"option.rope_scaling": '{"type": "dynamic", "factor": 4.0}'})
    long = request("word " * 60, max_new_tokens=5, ignore_eos=True)

    async with running(load_engine(settings)) as engine:
        assert engine.info.max_model_len == 4 * 128
        assert engine.info.rope == "dynamic, theta 10000, factor 4, for 512 tokens, trained with 128 tokens"
        answer = await ask(engine, long)
        assert len(answer.ids) == 5
        assert answer.finish.prompt_tokens > 128
    async with running(load_engine(ServerSettings(**(given | {"cache_dir": tmp_path, "threads": 1})))) as engine:
        with pytest.raises(PromptTooLong, match="at most 127"):
            await ask(engine, long)


def test_a_context_beyond_the_rope_is_refused_with_the_setting_that_stretches_it(tmp_path: Path) -> None:
    write_checkpoint("llama", tmp_path)
    with pytest.raises(SettingsError, match=r"made for 128 positions\. Set it to 128 at most, or .* setting rope"):
        load_engine(ServerSettings(model=str(tmp_path), max_model_len=200))


@pytest.mark.parametrize("network", ["lfm 2", "qwen 3.5", "granite 4 h"])
async def test_ten_turns_with_a_model_of_state_layers_compute_few_tokens_again(network: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(network, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    settings = ServerSettings(model=str(folder), cache_dir=tmp_path, threads=1, dtype="w8a8", max_num_seqs=4)
    turns, texts = [], []
    async with running(load_engine(settings)) as engine:
        prompt: tuple[int, ...] = tuple(range(3, 70))
        for turn in range(10):
            sent = request(prompt, max_new_tokens=60, ignore_eos=True)
            answer = await ask(engine, sent)
            turns.append(len(prompt) - answer.finish.cached_tokens)
            texts.append((sent, answer.tokens))
            prompt += (*answer.ids, *range(turn + 3, turn + 23))
        choices = await ask_all(engine, request(prompt, n=3, temperature=1.0, seed=3, max_new_tokens=30))
        stats = engine.stats()
        assert stats.num_state_slots > stats.num_checkpoints > 0 == stats.num_live_states
        assert (stats.checkpoint_hits_total, stats.recomputed_tokens_total) == (12, 0)
        assert len({choice.text for choice in choices}) == 3
    # The 20 new tokens of a turn, the last drawn one, and less than a block before them.
    assert max(turns[1:]) < 20 + 1 + 32
    async with running(load_engine(replace(settings, enable_prefix_caching=False))) as engine:
        for sent, tokens in texts:
            assert (await ask(engine, sent)).tokens == tokens
