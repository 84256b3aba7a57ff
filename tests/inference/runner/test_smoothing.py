"""Scales that move outliers from activations to weights."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.inference.runner.smoothing import (
    GROUP,
    quantize_rows,
    round_activations,
    search_joint,
    smoothing_scales,
)

NUMBERS = st.floats(-1e4, 1e4, width=32).map(lambda x: 0.0 if abs(x) < 1e-4 else x)
MATRICES = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS)
MAXIMA = hnp.arrays(np.float32, 7, elements=st.floats(0, 1e4, width=32).map(lambda x: 0.0 if x < 1e-4 else x))


@given(MATRICES)
def test_rows_are_restored_to_within_half_a_step(matrix):
    values, scales = quantize_rows(matrix)
    assert np.abs(values.astype(int)).max() <= 127
    assert (np.abs(values * scales[:, None] - matrix) <= scales[:, None] * 0.5001).all()


@given(MATRICES)
def test_scales_of_rows_are_bfloat16_numbers(matrix):
    _, scales = quantize_rows(matrix)
    assert not (scales.view(np.uint32) & 0xFFFF).any()


@given(MATRICES)
def test_activations_are_restored_to_within_half_a_step(values):
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(round_activations(values) - values) <= largest / 127 * 0.5001).all()


def test_an_outlier_disturbs_only_its_own_group():
    values = np.full((1, 2 * GROUP), 0.5, np.float32)
    values[0, 3] = 1000
    rounded = round_activations(values)
    np.testing.assert_allclose(rounded[0, GROUP:], 0.5)
    assert not rounded[0, :3].any()


@given(MAXIMA, MAXIMA, st.floats(0, 1))
def test_the_geometric_mean_of_scales_is_one_and_dead_channels_keep_one(activations, weights, alpha):
    scales = smoothing_scales(activations, weights, alpha)
    alive = (activations > 0) & (weights > 0)
    assert (scales > 0).all()
    assert (scales[~alive] == 1).all()
    if alive.any():
        assert abs(np.log(scales[alive].astype(np.float64)).mean()) < 1e-4


def test_the_search_finds_scales_that_help_against_an_outlier():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((64, 128)).astype(np.float32)
    inputs[:, 5] *= 200
    matrix = rng.standard_normal((32, 128)).astype(np.float32)
    joint = search_joint(inputs, np.abs(inputs).max(axis=0), [matrix], alphas=(0.3, 0.5, 0.7))
    assert joint.alpha in {0.3, 0.5, 0.7}
    assert joint.error < joint.error_before / 4


def test_a_joint_stays_as_it_is_where_no_strength_helps():
    inputs = np.diag(np.logspace(-3, 3, 32)).astype(np.float32)
    joint = search_joint(inputs, np.abs(inputs).max(axis=0), [np.ones((4, 32), np.float32)], alphas=(1.0,))
    assert joint.alpha == 0
    assert (joint.scales == 1).all()
    assert joint.error == joint.error_before
