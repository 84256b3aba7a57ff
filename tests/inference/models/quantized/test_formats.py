"""Every format is read with the values of its formula, in the encoding that keeps them; fuzzed files end in errors."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.llama import LLAMA
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_hf_weights
from headrace.inference.models.places import stored_name
from headrace.inference.models.quantized.fp4 import mxfp4_values
from headrace.inference.models.quantized.registry import FORMATS, METHODS, find_quantized
from headrace.inference.models.stored_tensor import ITEM_BYTES, StoredTensor
from headrace.inference.models.weights import Encoding
from tests.inference.models.model_files import TINY_LLAMA, random_weights, write_folder
from tests.inference.models.quantized import writers

CONFIG = TINY_LLAMA | {"hidden_size": 64, "intermediate_size": 128}
_, SPEC = from_config(Fields(CONFIG, "config.json"))
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")

CASES = {
    "GPTQ": (writers.gptq(), Encoding.Q4_1, 4),
    "GPTQ, one group": (writers.gptq(group=-1), Encoding.Q4_1, 4),
    "GPTQ, symmetric": (writers.gptq(group=64, symmetric=True), Encoding.Q4_0, 4),
    "GPTQ, version 2": (writers.gptq(version=2), Encoding.Q4_1, 4),
    "GPTQ without g_idx": (writers.gptq(group=64, with_index=False), Encoding.Q4_1, 4),
    "GPTQ with act-order": (writers.gptq(shuffled=True), Encoding.F32, 4),
    "GPTQ in groups of 16": (writers.gptq(group=16), Encoding.F32, 4),
    "GPTQ, 2 bits": (writers.gptq(bits=2), Encoding.Q4_1, 2),
    "GPTQ, 3 bits": (writers.gptq(bits=3), Encoding.Q4_1, 3),
    "GPTQ, 8 bits": (writers.gptq(bits=8), Encoding.F32, 8),
    "GPTQ, 8 bits by row": (writers.gptq(bits=8, group=-1, symmetric=True), Encoding.I8, 8),
    "AWQ": (writers.awq_gemm(), Encoding.Q4_1, 4),
    "AWQ in groups of 64": (writers.awq_gemm(64), Encoding.Q4_1, 4),
    "AWQ GEMV": (writers.awq_gemv(), Encoding.Q4_1, 4),
    "pack-quantized": (writers.pack_quantized(), Encoding.Q4_0, 4),
    "pack-quantized by row": (writers.pack_quantized(group=None), Encoding.Q4_0, 4),
    "pack-quantized, zero points": (writers.pack_quantized(symmetric=False), Encoding.Q4_1, 4),
    "pack-quantized with act-order": (writers.pack_quantized(shuffled=True), Encoding.F32, 4),
    "pack-quantized, 8 bits": (writers.pack_quantized(bits=8), Encoding.F32, 8),
    "pack-quantized, 8 bits by row": (writers.pack_quantized(bits=8, group=None), Encoding.I8, 8),
    "int-quantized": (writers.int_quantized(), Encoding.I8, 8),
    "int-quantized, zero points": (writers.int_quantized(symmetric=False), Encoding.F32, 8),
    "int-quantized in groups": (writers.int_quantized(32), Encoding.F32, 8),
    "int-quantized in groups, zero points": (writers.int_quantized(32, symmetric=False), Encoding.F32, 8),
    "FP8": (writers.fp8(), Encoding.F32, 8),
    "FP8 by row": (writers.fp8("row", method="fbgemm_fp8"), Encoding.F32, 8),
    "FP8 of Mistral": (writers.fp8(name="qscale_weight"), Encoding.F32, 8),
    "FP8 in blocks": (writers.fp8("block", name="weight_scale_inv"), Encoding.F32, 8),
    "LLM.int8": (writers.llm_int8, Encoding.I8, 8),
    "nf4": (writers.four_bits(), Encoding.F32, 4),
    "fp4": (writers.four_bits("fp4"), Encoding.F32, 4),
    "nf4, nested": (writers.four_bits(nested=True), Encoding.F32, 4),
    "MXFP4": (writers.mxfp4, Encoding.FP4, 4),
    "NVFP4": (writers.nvfp4(), Encoding.F32, 4),
    "NVFP4 of ModelOpt": (writers.nvfp4(modelopt=True), Encoding.F32, 4),
    "int8 of torchao": (writers.torchao(), Encoding.I8, 8),
    "int8 of torchao in groups": (writers.torchao(32), Encoding.F32, 8),
    "int4 of torchao": (writers.torchao_int4(32), Encoding.Q4_1, 4),
    "int4 of torchao in groups of 64": (writers.torchao_int4(64), Encoding.Q4_1, 4),
    "int4 of torchao, tiled": (writers.torchao_int4(128, tiled=True), Encoding.Q4_1, 4),
    "BitNet": (writers.bitnet(), Encoding.Q4_1, 2),
    "BitNet, another class": (writers.bitnet(auto=True), Encoding.Q4_1, 2),
    "HQQ": (writers.hqq(), Encoding.Q4_1, 4),
    "HQQ in groups of 16": (writers.hqq(group=16), Encoding.F32, 4),
    "HQQ, 8 bits": (writers.hqq(bits=8), Encoding.F32, 8),
    "FP8 of torchao": (writers.torchao_fp8(), Encoding.F32, 8),
    "FP8 of torchao, one scale": (writers.torchao_fp8("tensor"), Encoding.F32, 8),
}


def write_quantized(folder, writer, seed=0):
    """A folder whose layers' matrices are quantized; returns the values of each."""
    rng = np.random.default_rng(seed)
    tensors, values, config = {}, {}, {}
    for name, weight in random_weights(SPEC).items():
        stored = stored_name(name, LLAMA.tensors)
        if name.rpartition(".")[2] not in MATRICES:
            tensors[stored] = torch.from_numpy(weight)
            continue
        written = writer(rng, *weight.shape)
        module = stored.removesuffix(".weight")
        tensors |= {f"{module}.{part}": tensor for part, tensor in written.tensors.items()}
        values[name], config = written.values, written.config
    write_folder(folder, CONFIG | {"quantization_config": config}, {})
    save_file(tensors, folder / "model.safetensors")
    return values


