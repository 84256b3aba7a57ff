"""Defaults that a checkpoint names: unusable ones do not count and are named in the log, and refuse no model."""

import json
import math

import numpy as np
import pytest
import structlog

from headrace.core.errors import BrokenModel
from headrace.core.sampling_defaults import SamplingDefaults
from headrace.inference.models.fields import Fields
from headrace.inference.models.generation_config import gguf_card_name, read_sampling, recommended_by_card, token_ids
from headrace.inference.models.hf_checkpoint import read_templates

USABLE = [
    ("temperature", 0, 0.0),
    ("temperature", 0.7, 0.7),
    ("top_p", 1, 1.0),
    ("top_p", 0.9, 0.9),
    ("top_k", 0, 0),
    ("top_k", -1, 0),
    ("top_k", 50.0, 50),
    ("min_p", 0, 0.0),
    ("repetition_penalty", 1.1, 1.1),
    ("max_new_tokens", 32, 32),
    *((name, None, None) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")),
]
UNUSABLE = [
    *(("temperature", value) for value in (-1, "0.7", True, math.nan, math.inf, [0.7], {})),
    *(("top_p", value) for value in (0, 0.0, -1, 1.5, "1.0")),
    *(("top_k", value) for value in (-2, 1.5, "50", False)),
    *(("min_p", value) for value in (-0.1, 2, "")),
    *(("repetition_penalty", value) for value in (0, 0.0, -1, "1")),
    *(("max_new_tokens", value) for value in (0, -1, 0.5, "20", 10**20)),
]


@pytest.fixture
def told():
    """The messages of the log."""
    with structlog.testing.capture_logs() as logs:
        yield logs


@pytest.mark.parametrize(("name", "value", "expected"), USABLE)
def test_values_that_mean_something_count(name, value, expected, told):
    sampling = read_sampling(Fields({name: value}, "generation_config.json"), "its source")
    assert getattr(sampling, name) == expected
    assert type(getattr(sampling, name)) is type(expected)
    assert told == []


@pytest.mark.parametrize(("name", "value"), UNUSABLE)
def test_values_that_are_off_or_unusable_do_not_count_and_are_named(name, value, told):
    fields = Fields({name: value, "do_sample": False, "typical_p": 0, "max_length": -1}, "generation_config.json")
    assert read_sampling(fields, "its source") == SamplingDefaults(source="its source")
    (entry,) = told
    assert entry["log_level"] == "warning"
    assert entry["message"].startswith(f"generation_config.json: {name} is {value!r} and does not count; expected a ")


@pytest.mark.parametrize(
    ("value", "expected", "is_told"),
    [
        (None, set(), False),
        (7, {7}, False),
        ([7, 2**31 - 1], {7, 2**31 - 1}, False),
        (2.0, {2}, False),
        ([], set(), False),
        (-1, set(), True),
        ([2, -1], {2}, True),
        ([2, None, "3", 4.5, True], {2}, True),
        *((value, set(), True) for value in (2**31, 10**30, True, "1", {"id": 1}, np.ones(2, np.int32))),
    ],
)
@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id"])
def test_ids_that_no_token_can_have_do_not_count_and_are_named(key, value, expected, is_told, told):
    assert token_ids(Fields({key: value}, "config.json"), key) == expected
    assert [entry["message"].startswith(f"config.json: {key} is ") for entry in told] == [True] * is_told


def test_a_template_is_read_through_links_of_the_hubs_cache_only(tmp_path):
    (tmp_path / "secret").write_text("secret")
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    blobs = tmp_path / "models--org--name" / "blobs"
    for folder in (snapshot / "additional_chat_templates", blobs):
        folder.mkdir(parents=True)
    (blobs / "1").write_text("{{ messages }}")
    (blobs / "2").write_text(json.dumps({"chat_template": "{{ 2 }}"}))
    (snapshot / "chat_template.jinja").symlink_to("../../blobs/1")
    (snapshot / "additional_chat_templates" / "rag.jinja").symlink_to("../../../blobs/1")
    settings = Fields({}, "tokenizer_config.json")
    assert read_templates(snapshot, settings) == dict.fromkeys(("default", "rag"), "{{ messages }}")
    for name in ("chat_template.jinja", "additional_chat_templates/rag.jinja", "chat_template.json"):
        path = snapshot / name
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / "secret")
        with pytest.raises(BrokenModel, match="expected a file of the model"):
            read_templates(snapshot, settings)
        path.unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "chat_template.jinja").symlink_to(blobs / "1")
    with pytest.raises(BrokenModel, match="pass --chat-template"):
        read_templates(tmp_path / "other", settings)


@pytest.mark.parametrize(
    ("name", "temperature", "top_p", "top_k", "penalty"),
    [
        ("HuggingFaceTB/SmolLM2-360M-Instruct", 0.2, 0.9, None, 1.1),
        ("smollm2-1.7B-Instruct", 0.2, 0.9, None, None),
        ("gemma-3-270M", 1.0, 0.95, 64, None),
        ("gemma-3-12B-it", 1.0, 0.95, 64, None),
        ("Qwen3-0.6B", 0.6, 0.95, 20, None),
        ("Qwen3-30B-A3B", 0.6, 0.95, 20, None),
        ("Qwen3-4B-Instruct-2507", 0.7, 0.8, 20, None),
        ("Meta-Llama-3.1-8B-Instruct", 0.6, 0.9, None, None),
    ],
)
def test_a_model_with_a_card_has_its_sampling(name, temperature, top_p, top_k, penalty):
    found = recommended_by_card(name)
    assert (found.temperature, found.top_p, found.top_k) == (temperature, top_p, top_k)
    assert found.repetition_penalty == penalty
    assert found.source


@pytest.mark.parametrize(
    "name", ["", "smollm2", "smollm2-135M", "me/SmolLM2-135M-Instruct", "Qwen3-0.6B-Base", "Llama-3.1-8B", "gemma-2-2b"]
)
def test_base_models_and_fine_tunes_of_others_have_none(name):
    assert recommended_by_card(name) == SamplingDefaults()


def test_a_gguf_file_is_known_by_its_metadata():
    metadata = {"general.basename": "smollm2", "general.size_label": "135M", "general.finetune": "Instruct"}
    assert gguf_card_name(metadata) == "smollm2-135M-Instruct"
    assert gguf_card_name({"general.basename": "gemma-3", "general.size_label": "270M"}) == "gemma-3-270M"
    assert gguf_card_name({"general.basename": 7}) == ""
