import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.gemma import GEMMA3
from headrace.inference.models.families.llama import LLAMA
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.places import stored_name
from headrace.inference.models.safetensors_reader import SafetensorsWeights
from headrace.inference.models.weights import Encoding, as_float32
from tests.inference.models.model_files import TINY_LLAMA, random_weights, write_folder
from tests.waiting import WAIT_S

_, SPEC = from_config(Fields(TINY_LLAMA, "config.json"))
WEIGHTS = random_weights(SPEC)
TENSORS = {stored_name(name, LLAMA.tensors): values for name, values in WEIGHTS.items()}
LONG_NAME = json.dumps({"weight_map": {"a": "x" * 5000}})


def floats(raw):
    return as_float32(raw.data, raw.encoding).reshape(raw.num_rows, raw.num_columns)


@pytest.mark.parametrize("shards", [1, 3])
def test_every_weight_comes_back_from_one_file_and_from_several(tmp_path, shards):
    source = SafetensorsWeights(write_folder(tmp_path, TINY_LLAMA, TENSORS, shards=shards), LLAMA, SPEC)

    assert set(source.names()) == set(WEIGHTS)
    for name, values in WEIGHTS.items():
        assert np.array_equal(floats(source.load(name)).ravel(), values.ravel()), name


@pytest.mark.parametrize(
    ("dtype", "encoding"),
    [("bfloat16", Encoding.BF16), ("float16", Encoding.F16), ("float32", Encoding.F32)],
)
def test_numbers_are_returned_in_the_encoding_of_the_file(tmp_path, dtype, encoding):
    import torch
    from safetensors.torch import save_file as save_torch_file

    tensors = {name: torch.from_numpy(values).to(getattr(torch, dtype)) for name, values in TENSORS.items()}
    write_folder(tmp_path, TINY_LLAMA, TENSORS)
    save_torch_file(tensors, tmp_path / "model.safetensors")

    source = SafetensorsWeights(tmp_path, LLAMA, SPEC)
    raw = source.load("layers.1.gate")
    assert raw.encoding is encoding
    assert source.dominant_encoding is encoding
    assert np.array_equal(floats(raw), tensors["model.layers.1.mlp.gate_proj.weight"].float().numpy())


def test_the_norms_of_gemma_have_their_one_added(tmp_path):
    import torch
    from safetensors.torch import save_file as save_torch_file

    write_folder(tmp_path, TINY_LLAMA, {})
    tensors = {stored_name(name, GEMMA3.tensors): torch.from_numpy(values) for name, values in WEIGHTS.items()}
    save_torch_file({name: values.bfloat16() for name, values in tensors.items()}, tmp_path / "model.safetensors")

    source = SafetensorsWeights(tmp_path, GEMMA3, SPEC)
    stored = tensors["model.layers.0.input_layernorm.weight"].bfloat16().float().numpy()
    assert np.array_equal(floats(source.load("layers.0.attn_norm")).ravel(), stored + 1)
    assert source.load("layers.0.q").encoding is Encoding.BF16


def test_a_checkpoint_of_the_bare_network_is_read_too(tmp_path):
    bare = {name.removeprefix("model."): values for name, values in TENSORS.items()}

    source = SafetensorsWeights(write_folder(tmp_path, TINY_LLAMA, bare), LLAMA, SPEC)
    assert np.array_equal(floats(source.load("layers.0.v")), WEIGHTS["layers.0.v"])


def test_the_fingerprint_changes_with_the_files(tmp_path):
    first = SafetensorsWeights(write_folder(tmp_path / "one", TINY_LLAMA, TENSORS), LLAMA, SPEC)
    second = SafetensorsWeights(write_folder(tmp_path / "two", TINY_LLAMA, TENSORS, shards=2), LLAMA, SPEC)

    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == SafetensorsWeights(tmp_path / "one", LLAMA, SPEC).fingerprint


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_anywhere_is_a_broken_model_that_is_named(tmp_path, data):
    file = write_folder(tmp_path, TINY_LLAMA, TENSORS) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])

    with pytest.raises(BrokenModel, match=r"model\.safetensors"):
        SafetensorsWeights(tmp_path, LLAMA, SPEC)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_corrupt_header_raises_only_headrace_errors(tmp_path, data):
    file = write_folder(tmp_path, TINY_LLAMA, TENSORS) / "model.safetensors"
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)

    try:
        source = SafetensorsWeights(tmp_path, LLAMA, SPEC)
    except (BrokenModel, UnsupportedModel):
        return
    for name in source.names():
        source.load(name)


@pytest.mark.timeout(WAIT_S)  # the product of these numbers has 40 million digits
def test_a_shape_of_huge_numbers_is_refused(tmp_path):
    header = b'{"t": {"dtype": "F32", "data_offsets": [0, 0], "shape": [%s]}}' % b",".join([b"9" * 4000] * 10_000)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BrokenModel, match="the entry of tensor t is malformed"):
        SafetensorsWeights(tmp_path, LLAMA, SPEC)


def test_a_missing_shard_is_named(tmp_path):
    write_folder(tmp_path, TINY_LLAMA, TENSORS, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()

    with pytest.raises(BrokenModel, match=r"has no model-00002-of-00003\.safetensors"):
        SafetensorsWeights(tmp_path, LLAMA, SPEC)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../secret"}}', LONG_NAME])
def test_a_malformed_index_is_a_broken_model(tmp_path, index):
    write_folder(tmp_path, TINY_LLAMA, TENSORS, shards=2)
    (tmp_path / "model.safetensors.index.json").write_text(index)

    with pytest.raises(BrokenModel, match=r"model\.safetensors\.index\.json"):
        SafetensorsWeights(tmp_path, LLAMA, SPEC)


def test_a_missing_tensor_is_named(tmp_path):
    tensors = {name: values for name, values in TENSORS.items() if name != "model.layers.1.mlp.up_proj.weight"}

    with pytest.raises(BrokenModel, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        SafetensorsWeights(write_folder(tmp_path, TINY_LLAMA, tensors), LLAMA, SPEC)


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path):
    tensors = TENSORS | {"lm_head.weight": np.zeros((3, 32), np.float32)}

    with pytest.raises(BrokenModel, match=r"lm_head\.weight has shape \[3, 32\]; expected \[320, 32\]"):
        SafetensorsWeights(write_folder(tmp_path, TINY_LLAMA, tensors), LLAMA, SPEC)


def test_an_unsupported_dtype_is_named(tmp_path):
    tensors = TENSORS | {"lm_head.weight": np.zeros((320, 32), np.int8)}

    with pytest.raises(UnsupportedModel, match=r"lm_head\.weight has type I8"):
        SafetensorsWeights(write_folder(tmp_path, TINY_LLAMA, tensors), LLAMA, SPEC)


def test_safetensors_win_over_pickles_beside_them(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")

    source = SafetensorsWeights(write_folder(tmp_path, TINY_LLAMA, TENSORS), LLAMA, SPEC)
    assert np.array_equal(floats(source.load("layers.0.v")), WEIGHTS["layers.0.v"])


def test_a_folder_without_weights_is_a_broken_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))

    with pytest.raises(BrokenModel, match="has no weights"):
        SafetensorsWeights(tmp_path, LLAMA, SPEC)
