"""
Write a model with the shapes of a known one, fewer layers and random weights: for speed only, its text is noise.

    python -m benchmarks.synthetic.make qwen3-30b-a3b /tmp/q3moe.gguf --layers 4
    python benchmarks/native_step/run.py /tmp/q3moe.gguf --formats w4a8/int8

A name that ends in `.gguf` becomes a GGUF file, whose layers are Q4_0 and whose embedding and LM head are Q8_0; any
other name a Hugging Face folder in bf16 (transformers only). Routers choose all experts equally often.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from benchmarks.synthetic.today import BARE, BYTES, FLOATS, TODAY, VOCAB, Dims, GgufShape, Value, attention, mlp
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.places import stored_name
from headrace.inference.models.safetensors_writer import SafetensorsWriter, encode_floats
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.weights import Encoding

BLOCK = 32
SCALES = {Type.Q4_0: 2.0**-9, Type.Q8_0: 2.0**-11}
BYTES_OF_BLOCK = {Type.Q4_0: 16, Type.Q8_0: 32}
BALANCED = np.array([(low or 8) | (high or 8) << 4 for high in range(16) for low in range(16)], np.uint8)
"""Bytes whose nibbles are 8 on average, the zero of Q4_0: else every weight leans to one side, and so does the text."""
CONTEXT = 32768
EPSILON = 1e-6
END = "<end>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
NOISE_ROWS = 2048
"""Different rows of the random matrices of a folder."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The dimensions of a model; without experts `intermediate` is the width of its MLP, otherwise of an expert."""

    architecture: str
    """Of GGUF files."""
    model_type: str
    """Of Hugging Face folders."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    theta: float
    experts: int = 0
    top_k: int = 0
    qk_norm: bool = False


SHAPES = {
    "smollm2-135m": Shape(
        architecture="llama", model_type="llama", layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3,
        head_dim=64, vocab=49152, theta=1e5,
    ),
    "llama-3.2-1b": Shape(
        architecture="llama", model_type="llama", layers=16, hidden=2048, intermediate=8192, heads=32, kv_heads=8,
        head_dim=64, vocab=128256, theta=5e5,
    ),
    "llama-3.1-8b": Shape(
        architecture="llama", model_type="llama", layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8,
        head_dim=128, vocab=128256, theta=5e5,
    ),
    "mixtral-8x7b": Shape(
        architecture="llama", model_type="mixtral", layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8,
        head_dim=128, vocab=32000, theta=1e6, experts=8, top_k=2,
    ),
    "qwen3-30b-a3b": Shape(
        architecture="qwen3moe", model_type="qwen3_moe", layers=48, hidden=2048, intermediate=768, heads=32, kv_heads=4,
        head_dim=128, vocab=151936, theta=1e6, experts=128, top_k=8, qk_norm=True,
    ),
}  # fmt: skip


def file_of(shape: Shape) -> GgufShape:
    """Return the keys and tensors of a transformer's GGUF file."""
    hidden, queries, keys_width = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def keys(_count: int) -> dict[str, Value]:
        dims: dict[str, Value] = {
            "attention.head_count": shape.heads,
            "attention.head_count_kv": shape.kv_heads,
            "attention.key_length": shape.head_dim,
            "attention.value_length": shape.head_dim,
            "feed_forward_length": shape.intermediate,
            "rope.freq_base": shape.theta,
        }
        moe: dict[str, Value] = {
            "expert_count": shape.experts,
            "expert_used_count": shape.top_k,
            "expert_feed_forward_length": shape.intermediate,
        }
        return dims | moe if shape.experts else dims

    def layer(_index: int, _count: int) -> dict[str, Dims]:
        dims: dict[str, Dims] = {"attn_norm": (hidden,), "ffn_norm": (hidden,)}
        dims |= attention(hidden, queries, keys_width, norm=shape.head_dim if shape.qk_norm else 0)
        if not shape.experts:
            return dims | mlp(hidden, shape.intermediate)
        return (
            dims | {"ffn_gate_inp": (shape.experts, hidden)} | mlp(hidden, shape.intermediate, "_exps", shape.experts)
        )

    def outer(_count: int) -> dict[str, Dims]:
        return {"token_embd": (VOCAB, hidden), "output_norm": (hidden,), "output": (VOCAB, hidden)}

    return GgufShape(
        architecture=shape.architecture,
        layers=shape.layers,
        hidden=hidden,
        vocab=shape.vocab,
        keys=keys,
        layer=layer,
        outer=outer,
        experts=shape.experts,
        top_k=shape.top_k,
    )


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file; `dims` from the outermost, a norm has one."""

    name: str
    dims: tuple[int, ...]
    kind: Type


def tensors_of(shape: GgufShape) -> Iterator[Tensor]:
    """Yield all tensors in the order of the file."""
    for name, dims in shape.outer(shape.layers).items():
        yield _tensor("", name, tuple(shape.vocab if size == VOCAB else size for size in dims))
    for layer in range(shape.layers):
        for name, dims in shape.layer(layer, shape.layers).items():
            yield _tensor(f"blk.{layer}.", name, dims)


def _tensor(prefix: str, name: str, dims: Dims) -> Tensor:
    kind = Type.F32 if len(dims) == 1 or name in FLOATS else Type.Q8_0 if name in BYTES else Type.Q4_0
    has_suffix = name in BARE or name.endswith((".bias", ".scale"))
    return Tensor(prefix + (name if has_suffix else f"{name}.weight"), dims, kind)


def write_gguf(shape: GgufShape, path: Path) -> None:
    """Write a GGUF file; a tensor is in memory only while it is written."""
    tensors = list(tensors_of(shape))
    writer = start_gguf(shape, path, tensors)
    rng = np.random.default_rng(0)
    for tensor in tensors:
        writer.write_tensor_data(blocks_of(tensor, rng, rows=int(np.prod(tensor.dims[:-1], dtype=np.int64))))
    writer.close()


def start_gguf(shape: GgufShape, path: Path, tensors: list[Tensor]) -> gguf.GGUFWriter:
    """Write everything that lies before the data of the tensors."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    add_metadata(writer, shape)
    for tensor in tensors:
        values = blocks_of(tensor, np.random.default_rng(0), rows=1)
        dims = (*tensor.dims[:-1], values.shape[-1])
        num_bytes = int(np.prod(dims)) * values.itemsize
        quantized = tensor.kind if values.dtype == np.uint8 else None
        writer.add_tensor_info(tensor.name, dims, values.dtype, num_bytes, raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def blocks_of(tensor: Tensor, rng: np.random.Generator, *, rows: int) -> npt.NDArray[np.generic]:
    """Return random rows of a tensor: blocks with one scale, or floats."""
    columns = tensor.dims[-1]
    if tensor.kind is Type.F32:
        if 1 in (len(tensor.dims), tensor.dims[0], columns):
            # States fade: the factors of their decay are negative.
            return np.full((*tensor.dims[:-1], columns), -1 if tensor.name.endswith("ssm_a") else 1, np.float32)
        return rng.standard_normal((rows, columns), dtype=np.float32)
    blocks = np.empty((rows, columns // BLOCK, 2 + BYTES_OF_BLOCK[tensor.kind]), np.uint8)
    blocks[:, :, :2] = np.array([SCALES[tensor.kind]], np.float16).view(np.uint8)
    values = np.frombuffer(rng.bytes(blocks[:, :, 2:].size), np.uint8).reshape(blocks[:, :, 2:].shape)
    blocks[:, :, 2:] = BALANCED[values] if tensor.kind is Type.Q4_0 else values
    return blocks.reshape(rows, -1)


def add_metadata(writer: gguf.GGUFWriter, shape: GgufShape) -> None:
    """Add the dimensions, and a vocabulary of bytes and made-up words."""
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_layer_norm_rms_eps(EPSILON)
    for key, value in shape.keys(shape.layers).items():
        _add_key(writer, f"{shape.architecture}.{key}", value)
    tokens = vocabulary(shape.vocab)
    end = tokens.index(END)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if index == end else 1 for index in range(len(tokens))])
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_eos_token_id(end)
    writer.add_chat_template(TEMPLATE)


def _add_key(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def vocabulary(size: int) -> list[str]:
    """Return the byte alphabet of GPT-2, the end, the product of the only merge, and made-up words."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(256 - len(printable))]
    known = [*alphabet, END, alphabet[0] + alphabet[1]]
    return known + [f"<word{index}>" for index in range(size - len(known))]


def write_folder(shape: Shape, folder: Path) -> None:
    """Write a Hugging Face folder; a tensor is in memory only while it is written."""
    folder.mkdir(parents=True)
    config = config_of(shape)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    tokenizer_of(shape).save(str(folder / "tokenizer.json"))
    family, spec = from_config(Fields(config, "config.json"))
    shapes = {stored_name(name, family.tensors): dims for name, dims in expected_shapes(spec).items()}
    plan = {name: ("BF16", dims if dims[0] > 1 else dims[1:]) for name, dims in shapes.items()}
    rng = np.random.default_rng(0)
    with SafetensorsWriter(folder / "model.safetensors", plan) as file:
        for name, (rows, columns) in shapes.items():
            if rows == 1:
                encoded = encode_floats(np.ones(columns, np.float32), Encoding.BF16)
            else:
                encoded = noise(columns, min(rows, NOISE_ROWS))[rng.permutation(rows) % NOISE_ROWS]
            file.write(name, encoded.reshape(-1))


@cache
def noise(columns: int, rows: int) -> npt.NDArray[np.generic]:
    """Return random rows in bf16, which matrices repeat: numbers for 8B would take minutes."""
    values = np.random.default_rng(columns).standard_normal((rows, columns), dtype=np.float32)
    return encode_floats(values * np.float32(columns**-0.5), Encoding.BF16).reshape(rows, -1)


def config_of(shape: Shape) -> dict[str, object]:
    config: dict[str, object] = {
        "model_type": shape.model_type,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": shape.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": vocabulary(shape.vocab).index(END),
    }
    if not shape.experts:
        return config
    return config | {
        "num_local_experts" if shape.model_type == "mixtral" else "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.intermediate,
        "norm_topk_prob": True,
    }


def tokenizer_of(shape: Shape) -> Tokenizer:
    """Return a tokenizer of bytes with one merge."""
    tokens = vocabulary(shape.vocab)
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, [(tokens[0], tokens[1])]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*SHAPES, *TODAY])
    parser.add_argument("path", type=Path, help="the new file, or the new folder")
    parser.add_argument("--layers", type=int, help="fewer than the model has, where memory or patience is short")
    arguments = parser.parse_args()
    if arguments.path.suffix == ".gguf":
        file = gguf_shape(arguments.shape)
        write_gguf(replace(file, layers=arguments.layers or file.layers), arguments.path)
    elif arguments.shape in SHAPES:
        shape = SHAPES[arguments.shape]
        write_folder(replace(shape, layers=arguments.layers or shape.layers), arguments.path)
    else:
        parser.error(f"{arguments.shape} can be a GGUF file only: give a path that ends in .gguf")


def gguf_shape(name: str) -> GgufShape:
    """Return the file of a known model."""
    return TODAY[name] if name in TODAY else file_of(SHAPES[name])


if __name__ == "__main__":
    main()
