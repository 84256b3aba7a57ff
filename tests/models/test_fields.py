"""Values of files are read with their type and range checked."""

import numpy as np
import pytest

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.fields import Fields


@pytest.mark.parametrize("value", [2**31, 10**30, -1, True, "1", [1, 2.5], np.ones(2, np.int32)])
def test_an_id_that_runners_cannot_hold_is_refused(value):
    with pytest.raises(BrokenModel, match=r"eos_token_id is .*; expected a token id"):
        Fields({"eos_token_id": value}, "config.json").ids("eos_token_id")


def test_ids_are_one_number_or_several():
    fields = Fields({"one": 7, "two": [7, 2**31 - 1]}, "config.json")
    assert (fields.ids("one"), fields.ids("two"), fields.ids("none")) == ({7}, {7, 2**31 - 1}, set())


def test_an_array_in_the_place_of_a_number_is_refused():
    fields = Fields({"scale": np.ones(2, np.float32)}, "m.gguf")
    with pytest.raises(UnsupportedModel, match="a scale"):
        fields.refuse("scale", "a scale", unless=(0.0, 1))
