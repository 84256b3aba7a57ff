"""Matrices that the package compressed-tensors compresses have the values that it decompresses."""

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from headrace.inference.models.decoding import decode
from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.registry import find_quantized
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.weights import Encoding
from tests.inference.models.quantized.test_formats import TORCH_NAMES

ROWS, COLUMNS = 64, 256
SCHEMES = {
    "W8A8": Encoding.I8,
    "W4A16": Encoding.Q4_0,
    "W4A16_ASYM": Encoding.Q4_1,
    "W2A16": Encoding.Q4_1,
    "W8A16": Encoding.F32,
    "FP8": Encoding.F32,
    "FP8_DYNAMIC": Encoding.F32,
    "FP8_BLOCK": Encoding.F32,
    "NVFP4A16": Encoding.F32,
    "MXFP4A16": Encoding.FP4,
}


def shares_scale(weight, args):
    """The weight with the numbers that share a scale along its last axes."""
    if args.block_structure:
        rows, columns = args.block_structure
        return weight.reshape(-1, rows, weight.shape[1] // columns, columns).swapaxes(1, 2).flatten(2)
    if args.group_size:
        return weight.reshape(len(weight), -1, args.group_size)
    return weight if args.strategy == "channel" else weight.reshape(1, -1)


def compress(scheme):
    """The tensors of one matrix, and what the package makes of them."""
    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32) * 0.02 + 0.002)
    if scheme.weights.block_structure:
        scheme.weights.block_structure = [32, 64]
    groups = shares_scale(weight, scheme.weights)
    general = generate_gparam(weight.min(), weight.max()) if scheme.weights.strategy == "tensor_group" else None
    scales, zeros = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights, general)
    if scales.ndim == 1:
        scales, zeros = scales[:, None], zeros[:, None]
    state = {"weight": weight, "weight_scale": scales.float(), "weight_zero_point": zeros.to(torch.int8)}
    if general is not None:
        state["weight_global_scale"] = general
    package = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme).value)
    stored = package.compress(state, scheme)
    return stored, package.decompress(dict(stored), scheme)["weight"]


@pytest.mark.parametrize("name", SCHEMES)
def test_a_matrix_of_each_scheme_has_the_values_of_the_package(name, tmp_path):
    scheme = preset_name_to_scheme(name, ["Linear"])
    stored, expected = compress(scheme)
    group = {"weights": {"num_bits": scheme.weights.num_bits, "group_size": scheme.weights.group_size}}
    group["weights"]["block_structure"] = scheme.weights.block_structure
    config = Fields({"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}, "config.json")
    tensors = {}
    for part, tensor in stored.items():
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        stored_as = StoredTensor(tmp_path, f"m.{part}", TORCH_NAMES[tensor.dtype], tuple(tensor.shape), content)
        tensors[stored_as.name] = stored_as

    found = find_quantized(tensors, "m.weight", (ROWS, COLUMNS), config)
    raw = found.load()
    assert raw.encoding is SCHEMES[name]
    largest = expected.float().abs().max().item()
    tolerance = (
        2.0**-9
        if raw.encoding in (Encoding.Q4_0, Encoding.Q4_1)
        else 2.0**-8
        if expected.dtype is torch.bfloat16
        else 1e-6
    )
    np.testing.assert_allclose(decode(raw), expected.float().numpy(), rtol=0, atol=tolerance * largest)
