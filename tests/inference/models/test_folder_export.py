"""Folders are created completely or not at all, and describe the network that they contain."""

import dataclasses
import json

import pytest

from headrace.core.errors import BrokenModel, SettingsError, UnsupportedModel
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.folder_export import config_from_spec, export_files, new_folder
from headrace.inference.models.loading import load_model
from headrace.inference.models.places import gguf_name
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    write_gguf,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA = {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 7, "head_dim": 16}
CONFIGS = {
    "llama": {},
    "llama, biases, tied": {"attention_bias": True, "tie_word_embeddings": True},
    "llama 3": {"rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "mistral": {"model_type": "mistral", "sliding_window": 64},
    "mistral without a window": {"model_type": "mistral", "sliding_window": None},
    "qwen 2": {"model_type": "qwen2"},
    "qwen 2 with a window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 64,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "qwen 3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "gemma 3": GEMMA,
    "gemma 3, linear rope": GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 32},
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_the_config_of_a_spec_gives_that_spec(changes):
    _, spec = from_config(Fields(TINY_LLAMA | changes, "config.json"))
    _, again = from_config(Fields(config_from_spec(spec), "config.json"))
    assert again == spec


def test_a_network_that_no_config_can_describe_is_refused():
    _, spec = from_config(Fields(TINY_LLAMA, "config.json"))
    odd = dataclasses.replace(spec, qk_norm="head")
    with pytest.raises(UnsupportedModel, match="cannot describe this network"):
        config_from_spec(odd)


@pytest.mark.parametrize(
    ("name", "is_plain"), [("tool_use", True), ("../../../evil", False), ("in/evil", False), ("x\0", False)]
)
def test_a_chat_template_of_a_gguf_file_is_written_into_the_folder_only(name, is_plain, tmp_path):
    _, spec = from_config(Fields(TINY_LLAMA, ""))
    tensors = {gguf_name(weight): values for weight, values in random_weights(spec).items()}
    metadata = gguf_metadata(spec) | gguf_vocabulary(byte_level_tokenizer())
    path = write_gguf(tmp_path / "m.gguf", metadata | {f"tokenizer.chat_template.{name}": "{{ 1 }}"}, tensors)
    folder = tmp_path / "a" / "b" / "out"
    folder.mkdir(parents=True)

    if is_plain:
        export_files(load_model(str(path)), folder, {})
        assert (folder / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ 1 }}"
    else:
        with pytest.raises(BrokenModel, match="has a chat template named"):
            export_files(load_model(str(path)), folder, {})
        assert not [*tmp_path.rglob("*.jinja")]


def test_the_sampling_that_a_model_is_known_for_stays_with_its_weights(tmp_path):
    _, spec = from_config(Fields(TINY_LLAMA, ""))
    tensors = {gguf_name(weight): values for weight, values in random_weights(spec).items()}
    named = {"basename": "SmolLM2", "size_label": "135M", "finetune": "Instruct"}
    metadata = {f"general.{key}": value for key, value in named.items()}
    path = write_gguf(
        tmp_path / "m.gguf", gguf_metadata(spec) | metadata | gguf_vocabulary(byte_level_tokenizer()), tensors
    )
    model = load_model(str(path))
    for folder in (tmp_path / "from-file", tmp_path / "from-folder"):
        folder.mkdir()
        export_files(model, folder, {})
        values = json.loads((folder / "generation_config.json").read_text())
        assert values["temperature"] == model.defaults.sampling.temperature == 0.2
        assert values["do_sample"]
        model = dataclasses.replace(model, path=folder)
        (folder / "generation_config.json").unlink()


def test_a_folder_appears_with_all_its_files(tmp_path):
    with new_folder(tmp_path / "deep" / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert (tmp_path / "deep" / "out" / "file").read_text() == "x"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_aborted_folder_leaves_nothing_behind(tmp_path, error):
    with pytest.raises(error), new_folder(tmp_path / "out") as folder:
        _break_off(folder, error)
    assert not list(tmp_path.iterdir())


def _break_off(folder, error):
    (folder / "half").write_text("x")
    raise error


def test_an_empty_folder_is_filled_and_any_other_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as folder:
        (folder / "file").touch()
    assert (tmp_path / "empty" / "file").exists()
    with pytest.raises(SettingsError, match="already exists"), new_folder(tmp_path / "empty"):
        pass