@pytest.mark.parametrize("case", CASES)
def test_a_matrix_has_the_values_of_its_format(tmp_path, case):
    writer, encoding, bits = CASES[case]
    expected = write_quantized(tmp_path, writer)

    weights = read_hf_weights(tmp_path)
    assert weights.dominant_encoding is encoding
    for name, values in expected.items():
        raw = weights.load(name)
        if case.startswith("BitNet") and values.shape[1] % 128 == 0:
            assert raw.encoding is Encoding.TERNARY
        else:
            assert raw.encoding is encoding
        assert weights.stored_bits(name) == bits
        # A Q4_1 minimum is at most 15 scales and is rounded to a half.
        tolerance = 15 * 0.02 * 2.0**-11 if encoding is Encoding.Q4_1 else 1e-6 * np.abs(values).max()
        np.testing.assert_allclose(decode(raw), values, rtol=0, atol=tolerance)


def test_q4_1_keeps_symmetric_codes_and_scales_bit_for_bit(tmp_path):
    expected = write_quantized(tmp_path, writers.pack_quantized())

    for name, values in expected.items():
        np.testing.assert_array_equal(decode(read_hf_weights(tmp_path).load(name)), values)


def test_scales_that_a_half_cannot_hold_are_decoded(tmp_path):
    def writer(rng, num_rows, num_columns):
        written = writers.pack_quantized(dtype=torch.float32)(rng, num_rows, num_columns)
        written.tensors["weight_scale"] = written.tensors["weight_scale"] * 1e9
        written.values = written.values * np.float32(1e9)
        return written

    expected = write_quantized(tmp_path, writer)
    raw = read_hf_weights(tmp_path).load("layers.0.q")
    assert raw.encoding is Encoding.F32
    np.testing.assert_allclose(decode(raw), expected["layers.0.q"], rtol=1e-5)


