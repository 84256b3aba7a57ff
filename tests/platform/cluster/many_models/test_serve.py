"""The settings of a server with many models, and those that its models get."""

from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.cluster.many_models.presets import ModelPreset
from headrace.platform.cluster.many_models.serve import SharedSettings, check_settings, hosted_preset, run_many_models
from headrace.serving.settings.loading import load_settings

MIB = 1 << 20


def shared(overrides: dict[str, object], env: dict[str, str]) -> SharedSettings:
    settings, _ = load_settings({"models": "m", **overrides}, env)
    return SharedSettings.of(settings, overrides, env)


def test_models_get_the_flags_and_variables_that_do_not_concern_the_server() -> None:
    env = {"HEADRACE_DTYPE": "w8a8", "HEADRACE_PORT": "1", "HEADRACE_API_KEY": "k", "HF_TOKEN": "t", "OTHER": "x"}
    env |= {"HEADRACE_SANDBOX": "require"}  # every worker gets it from this process
    overrides: dict[str, object] = {"threads": "2", "port": "5", "max_memory_bytes": "1GiB", "models_hub": "cache"}
    found = shared({**overrides, "enable_prefix_caching": False}, env)
    assert found.environment == {"HEADRACE_DTYPE": "w8a8", "HF_TOKEN": "t", "HF_HUB_OFFLINE": "1"}
    assert found.options == {
        "container": "false",
        "handler": "native",
        "log_format": "json",
        "threads": "2",
        "enable_prefix_caching": "False",
    }
    preset = ModelPreset(name="a", model="smollm2", settings={"dtype": "bf16"}, ttl_s=3.0)
    hosted = hosted_preset(preset, found, limit_bytes=4096 * MIB, ttl_s=9.0)
    assert hosted.spec.environment == {"HF_TOKEN": "t", "HF_HUB_OFFLINE": "1"}, "its own setting comes first"
    named = {"model": "smollm2", "served_model_name": "a", "dtype": "bf16"}
    assert hosted.spec.options == {**found.options, **named}
    assert (hosted.ttl_s, hosted.spec.memory_bytes) == (3.0, (1024 + 256) * MIB)


def test_a_setting_that_a_models_server_would_refuse_stops_the_start() -> None:
    preset = ModelPreset(name="a", model="smollm2", settings={"max_model_len": "long"})
    with pytest.raises(SettingsError, match="The model 'a': --max-model-len is 'long'; expected a whole number"):
        check_settings(preset, shared({}, {}))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"models": "/nowhere"}, "models is '/nowhere', which does not exist"),
        ({"model": "b"}, "model is 'b'; expected the name of one of the models"),
        ({"served_model_name": "b"}, "served_model_name is for one model"),
    ],
)
def test_what_does_not_fit_many_models_is_refused(tmp_path: Path, overrides: dict[str, object], message: str) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(SettingsError) as refused:
        run_many_models({"models": str(tmp_path), **overrides}, {})
    assert message in refused.value.message
