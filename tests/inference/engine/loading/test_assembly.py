"""An engine from the files of a model, with a rope setting."""

from pathlib import Path

import pytest

from headrace.core.errors import PromptTooLong, SettingsError
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import ask, request, running
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
