import pytest

from headrace.core.sampling_defaults import SamplingDefaults
from headrace.models.generation_config import gguf_card_name, recommended_by_card


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
