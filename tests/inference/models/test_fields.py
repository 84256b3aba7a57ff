"""Values of files are read with their type and range checked."""

import numpy as np
import pytest

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.fields import Fields


def test_an_array_in_the_place_of_a_number_is_refused():
    fields = Fields({"scale": np.ones(2, np.float32)}, "m.gguf")
    with pytest.raises(UnsupportedModel, match="a scale"):
        fields.refuse("scale", "a scale", unless=(0.0, 1))
