"""A rope setting gives the logits of `transformers` with the same parameters, also beyond the original context."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from headrace.models.loading import load_model
from headrace.runner.reference import ReferenceRunner
from tests.parity.checkpoints import GEMMA3_ROPE, LLAMA3_ROPE, VOCAB_SIZE, YARN, write_checkpoint
from tests.runner.native_models import LIMITS, load, relative_error
from tests.runner.steps import make_step

NUM_TOKENS = 200
"""More than the 128 positions that the checkpoints are made for."""
TOKENS = np.random.default_rng(6).integers(0, VOCAB_SIZE, NUM_TOKENS).tolist()
STEP = make_step((TOKENS, 0, range(7)), all_rows=True)
CONTEXT = replace(LIMITS, max_context_tokens=NUM_TOKENS)
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
OVERRIDES = {
    "llama, linear": ("llama", LINEAR),
    "llama, yarn": ("llama", YARN | {"factor": 8.0}),
    "llama, dynamic": ("llama", {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}),
    "llama 3 rope in place of none": ("llama", LLAMA3_ROPE),
    "yarn in place of llama 3 rope": ("llama 3 rope", YARN),
    "gemma 3, the global rope": ("gemma 3", GEMMA3_ROPE | {"full_attention": LINEAR}),
}


def logits_with_rope(network: PreTrainedModel, parameters: dict[str, object]) -> np.ndarray:
    """Return the logits of a network that was made with other rope parameters."""
    config = network.config
    config.rope_parameters = parameters
    changed = type(network)(config).eval()
    changed.load_state_dict(network.state_dict())
    with torch.inference_mode():
        return changed(torch.tensor([TOKENS])).logits[0].float().numpy()


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_rope_setting_has_the_logits_of_transformers_with_the_same_parameters(name, tmp_path):
    checkpoint, parameters = OVERRIDES[name]
    network = write_checkpoint(checkpoint, tmp_path / "model")
    original = load_model(str(tmp_path / "model"))

    model = load_model(str(tmp_path / "model"), rope=parameters)

    assert original.spec.ropes != model.spec.ropes
    expected = logits_with_rope(network, parameters)
    logits = ReferenceRunner(model.spec, model.weights, CONTEXT).logits(STEP)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    runner = load(model.spec, model.weights, tmp_path / "packed", dtype="bf16", kv_dtype="bf16", limits=CONTEXT)
    assert relative_error(runner.logits(STEP), expected) < 0.02
