"""Every family computes what `transformers` computes from the same folder: the reference and the native kernels."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from headrace.models.loading import load_model
from headrace.models.model import Model
from headrace.runner.reference import ReferenceRunner
from headrace.runner.step import Float32
from tests.parity.checkpoints import NETWORKS, VOCAB_SIZE, write_checkpoint
from tests.runner.native_models import FORMATS, ISAS, LIMITS, GuidedReference, load, relative_error
from tests.runner.steps import make_step

NUM_TOKENS = 100
TOKENS = np.random.default_rng(5).integers(0, VOCAB_SIZE, NUM_TOKENS).tolist()
BLOCKS = [7, 3, 11, 2]
CONTEXT = replace(LIMITS, max_context_tokens=NUM_TOKENS)
"""transformers scales dynamic ropes for the length of the prompt, Headrace for the context."""
TOLERANCES = {"bf16": 0.02, "w8a16": 0.02, "w8a8": 0.05, "w4a16": 0.05, "w4a8": 0.05}
"""Relative root mean square error of the logits; the weights lose nothing in any format."""


@dataclass(frozen=True)
class Checkpoint:
    model: Model
    expected: Float32
    """(NUM_TOKENS, V) from `transformers` in float32."""


@pytest.fixture(scope="module")
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    network = write_checkpoint(request.param, folder)
    with torch.inference_mode():
        expected = network(torch.tensor([TOKENS])).logits[0].float().numpy()
    return Checkpoint(load_model(str(folder)), expected)


def every_row():
    return make_step((TOKENS, 0, BLOCKS), all_rows=True)


@pytest.mark.parametrize("checkpoint", NETWORKS, indirect=True, scope="module")
def test_the_reference_has_the_logits_of_transformers(checkpoint):
    model = checkpoint.model
    logits = ReferenceRunner(model.spec, model.weights, CONTEXT).logits(every_row())
    np.testing.assert_allclose(logits, checkpoint.expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("checkpoint", NETWORKS, indirect=True, scope="module")
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("bf16", "bf16"), ("w8a8", "int8"), ("w4a8", "int8")])
def test_native_kernels_stay_close_to_transformers(checkpoint, dtype, kv_dtype, tmp_path):
    runner = load(
        checkpoint.model.spec, checkpoint.model.weights, tmp_path, dtype=dtype, kv_dtype=kv_dtype, limits=CONTEXT
    )
    assert relative_error(runner.logits(every_row()), expected_of(checkpoint, runner, dtype)) < TOLERANCES[dtype]


def expected_of(checkpoint, runner, dtype):
    """Return the logits of transformers, or with experts those of the reference that takes the same experts."""
    if runner.spec.moe is None:
        return checkpoint.expected
    return GuidedReference(runner, checkpoint.model.weights, TOLERANCES[dtype], limits=CONTEXT).logits(every_row())


@pytest.mark.parametrize("checkpoint", ["qwen 3", "qwen 2 moe"], indirect=True, scope="module")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_every_cpu_variant_and_format_stays_close_to_transformers(checkpoint, dtype, kv_dtype, isa, tmp_path):
    runner = load(checkpoint.model.spec, checkpoint.model.weights, tmp_path, dtype=dtype, kv_dtype=kv_dtype, isa=isa)
    assert relative_error(runner.logits(every_row()), expected_of(checkpoint, runner, dtype)) < TOLERANCES[dtype]
