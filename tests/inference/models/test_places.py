"""Fused, partial and interleaved tensors: the rows are found, and no encoding is touched."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.inference.models.decoding import decode
from headrace.inference.models.families.llama import LLAMA
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.places import folder_places, merge, rotary_order
from headrace.inference.models.spec import RopeSpec
from headrace.inference.models.weights import Encoding, RawTensor
from headrace.inference.runner.reference import Rotation
from tests.inference.models.model_files import TINY_LLAMA

_, SPEC = from_config(Fields(TINY_LLAMA | {"attention_bias": True}, "config.json"))
FUSED = (
    LLAMA.tensors
    | dict.fromkeys(("q", "k", "v"), "qkv.weight")
    | dict.fromkeys(("q_bias", "k_bias", "v_bias"), "qkv.bias")
)


def stored(num_rows, row_bytes=7):
    """Rows of opaque bytes, whose first two are the number of the row."""
    data = np.random.default_rng(0).integers(0, 256, (num_rows, row_bytes), np.uint8)
    data[:, :2] = np.arange(num_rows, dtype="<u2").view(np.uint8).reshape(-1, 2)
    return RawTensor(Encoding.Q4_1, num_rows, 32, data)


def rows_of(place, num_rows):
    return place.select(stored(num_rows)).data[:, :2].copy().view("<u2").reshape(-1).tolist()


def test_a_weight_of_its_own_is_not_copied():
    tensor = stored(32)

    assert folder_places(LLAMA, SPEC)["layers.0.q"].select(tensor) is tensor


def test_parts_of_a_fused_tensor_follow_each_other():
    places = folder_places(replace(LLAMA, tensors=FUSED), SPEC)

    assert places["layers.1.v"].stored == "model.layers.1.qkv.weight"
    assert places["layers.1.v"].shape == (64, 32)
    assert [rows_of(places[f"layers.0.{part}"], 64) for part in "qkv"] == [
        list(range(32)),
        list(range(32, 48)),
        list(range(48, 64)),
    ]


def test_parts_that_are_fused_by_kv_head_are_collected():
    places = folder_places(replace(LLAMA, tensors=FUSED, qkv_by_kv_head=True), SPEC)

    assert rows_of(places["layers.0.q"], 64) == [*range(16), *range(32, 48)]
    assert rows_of(places["layers.0.k"], 64) == [*range(16, 24), *range(48, 56)]
    assert rows_of(places["layers.0.v"], 64) == [*range(24, 32), *range(56, 64)]


def test_the_numbers_of_a_fused_bias_are_found():
    places = folder_places(replace(LLAMA, tensors=FUSED), SPEC)
    values = np.arange(64, dtype="<f2")

    bias = places["layers.0.k_bias"].select(RawTensor(Encoding.F16, 1, 64, values.view(np.uint8).reshape(1, -1)))
    assert (bias.num_rows, bias.num_columns) == (1, 16)
    assert bias.data.view("<f2").tolist() == [list(range(32, 48))]


@pytest.mark.parametrize("kind", list(Encoding))
def test_no_row_is_decoded(kind):
    spec = replace(SPEC, ropes=(RopeSpec(rotary_dim=4),))
    place = folder_places(replace(LLAMA, tensors=FUSED, interleaved_rope=True), spec)["layers.0.k"]
    tensor = replace(stored(64), encoding=kind)

    selected = place.select(tensor)
    assert selected.encoding is kind
    assert sorted(map(bytes, selected.data)) == sorted(map(bytes, tensor.data[32:48]))


@given(
    head_dim=st.sampled_from([16, 48, 64, 80]),
    fraction=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    interleaved=st.booleans(),
    distance=st.integers(0, 500),
)
def test_permuted_heads_have_the_scores_of_the_stored_ones(head_dim, fraction, interleaved, distance):
    rotary_dim = int(head_dim * fraction)
    rope = RopeSpec(theta=100.0, rotary_dim=rotary_dim)
    rng = np.random.default_rng(head_dim)
    query, key = rng.standard_normal((2, 1, 1, head_dim)).astype(np.float32)
    order = rotary_order(rope, head_dim, interleaved=interleaved)

    expected = np.sum(turned(query, distance, rotary_dim, interleaved) * key)
    order = np.arange(head_dim) if order is None else order
    rotation = Rotation(rope, head_dim, 512)
    score = np.sum(rotation.turn(query[..., order], np.array([distance])) * key[..., order])
    assert score == pytest.approx(expected, abs=1e-4)


def turned(heads, position, rotary_dim, interleaved):
    """Turn the first values of a head as checkpoints define it, pair by pair."""
    out = heads.copy()
    for pair in range(rotary_dim // 2):
        i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotary_dim // 2)
        angle = position * 100.0 ** (-2 * pair / rotary_dim)
        out[..., i] = heads[..., i] * np.cos(angle) - heads[..., j] * np.sin(angle)
        out[..., j] = heads[..., j] * np.cos(angle) + heads[..., i] * np.sin(angle)
    return out


@pytest.mark.parametrize("by_kv_head", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_merging_the_parts_of_a_tensor_gives_the_tensor(by_kv_head, interleaved):
    family = replace(LLAMA, tensors=FUSED, qkv_by_kv_head=by_kv_head, interleaved_rope=interleaved)
    places = folder_places(family, replace(SPEC, logit_scale=0.25))
    for name in ("model.layers.0.qkv.weight", "model.layers.0.qkv.bias", "model.norm.weight"):
        parts = [place for place in places.values() if place.stored == name]
        tensor = np.random.default_rng(0).standard_normal(parts[0].shape).astype(np.float32)
        raw = RawTensor(Encoding.F32, *tensor.shape, tensor.view(np.uint8))
        selected = [(place, decode(place.select(raw))) for place in parts]
        np.testing.assert_array_equal(merge(selected), tensor)
