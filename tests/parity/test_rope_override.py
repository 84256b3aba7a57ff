"""A rope setting gives the logits of `transformers` with the same parameters, also beyond the original context."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.inference.models.loading import load_model
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.runner.native_models import LIMITS, load, relative_error
from tests.inference.runner.steps import make_step
from tests.parity.checkpoints import LONG_TOKENS, REFERENCES, sample, write_checkpoint
from tests.parity.networks import ROPE_OVERRIDES

STEP = make_step((LONG_TOKENS, 0, range(7)), all_rows=True)
CONTEXT = replace(LIMITS, max_context_tokens=len(LONG_TOKENS))


@pytest.mark.parametrize("name", ROPE_OVERRIDES)
def test_a_rope_setting_has_the_logits_of_transformers_with_the_same_parameters(name, tmp_path):
    checkpoint, parameters = ROPE_OVERRIDES[name]
    write_checkpoint(checkpoint, tmp_path / "model")
    original = load_model(str(tmp_path / "model"))

    model = load_model(str(tmp_path / "model"), rope=parameters)

    assert original.spec.ropes != model.spec.ropes
    with np.load(REFERENCES / "ropes.npz") as references:
        expected = references[name]
    logits = ReferenceRunner(model.spec, model.weights, CONTEXT).logits(STEP)
    np.testing.assert_allclose(sample(logits), expected, rtol=1e-4, atol=1e-4)
    runner = load(model.spec, model.weights, tmp_path / "packed", dtype="bf16", kv_dtype="bf16", limits=CONTEXT)
    assert relative_error(sample(runner.logits(STEP)), expected) < 0.02
