"""
Write one matrix in each quantized format, as its own library packs it, and its values by the format's formula.

Each writer draws integers first and packs them with loops over words, so that nothing is shared with the readers.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass
class Written:
    """Tensors by their names after the module's, and the values that they stand for."""

    tensors: dict[str, torch.Tensor]
    values: np.ndarray
    config: dict[str, object] = field(default_factory=dict)


Writer = Callable[[np.random.Generator, int, int], Written]


def pack(codes, bits, order=None):
    """Pack along the last axis into 32-bit words with Python's integers; 3 bits run on across words."""
    rows = []
    places = range(codes.shape[-1])
    if order is not None:
        places = [start + offset for start in places[::8] for offset in order]
    for row in codes.reshape(-1, codes.shape[-1]).tolist():
        stream = sum(row[place] << (bits * index) for index, place in enumerate(places))
        num_words = -(-len(row) * bits // 32)
        rows.append([(stream >> (32 * word)) & 0xFFFFFFFF for word in range(num_words)])
    words = np.array(rows, np.uint32).reshape(*codes.shape[:-1], -1)
    return torch.from_numpy(words.view(np.int32).copy())


def pack_less_one(codes, bits):
    """Pack and subtract 1 from every code, from whole words where codes do not cross them, as GPTQModel does."""
    if bits == 3:
        return pack((codes - 1) & 7, bits)
    ones = sum(1 << shift for shift in range(0, 32, bits))
    words = [[(word - ones) & 0xFFFFFFFF for word in row] for row in pack(codes, bits).tolist()]
    return torch.from_numpy(np.array(words, np.uint32).view(np.int32))


def affine(rng, num_rows, num_columns, group, bits, *, symmetric=False):
    """Codes, zeros and scales of a matrix: (rows, columns), (rows, groups) twice."""
    num_groups = -(-num_columns // group)
    codes = rng.integers(0, 2**bits, (num_rows, num_columns))
    zeros = np.full((num_rows, num_groups), 2 ** (bits - 1))
    if not symmetric:
        zeros = rng.integers(0, 2**bits, (num_rows, num_groups))
    scales = rng.uniform(0.001, 0.02, (num_rows, num_groups)).astype(np.float16)
    return codes, zeros, scales


def evaluate(codes, zeros, scales, columns):
    """The values, where `columns` is the group of each column."""
    return (codes - zeros[:, columns]) * scales.astype(np.float32)[:, columns]


def gptq(bits=4, group=32, *, version=1, symmetric=False, shuffled=False, with_index=True) -> Writer:
    def write(rng, num_rows, num_columns):
        size = num_columns if group == -1 else group
        codes, zeros, scales = affine(rng, num_rows, num_columns, size, bits, symmetric=symmetric)
        columns = np.arange(num_columns) // size
        if shuffled:
            rng.shuffle(columns)
        tensors = {
            "qweight": pack(codes, bits).T.contiguous(),
            "qzeros": pack(zeros.T, bits) if version == 2 else pack_less_one(zeros.T, bits),
            "scales": torch.from_numpy(scales.T.copy()),
            "bias": torch.zeros(num_rows, dtype=torch.float16),
        }
        if with_index:
            tensors["g_idx"] = torch.from_numpy(columns.astype(np.int32))
        config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": shuffled, "sym": symmetric}
        if version == 2:
            config["checkpoint_format"] = "gptq_v2"
        return Written(tensors, evaluate(codes, zeros, scales, columns), config)

    return write


def awq_gemm(group=32) -> Writer:
    def write(rng, num_rows, num_columns):
        codes, zeros, scales = affine(rng, num_rows, num_columns, group, 4)
        tensors = {
            "qweight": pack(codes.T, 4, AWQ_ORDER),
            "qzeros": pack(zeros.T, 4, AWQ_ORDER),
            "scales": torch.from_numpy(scales.T.copy()),
        }
        config = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": group, "zero_point": True}
        return Written(tensors, evaluate(codes, zeros, scales, np.arange(num_columns) // group), config)

    return write


def awq_gemv(group=32) -> Writer:
    def write(rng, num_rows, num_columns):
        codes, zeros, scales = affine(rng, num_rows, num_columns, group, 4)
        padding = ((0, 0), (0, -scales.shape[1] % 16))
        tensors = {
            "qweight": pack(codes, 4),
            "qzeros": pack(np.pad(zeros, padding), 4),
            "scales": torch.from_numpy(np.pad(scales, padding)),
        }
        config = {"quant_method": "awq", "version": "GEMV", "w_bit": 4, "q_group_size": group, "zero_point": True}
        return Written(tensors, evaluate(codes, zeros, scales, np.arange(num_columns) // group), config)

    return write


def compressed_config(form, **weights):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def pack_quantized(bits=4, group=32, *, symmetric=True, shuffled=False, dtype=torch.bfloat16) -> Writer:
    def write(rng, num_rows, num_columns):
        size = num_columns if group is None else group
        codes, zeros, scales = affine(rng, num_rows, num_columns, size, bits, symmetric=symmetric)
        scales = torch.from_numpy(scales).to(dtype)
        columns = np.arange(num_columns) // size
        tensors = {
            "weight_packed": pack(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([num_rows, num_columns]),
        }
        if not symmetric:
            tensors["weight_zero_point"] = pack(zeros.T, bits).T.contiguous()
        if shuffled:
            rng.shuffle(columns)
            tensors["weight_g_idx"] = torch.from_numpy(columns.astype(np.int32))
        config = compressed_config("pack-quantized", num_bits=bits, group_size=group, symmetric=symmetric)
        return Written(tensors, evaluate(codes, zeros, scales.float().numpy(), columns), config)

    return write


def int_quantized(group=None, *, symmetric=True) -> Writer:
    def write(rng, num_rows, num_columns):
        size = num_columns if group is None else group
        codes, _, scales = affine(rng, num_rows, num_columns, size, 8)
        zeros = np.zeros(scales.shape, np.int64) if symmetric else rng.integers(-128, 128, scales.shape)
        codes -= 128
        tensors = {"weight": torch.from_numpy(codes.astype(np.int8)), "weight_scale": torch.from_numpy(scales)}
        if not symmetric:
            tensors["weight_zero_point"] = torch.from_numpy(zeros.astype(np.int8))
        values = evaluate(codes, zeros, scales, np.arange(num_columns) // size)
        return Written(tensors, values, compressed_config("int-quantized", num_bits=8))

    return write


def fp8(granularity="tensor", *, method="fp8", name="weight_scale", block=(48, 32)) -> Writer:
    def write(rng, num_rows, num_columns):
        weight = torch.from_numpy(rng.standard_normal((num_rows, num_columns)).astype(np.float32) * 50)
        weight = weight.to(torch.float8_e4m3fn)
        rows, columns = {"tensor": (num_rows, num_columns), "row": (1, num_columns), "block": block}[granularity]
        scales = rng.uniform(1e-4, 1e-2, (-(-num_rows // rows), -(-num_columns // columns))).astype(np.float32)
        spread = np.kron(scales, np.ones((rows, columns), np.float32))[:num_rows, :num_columns]
        stored = torch.from_numpy(scales).reshape(()) if granularity == "tensor" else torch.from_numpy(scales)
        config = {"quant_method": method}
        if granularity == "block":
            config["weight_block_size"] = [rows, columns]
        return Written({"weight": weight, name: stored}, weight.float().numpy() * spread, config)

    return write


def llm_int8(rng, num_rows, num_columns):
    codes = rng.integers(-127, 128, (num_rows, num_columns)).astype(np.int8)
    scb = rng.uniform(0.5, 2, num_rows).astype(np.float32)
    tensors = {"weight": torch.from_numpy(codes), "SCB": torch.from_numpy(scb), "weight_format": torch.tensor(0)}
    values = codes * (scb / np.float32(127))[:, None]
    return Written(tensors, values, {"quant_method": "bitsandbytes", "load_in_8bit": True})


def four_bits(kind="nf4", *, nested=False) -> Writer:
    def write(rng, num_rows, num_columns):
        numbers, block = num_rows * num_columns, 64
        codes = rng.integers(0, 16, numbers)
        table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
        state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [num_rows, num_columns]}
        num_blocks = numbers // block
        tensors = {"weight.quant_map": torch.from_numpy(table)}
        if nested:
            scale_table = np.linspace(-1, 1, 256).astype(np.float32)
            scale_codes = rng.integers(0, 256, num_blocks).astype(np.uint8)
            outer = rng.uniform(0.5, 1, -(-num_blocks // 256)).astype(np.float32)
            scales = scale_table[scale_codes] * np.repeat(outer, 256)[:num_blocks] + np.float32(0.25)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
            tensors |= {
                "weight.absmax": torch.from_numpy(scale_codes),
                "weight.nested_absmax": torch.from_numpy(outer),
                "weight.nested_quant_map": torch.from_numpy(scale_table),
            }
        else:
            scales = rng.uniform(0.01, 1, num_blocks).astype(np.float32)
            tensors["weight.absmax"] = torch.from_numpy(scales)
        packed = [first << 4 | second for first, second in codes.reshape(-1, 2).tolist()]
        tensors["weight"] = torch.tensor(packed, dtype=torch.uint8).reshape(-1, 1)
        text = json.dumps(state).encode()
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
        values = (table[codes].reshape(-1, block) * scales[:, None]).reshape(num_rows, num_columns)
        return Written(tensors, values, {"quant_method": "bitsandbytes", "load_in_4bit": True})

    return write


def torchao(group=None) -> Writer:
    def write(rng, num_rows, num_columns):
        written = int_quantized(group, symmetric=group is None)(rng, num_rows, num_columns)
        zeros = torch.zeros(written.tensors["weight_scale"].shape, dtype=torch.int8)
        tensors = {
            "_weight_qdata": written.tensors["weight"],
            "_weight_scale": written.tensors["weight_scale"].float(),
            "_weight_zero_point": written.tensors.get("weight_zero_point", zeros),
        }
        return Written(tensors, written.values, torchao_config("Int8WeightOnlyConfig"))

    return write


def torchao_fp8(granularity="row") -> Writer:
    def write(rng, num_rows, num_columns):
        written = fp8(granularity)(rng, num_rows, num_columns)
        scale = written.tensors["weight_scale"]
        tensors = {
            "_weight_qdata": written.tensors["weight"],
            "_weight_scale": scale if scale.ndim else scale.reshape(1, 1),
        }
        return Written(tensors, written.values, torchao_config("Float8WeightOnlyConfig"))

    return write


def torchao_int4(group, *, tiled=False) -> Writer:
    """Values are `code * scale + zero` with codes from -8 to 7."""

    def write(rng, num_rows, num_columns):
        rows = -(-num_rows // 8) * 8 if tiled else num_rows
        columns = -(-num_columns // 1024) * 1024 if tiled else num_columns
        codes = rng.integers(-8, 8, (rows, columns))
        scales = torch.from_numpy(rng.uniform(0.001, 0.02, (rows, columns // group))).bfloat16()
        zeros = (scales * torch.from_numpy(rng.uniform(-7, 7, scales.shape))).bfloat16()
        each = [np.repeat(numbers.float().numpy(), group, axis=1) for numbers in (scales, zeros)]
        values = (codes * each[0] + each[1])[:num_rows, :num_columns].astype(np.float32)
        if tiled:
            pairs = torch.stack([scales.T, zeros.T], dim=-1).contiguous()
            tensors = {"_weight_qdata": tensor_core_words(codes + 8), "_weight_scale_and_zero": pairs}
        else:
            packed = (codes[:, ::2] & 15 | codes[:, 1::2] << 4).astype(np.int8)
            tensors = {"_weight_qdata": torch.from_numpy(packed), "_weight_scale": scales.T.contiguous()}
            tensors["_weight_zero_point"] = zeros.T.contiguous()
        packing = {"_type": "Int4PackingFormat", "_data": "TILE_PACKED_TO_4D" if tiled else "PLAIN"}
        config = torchao_config("Int4WeightOnlyConfig", group_size=group, int4_packing_format=packing)
        return Written(tensors, values, config)

    return write


def tensor_core_words(codes):
    """Pack word by word as `_convert_weight_to_int4pack` does with eight inner tiles of 16 columns."""
    rows, columns = codes.shape
    words = np.zeros((rows // 8, columns // 128, 32, 4), np.uint32)
    for tile, outer, lane, inner in np.ndindex(*words.shape):
        first = outer * 128 + inner * 32 + lane % 4 * 2
        numbers = codes[tile * 8 + lane // 4]
        low_to_high = [0, 8, 16, 24, 1, 9, 17, 25]
        words[tile, outer, lane, inner] = sum(int(numbers[first + k]) << 4 * i for i, k in enumerate(low_to_high))
    return torch.from_numpy(words.view(np.int32))


def torchao_config(kind, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_version": 2, "_data": data}}}


def hqq(bits=4, group=64, **changes) -> Writer:
    """A group in a row of `W_q`; 4 bits: the first half of the groups in the high nibbles."""

    def write(rng, num_rows, num_columns):
        num_groups = num_rows * num_columns // group
        codes = rng.integers(0, 2**bits, (num_groups, group)).astype(np.uint8)
        scales = torch.from_numpy(rng.uniform(0.001, 0.02, (num_groups, 1))).half()
        zeros = torch.from_numpy(rng.uniform(0, 2**bits - 1, (num_groups, 1))).half()
        values = (codes - zeros.float().numpy()) * scales.float().numpy()
        packed = codes if bits == 8 else codes[: num_groups // 2] << 4 | codes[num_groups // 2 :]
        weights = {"nbits": bits, "group_size": group, "axis": 1, "view_as_float": False} | changes
        config = {"quant_method": "hqq", "quant_config": {"weight_quant_params": weights, "scale_quant_params": None}}
        tensors = {"W_q": torch.from_numpy(packed), "scale": scales, "zero": zeros}
        return Written(tensors, values.reshape(num_rows, num_columns).astype(np.float32), config)

    return write


def bitnet(*, auto=False) -> Writer:
    """Codes of four quarters of the rows in a byte, from the lowest bits up."""

    def write(rng, num_rows, num_columns):
        codes = rng.integers(0, 3, (num_rows, num_columns)).astype(np.uint8)
        scale = torch.tensor([rng.uniform(20, 60)], dtype=torch.bfloat16)
        factor = scale / 4096 if auto else 1 / scale.float()
        quarters = codes.reshape(4, num_rows // 4, num_columns)
        packed = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
        tensors = {"weight": torch.from_numpy(packed), "weight_scale": factor if auto else scale}
        config = {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}
        config |= {"linear_class": "autobitlinear"} if auto else {}
        return Written(tensors, (codes.astype(np.float32) - 1) * factor.float().numpy(), config)

    return write


FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def low_first(codes):
    pairs = codes.reshape(len(codes), -1, 2)
    return torch.from_numpy((pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8))


def mxfp4(rng, num_rows, num_columns):
    codes = rng.integers(0, 16, (num_rows, num_columns))
    exponents = rng.integers(110, 125, (num_rows, num_columns // 32))
    values = np.array(FP4, np.float32)[codes] * np.repeat(2.0 ** (exponents - 127.0), 32, axis=1)
    tensors = {"weight_packed": low_first(codes), "weight_scale": torch.from_numpy(exponents.astype(np.uint8))}
    return Written(tensors, values.astype(np.float32), compressed_config("mxfp4-pack-quantized", num_bits=4))


def nvfp4(*, modelopt=False) -> Writer:
    def write(rng, num_rows, num_columns):
        codes = rng.integers(0, 16, (num_rows, num_columns))
        scales = torch.from_numpy(rng.uniform(1, 400, (num_rows, num_columns // 16))).to(torch.float8_e4m3fn)
        factor = np.float32(2**-12)
        each = np.repeat(scales.float().numpy() * factor, 16, axis=1)
        values = np.array(FP4, np.float32)[codes] * each
        if modelopt:
            last = {"weight": low_first(codes), "weight_scale_2": torch.tensor(factor)}
            config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        else:
            last = {"weight_packed": low_first(codes), "weight_global_scale": torch.tensor([1 / factor])}
            config = compressed_config("nvfp4-pack-quantized", num_bits=4)
        return Written({**last, "weight_scale": scales}, values, config)

    return write
