"""The GGUF file of an encoder gives the same network as its folder."""

from functools import partial

import pytest

from tests.parity.test_embeddings import KINDS, write_model
from tests.parity.test_gguf_twins import check_twin

ENCODER_TWINS = {"bert": "bert", "nomic_bert": "nomic-bert"}


@pytest.mark.parametrize("name", ENCODER_TWINS)
def test_a_gguf_file_has_the_encoder_of_its_folder(name, tmp_path):
    write_model(name, tmp_path / "model", partial(KINDS[name][0], add_pooling_layer=False))
    check_twin(tmp_path, ENCODER_TWINS[name], {"attention.causal": False})