@pytest.mark.parametrize(
    ("case", "scale"),
    [
        ("NVFP4 of ModelOpt", {"weight_scale_2": torch.tensor(3e38)}),
        ("NVFP4", {"weight_global_scale": torch.tensor([1e-44])}),
        ("FP8", {"weight_scale": torch.tensor([3e38])}),
        ("LLM.int8", {"SCB": torch.full((32,), torch.inf)}),
    ],
)
def test_scales_that_make_values_infinite_are_an_error_that_names_the_tensor(tmp_path, case, scale):
    written = CASES[case][0](np.random.default_rng(0), 32, 64)
    stored = {
        f"m.{part}": StoredTensor(tmp_path, f"m.{part}", TORCH_NAMES[tensor.dtype], tuple(tensor.shape), raw(tensor))
        for part, tensor in (written.tensors | scale).items()
    }
    with pytest.raises(BrokenModel, match=r"tensor m\.weight.*(not finite|finite number)"):
        find_quantized(stored, "m.weight", (32, 64), Fields(written.config, "config.json")).load()


def test_scaled_inputs_of_torchao_are_refused(tmp_path):
    def writer(rng, num_rows, num_columns):
        written = writers.torchao_int4(32)(rng, num_rows, num_columns)
        written.tensors["_weight_act_pre_scale"] = torch.ones(num_columns)
        return written

    write_quantized(tmp_path, writer)
    with pytest.raises(UnsupportedModel, match="act_pre_scale scales the inputs"):
        read_hf_weights(tmp_path)


def test_every_format_of_the_registry_is_tested_and_documented(pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "supported-models.md").read_text()
    assert [kind.name for kind in FORMATS if f"| {kind.name} |" not in page] == []
    assert [method for method in METHODS if f"`{method}`" not in page] == []


def test_experts_of_gpt_oss_are_decoded_along_the_last_axis():
    rng = np.random.default_rng(0)
    written = writers.mxfp4(rng, 6, 64)
    blocks = written.tensors["weight_packed"].numpy().reshape(2, 3, 2, 16)
    scales = written.tensors["weight_scale"].numpy().reshape(2, 3, 2)
    np.testing.assert_array_equal(mxfp4_values(blocks, scales), written.values.reshape(2, 3, 64))


def test_every_code_of_e4m3_has_the_value_that_torch_gives_it(tmp_path):
    codes = np.arange(256, dtype=np.uint8)
    tensor = StoredTensor(tmp_path, "codes", "F8_E4M3", (256,), codes)
    np.testing.assert_array_equal(tensor.floats(), torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy())


def test_a_bias_that_the_network_does_not_have_is_refused_unless_it_is_zero(tmp_path):
    def writer(rng, num_rows, num_columns):
        written = writers.gptq()(rng, num_rows, num_columns)
        written.tensors["bias"][1] = 1
        return written

    write_quantized(tmp_path, writer)
    with pytest.raises(UnsupportedModel, match=r"proj\.bias is not zero"):
        read_hf_weights(tmp_path)


