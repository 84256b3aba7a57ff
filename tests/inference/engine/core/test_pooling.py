"""Pooling: one vector from the hidden states of a prompt, whatever the chunks."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.generation import PoolingParams
from headrace.inference.engine.core.pooling import SequencePool, pool_result
from headrace.inference.models.pooling import DenseLayer, Pooler

HIDDEN = np.random.default_rng(3).normal(size=(40, 6)).astype(np.float32)


def pooled(method: str, cuts: list[int]) -> SequencePool:
    """A pool that was given the hidden states in chunks."""
    pool = SequencePool(method, len(HIDDEN))  # type: ignore[arg-type]
    for start, stop in pairwise([0, *sorted(cuts), len(HIDDEN)]):
        needed = pool.needed(start, stop - start)
        if needed:
            pool.add(HIDDEN[needed.start : needed.stop])
    return pool


@given(cuts=st.lists(st.integers(1, len(HIDDEN) - 1), unique=True))
def test_the_bytes_of_a_mean_do_not_depend_on_the_chunks(cuts: list[int]) -> None:
    assert pooled("mean", cuts).result().tobytes() == pooled("mean", []).result().tobytes()
    assert np.allclose(pooled("mean", cuts).result(), HIDDEN.mean(axis=0), atol=1e-6)


@given(cuts=st.lists(st.integers(1, len(HIDDEN) - 1), unique=True))
def test_each_method_takes_its_rows(cuts: list[int]) -> None:
    assert (pooled("last", cuts).result() == HIDDEN[-1]).all()
    assert (pooled("cls", cuts).result() == HIDDEN[0]).all()
    assert (pooled("all", cuts).result() == HIDDEN).all()


def test_rows_that_were_collected_before_a_preemption_are_not_collected_again() -> None:
    pool = SequencePool("mean", 10)
    pool.add(HIDDEN[:6])
    assert pool.needed(0, 8) == range(6, 8)
    assert list(pool.needed(0, 4)) == []


def test_dense_layers_are_applied_before_a_vector_is_cut_and_normalised() -> None:
    weight = np.random.default_rng(4).normal(size=(4, 6)).astype(np.float32)
    pooler = Pooler(method="last", layers=(DenseLayer(weight=weight, bias=np.ones(4, np.float32), activation="tanh"),))
    pool = pooled("last", [])
    result = pool_result(pool, pooler, PoolingParams(dimensions=3))
    expected = np.tanh(weight @ HIDDEN[-1] + 1)[:3]
    assert result is not None
    assert result.vectors()[0] == pytest.approx((expected / np.linalg.norm(expected)).tolist(), abs=1e-6)


def test_a_vector_that_is_not_finite_is_no_result() -> None:
    pool = SequencePool("last", 1)
    pool.add(np.array([[np.nan, 1.0]], np.float32))
    assert pool_result(pool, Pooler(), PoolingParams()) is None
