"""SmoothQuant at load: done once, equal to the offline command, with clear errors."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from headrace.core.errors import InsufficientMemory, SettingsError, UnsupportedModel
from headrace.inference.engine.loading.smoothquant import smoothed_weights
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.loading import load_model
from headrace.inference.models.places import gguf_name
from headrace.inference.models.weights import Encoding, WeightSource
from headrace.inference.runner.quantize import check_can_quantize
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from headrace.tools.cli.main import cli
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    write_gguf,
)
from tests.parity.checkpoints import write_checkpoint

GIB = 1 << 30


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_checkpoint("llama", folder)
    return folder


class Told:
    """Counts the layers that progress was told of."""

    def __init__(self) -> None:
        self.layers = 0

    def __call__(self, task: str, done: int, total: int, unit: str = "bytes") -> None:
        self.layers += task == "Quantizing" and done > 0


def smoothed(
    path: Path, cache: Path, told: Told, *, alpha: float | None = 0.5, available_bytes: int = GIB
) -> WeightSource:
    return smoothed_weights(
        load_model(str(path)),
        alpha=alpha,
        cache_dir=cache,
        available_bytes=available_bytes,
        progress=told,
        max_samples=1,
    )


def folders(cache: Path) -> list[Path]:
    return sorted((cache / "packed").glob("*.smoothquant"))


def test_smoothed_weights_equal_those_of_the_offline_command(llama: Path, tmp_path: Path) -> None:
    before, told = load_model(str(llama)), Told()
    after = smoothed(llama, tmp_path / "cache", told)
    result = CliRunner().invoke(
        cli, ["quantize", str(llama), str(tmp_path / "offline"), "--alpha", "0.5", "--samples", "1"]
    )
    assert result.exit_code == 0, result.stderr
    offline = load_model(str(tmp_path / "offline"))
    assert offline.spec == before.spec
    assert after.dominant_encoding is Encoding.I8
    assert told.layers == before.spec.num_layers
    for name in before.weights.names():
        assert np.array_equal(after.load(name).data, offline.weights.load(name).data), name


def test_an_engine_with_dtype_smoothquant_runs_smoothed_weights_as_w8a8(llama: Path, tmp_path: Path) -> None:
    settings = ServerSettings(
        model=str(llama),
        dtype="smoothquant",
        smoothquant_alpha=0.5,
        cache_dir=tmp_path,
        max_model_len=64,
        threads=1,
    )
    engine = load_engine(settings)
    assert (engine.info.name, engine.info.dtype) == (llama.name, "w8a8")
    assert len(folders(tmp_path)) == 1
    (first,) = (tmp_path / "packed").glob("*.weights")
    load_engine(replace(settings, dtype="w8a8"))
    plain = set((tmp_path / "packed").glob("*.weights")) - {first}
    assert len(plain) == 1, "other weights than those of plain w8a8"


def test_adapters_are_refused_where_the_inputs_are_smoothed(llama: Path, tmp_path: Path) -> None:
    for alpha in ("0.5", "0"):
        made = CliRunner().invoke(
            cli, ["quantize", str(llama), str(tmp_path / alpha), "--alpha", alpha, "--samples", "1"]
        )
        assert made.exit_code == 0, made.stderr
    settings = ServerSettings(model=str(llama), enable_lora=True, cache_dir=tmp_path, max_model_len=64, threads=1)
    with pytest.raises(SettingsError, match=r"dtype is smoothquant and adapters are on.*Choose another dtype"):
        load_engine(replace(settings, dtype="smoothquant"))
    with pytest.raises(SettingsError, match=r"0\.5 was smoothed by `headrace quantize`.*--alpha 0"):
        load_engine(replace(settings, model=str(tmp_path / "0.5")))
    load_engine(replace(settings, model=str(tmp_path / "0")))


def test_a_second_start_uses_the_cached_weights_unless_options_differ(llama: Path, tmp_path: Path) -> None:
    first, second, other = Told(), Told(), Told()
    made = smoothed(llama, tmp_path, first).fingerprint
    assert smoothed(llama, tmp_path, second).fingerprint == made
    assert (first.layers > 0, second.layers) == (True, 0)
    smoothed(llama, tmp_path, other, alpha=0.7)
    assert other.layers > 0
    assert len(folders(tmp_path)) == 2


def test_other_weights_of_the_same_name_are_quantized_again(llama: Path, tmp_path: Path) -> None:
    changed = tmp_path / llama.name
    write_checkpoint("mistral", changed)
    smoothed(llama, tmp_path / "cache", Told())
    smoothed(changed, tmp_path / "cache", Told())
    assert len(folders(tmp_path / "cache")) == 2


def test_workers_that_start_together_smooth_the_weights_once(llama: Path, tmp_path: Path) -> None:
    told = [Told() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda progress: smoothed(llama, tmp_path, progress), told))
    assert len({weights.fingerprint for weights in made}) == 1
    assert sum(progress.layers > 0 for progress in told) == 1


def test_files_of_a_killed_start_are_removed(llama: Path, tmp_path: Path) -> None:
    smoothed(llama, tmp_path, Told())
    (folder,) = folders(tmp_path)
    folder.rename(folder.with_name(f".{folder.name}.left"))
    again = Told()
    smoothed(llama, tmp_path, again)
    assert again.layers > 0
    assert [path.name for path in (tmp_path / "packed").iterdir() if path.is_dir()] == [folder.name]


def test_an_int8_folder_is_served_unchanged(llama: Path, tmp_path: Path) -> None:
    smoothed(llama, tmp_path, Told())
    (folder,) = folders(tmp_path)
    told = Told()
    again = smoothed(folder, tmp_path / "other", told)
    assert again.fingerprint == load_model(str(folder)).weights.fingerprint
    assert told.layers == 0
    assert not (tmp_path / "other").exists()


def test_an_unwritable_cache_is_named_in_the_error(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("a file")
    with pytest.raises(SettingsError, match=r"cannot be written to .* set cache_dir; dtype w8a8 does without"):
        smoothed(llama, tmp_path, Told())


def test_too_little_memory_is_refused_with_the_numbers_and_leaves_no_files(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(InsufficientMemory, match="largest layer, the embedding and the activations"):
        smoothed(llama, tmp_path, Told(), available_bytes=1 << 20)
    assert folders(tmp_path) == []


@pytest.mark.parametrize(
    ("network", "difference"),
    [
        ("olmo", "has layers with norms without weights"),
        ("olmo 2", "has layers without attn_norm, mlp_norm"),
        ("starcoder 2", "has layers with attn_norm_bias"),
        ("command r", "has layers without mlp_norm"),
        ("llama, biases everywhere", "has layers with down_bias"),
    ],
)
def test_networks_that_scales_cannot_pass_through_are_refused_by_name(
    network: str, difference: str, tmp_path: Path
) -> None:
    write_checkpoint(network, tmp_path / "model")
    with pytest.raises(UnsupportedModel, match=difference):
        check_can_quantize(load_model(str(tmp_path / "model")))


def test_a_gguf_file_is_smoothed_like_offline(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    _, spec = from_config(Fields(TINY_LLAMA, "config.json"))
    tensors = {gguf_name(name): values for name, values in random_weights(spec).items()}
    write_gguf(path, gguf_metadata(spec) | gguf_vocabulary(byte_level_tokenizer()), tensors)
    told = Told()
    assert smoothed(path, tmp_path, told).dominant_encoding is Encoding.I8
    assert told.layers > 0
