"""Synthetic models load, as a folder and as a file, and have the same network."""

from dataclasses import replace

import pytest
from benchmarks.synthetic.make import SHAPES, write_folder, write_gguf

from headrace.models.loading import load_model

SMALL = {"layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 512}


@pytest.mark.parametrize("name", SHAPES)
def test_the_folder_and_the_file_of_a_shape_hold_the_same_network(name, tmp_path):
    shape = replace(SHAPES[name], **SMALL)
    write_folder(shape, tmp_path / "folder")
    write_gguf(shape, tmp_path / "file.gguf")
    folder, file = load_model(str(tmp_path / "folder")), load_model(str(tmp_path / "file.gguf"))
    assert replace(folder.spec, norm_eps=0, moe=None) == replace(file.spec, norm_eps=0, moe=None)
    for model in (folder, file):
        assert (model.spec.moe.num_experts if model.spec.moe else 0) == shape.experts
        assert (model.spec.moe.top_k if model.spec.moe else 0) == shape.top_k
        assert len(list(model.weights.names())) > 0
        assert model.tokenizer.encode("Hi !") != []
