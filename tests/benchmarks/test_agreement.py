"""Logits that agree with llama.cpp's, and those that do not."""

import numpy as np
from benchmarks.agreement.measure import GENERATED, Agreement, measured, page
from benchmarks.agreement.networks import CHANGES, all_cases

ROW = Agreement(network="llama", architecture="llama", why="a reason")
LOGITS = np.eye(GENERATED + 6, dtype=np.float32) * 4


def test_errors_are_shares_of_the_largest_logit_and_the_text_ends_where_another_token_leads():
    other = LOGITS.copy()
    other[10] = np.roll(other[10], 1)
    row = measured(ROW, LOGITS, LOGITS + 0.5, reference=other, native=other)

    assert (row.llamacpp_error, row.headrace_error, row.difference) == (0.125, 1.0, 1.125)
    assert (row.same_text, row.native_same, row.num_tokens, row.native_gap) == (5, 29, 30, 1.0)
    text = page([row], "Some library.")
    assert f"| 1e-01 | 1e+00 | 5 of {GENERATED} | 29 of 30 | 1e+00 |\n" in text
    assert "- **llama**: a reason.\n" in text


def test_a_network_that_llamacpp_does_not_read_has_its_error_in_place_of_numbers():
    row = Agreement(network="llama", architecture="llama", why="", failure="no such tensor")
    assert "| llama | `llama` | - | - | - | - | - |\n" in page([row], "")
    assert "- **llama**: no such tensor.\n" in page([row], "")


def test_every_changed_network_is_a_twin():
    assert set(CHANGES) < set(all_cases())
