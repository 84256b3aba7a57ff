"""Every family computes what `transformers` computes from the same folder: the reference and the native kernels."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from headrace.inference.models.loading import load_model
from headrace.inference.models.model import Model
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.step import Float32
from tests.inference.runner.native_models import FORMATS, ISAS, GuidedReference, load, relative_error
from tests.inference.runner.states import new_sequences
from tests.inference.runner.steps import make_step
from tests.parity.checkpoints import CONTEXT, TOKENS, sample, stored_network, write_checkpoint
from tests.parity.networks import NETWORKS

BLOCKS = [7, 3, 11, 2]
TOLERANCES = {"bf16": 0.02, "w8a16": 0.02, "w8a8": 0.05, "w4a16": 0.05, "w4a8": 0.05}
"""Relative root mean square error of the logits; the weights lose nothing in any format."""


@dataclass(frozen=True)
class Checkpoint:
    model: Model
    expected: Float32
    """A sample of the logits of `transformers` in float32."""


@pytest.fixture(scope="module")
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    write_checkpoint(request.param, folder)
    return Checkpoint(load_model(str(folder)), stored_network(request.param).logits)


def every_row(spec):
    states = new_sequences(len(TOKENS)) if spec.has_state else None
    return make_step((TOKENS, 0, BLOCKS), all_rows=True, states=states)


def limits_of(spec):
    return replace(CONTEXT, num_state_slots=1) if spec.has_state else CONTEXT


@pytest.mark.parametrize("checkpoint", NETWORKS, indirect=True, scope="module")
def test_the_reference_has_the_logits_of_transformers(checkpoint):
    model = checkpoint.model
    logits = ReferenceRunner(model.spec, model.weights, limits_of(model.spec)).logits(every_row(model.spec))
    np.testing.assert_allclose(sample(logits), checkpoint.expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("checkpoint", "dtype", "kv_dtype"),
    [
        (name, *formats)
        for number, name in enumerate(NETWORKS)
        for formats in (("bf16", "bf16"), ("w8a8" if number % 2 else "w4a8", "int8"))
    ],
    indirect=["checkpoint"],
    scope="module",
)
def test_native_kernels_stay_close_to_transformers(checkpoint, dtype, kv_dtype, tmp_path):
    """Each network has 8 or 4 bits beside bf16; `test_native` has every format for every kind of layer."""
    runner = load(
        checkpoint.model.spec,
        checkpoint.model.weights,
        tmp_path,
        dtype=dtype,
        kv_dtype=kv_dtype,
        limits=limits_of(checkpoint.model.spec),
    )
    check_error(checkpoint, runner, dtype)


def check_error(checkpoint, runner, dtype):
    """Compare with the logits of transformers, or with experts those of the reference that takes the same experts."""
    expected = checkpoint.expected
    if runner.spec.moe is not None:
        guided = GuidedReference(runner, checkpoint.model.weights, TOLERANCES[dtype], limits=limits_of(runner.spec))
        expected = sample(guided.logits(every_row(runner.spec)))
    assert relative_error(sample(runner.logits(every_row(runner.spec))), expected) < TOLERANCES[dtype]


@pytest.mark.parametrize("checkpoint", ["qwen 3", "qwen 2 moe", "lfm 2"], indirect=True, scope="module")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_every_cpu_variant_and_format_stays_close_to_transformers(checkpoint, dtype, kv_dtype, isa, tmp_path):
    spec, formats = checkpoint.model.spec, {"dtype": dtype, "kv_dtype": kv_dtype, "isa": isa}
    runner = load(spec, checkpoint.model.weights, tmp_path, **formats, limits=limits_of(spec))
    check_error(checkpoint, runner, dtype)