@pytest.mark.parametrize(("file", "method"), [("quantize_config.json", "gptq"), ("quant_config.json", "awq")])
def test_the_config_of_older_writers_is_read_from_its_own_file(tmp_path, file, method):
    writer = {"gptq": writers.gptq(), "awq": writers.awq_gemm()}[method]
    expected = write_quantized(tmp_path, writer)
    text = (tmp_path / "config.json").read_text()
    quantization = Fields(json.loads(text), "").sub("quantization_config").values
    older = {key: value for key, value in quantization.items() if key != "quant_method"}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / file).write_text(json.dumps(older))

    raw = read_hf_weights(tmp_path).load("layers.1.up")
    np.testing.assert_allclose(decode(raw), expected["layers.1.up"], atol=1e-3)


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "awq", "version": "gemv_fast"}, "gemv_fast"),
        ({"quant_method": "awq", "version": "marlin"}, "marlin"),
        ({"quant_method": "awq", "bits": 3}, "bits = 3"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "gptq", "is_marlin_format": True}, "is_marlin_format"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
        ({"quant_method": "aqlm"}, "quantized with aqlm"),
        ({"quant_method": "bitnet", "use_rms_norm": True}, "norm inside BitNet"),
        ({"quant_method": "bitnet", "quantization_mode": "online"}, "quantization_mode = 'online'"),
        (writers.hqq(axis=0)(np.random.default_rng(0), 64, 64).config, "axis = 0"),
        (writers.hqq(nbits=3)(np.random.default_rng(0), 64, 64).config, "nbits = 3"),
        ({"quant_method": "hqq", "quant_config": {"mlp": {"weight_quant_params": {"axis": 0}}}}, "axis = 0"),
        (writers.torchao_config("IntxWeightOnlyConfig"), "configuration is 'IntxWeightOnlyConfig'"),
        (writers.torchao_config("Int4WeightOnlyConfig", int4_packing_format="preshuffled"), "is 'preshuffled'"),
        (writers.torchao_config("Int4WeightOnlyConfig", int4_tile_packed_ntile=16), "tiles of AMD"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "configuration is 'int4_weight_only'"),
    ],
)
def test_a_layout_that_is_not_read_is_refused_by_name(quantization, named):
    with pytest.raises(UnsupportedModel, match=named):
        from_config(Fields(CONFIG | {"quantization_config": quantization}, "config.json"))


SIZES = st.one_of(st.integers(0, 3), st.sampled_from([8, 16, 32, 64, 128]))
NUMBERS = st.one_of(st.integers(-2, 256), st.sampled_from([10**6, 10**18, 10**30]), st.floats(), st.text(max_size=3))


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), case=st.sampled_from(sorted(CASES)))
def test_tensors_of_any_shape_type_and_config_end_in_values_or_in_a_named_error(tmp_path, data, case):
    written = CASES[case][0](np.random.default_rng(0), 32, 64)
    stored = {}
    for part, tensor in written.tensors.items():
        dtype, shape = TORCH_NAMES[tensor.dtype], tuple(tensor.shape)
        content = raw(tensor)
        if data.draw(st.integers(0, 3)) == 0:
            dtype = data.draw(st.sampled_from([dtype, *ITEM_BYTES]))
            shape = data.draw(st.one_of(st.just(shape), st.lists(SIZES, max_size=3).map(tuple)))
            size = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES[dtype]
            content = np.resize(content, size)
        if content.size and data.draw(st.booleans()):
            content[data.draw(st.integers(0, content.size - 1))] = data.draw(st.integers(0, 255))
        stored[f"m.{part}"] = StoredTensor(tmp_path, f"m.{part}", dtype, shape, content)
    keys = st.sampled_from(["group_size", "q_group_size", "weight_block_size", "version", "checkpoint_format"])
    values = st.one_of(NUMBERS, st.lists(NUMBERS, min_size=2, max_size=2))
    config = written.config | data.draw(st.dictionaries(keys, values, max_size=2))
    for key, tensor in stored.items():
        if "quant_state" in key and data.draw(st.booleans()):
            text = bytes(tensor.data).replace(b"64", str(data.draw(NUMBERS)).encode())
            stored[key] = StoredTensor(tmp_path, key, "U8", (len(text),), np.frombuffer(text, np.uint8))

    try:
        found = find_quantized(stored, "m.weight", (32, 64), Fields(config, "config.json"))
        if found is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # a scale of any bits may be infinite, or nearly
                assert decode(found.load()).shape == (32, 64)
    except (BrokenModel, UnsupportedModel):
        pass


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().copy()


TORCH_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}
