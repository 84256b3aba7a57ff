"""The head of a checkpoint, by the names of its architectures."""

import pytest

from headrace.inference.models.fields import Fields
from headrace.inference.models.sentence_transformers import has_lm_head


@pytest.mark.parametrize(
    ("architectures", "generates"),
    [
        ([], True),
        (["LlamaForCausalLM"], True),
        (["GPT2LMHeadModel"], True),
        (["Gemma3ForConditionalGeneration"], True),
        (["Qwen3Model"], False),
        (["GPT2Model"], False),
        (["GPT2ForSequenceClassification"], False),
    ],
)
def test_architectures_say_whether_a_checkpoint_generates(architectures: list[str], generates: bool) -> None:
    assert has_lm_head(Fields({"architectures": architectures}, "config.json")) == generates
