"""
The stored references are what `transformers` writes and computes today.

Proves what no other test does: that `references`, which the other files of this folder compare with, are true.
"""

import numpy as np
import pytest

from tests.parity.checkpoints import REFERENCES, network_path, stored_network
from tests.parity.networks import NETWORKS, ORACLES, ROPE_OVERRIDES


@pytest.mark.parametrize("name", NETWORKS | ORACLES)
def test_a_stored_network_is_that_of_transformers(name, tmp_path):
    from tests.parity.references import describe_network

    stored, made = stored_network(name), describe_network(name, tmp_path)
    assert made.files == stored.files
    assert made.tensors == stored.tensors
    np.testing.assert_allclose(stored.logits, made.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ROPE_OVERRIDES)
def test_the_stored_logits_of_another_rope_are_those_of_transformers(name, tmp_path):
    from tests.parity.references import logits_with_rope

    with np.load(REFERENCES / "ropes.npz") as stored:
        np.testing.assert_allclose(stored[name], logits_with_rope(name, tmp_path), rtol=1e-4, atol=1e-5)


def test_nothing_is_stored_that_no_test_reads():
    stored = set((REFERENCES / "networks").iterdir())
    assert stored == {network_path(name) for name in NETWORKS | ORACLES}
    assert len(stored) == len(NETWORKS | ORACLES), "two networks share a file"
