"""Suggestions for misspelt or shortened names."""

from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.settings.container_options import OPTIONS
from headrace.settings.near_names import near_name

NAMES = sorted(name for name in OPTIONS if len(name) >= 8)


def closeness(near: str, misspelt: str) -> float:
    return SequenceMatcher(None, near.replace("_", ""), misspelt.replace("_", "")).ratio()


@given(st.sampled_from(NAMES), st.data())
def test_one_wrong_letter_finds_a_name_that_is_one_letter_away(name: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(name) - 1))
    misspelt = name[:position] + data.draw(st.sampled_from(["", "x", name[position] * 2])) + name[position + 1 :]
    near = near_name(misspelt, OPTIONS)
    assert near is not None
    assert near == name or near.startswith(f"{misspelt}_") or closeness(near, misspelt) >= closeness(name, misspelt)


@given(st.sampled_from([name for name in NAMES if len(name.rpartition("_")[0]) >= 6]))
def test_a_name_without_its_last_word_finds_the_full_name(name: str) -> None:
    shortened = name.rpartition("_")[0]
    near = near_name(shortened, OPTIONS)
    assert near is not None
    assert near == shortened or near.startswith(f"{shortened}_")


@pytest.mark.parametrize("word", ["", "max", "xyzzy", "banana_split"])
def test_a_name_without_a_similar_one_gets_no_suggestion(word: str) -> None:
    assert near_name(word, OPTIONS) is None


def test_case_and_separators_are_ignored() -> None:
    assert near_name("maxRollingBatchSize", OPTIONS) == "max_rolling_batch_size"
    assert near_name("MODEL-ID", OPTIONS) == "model_id"
