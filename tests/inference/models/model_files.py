"""Write small checkpoints for tests, with the libraries that write the real ones."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Don't panic, it's 1234567 o'clock!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n\n\tTab and   spaces",
    "日本語のテキスト、絵文字 🦊👩‍👩‍👧 и немного кириллицы",
] * 3

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def byte_level_tokenizer(vocab_size: int = 320) -> Tokenizer:
    """Trained on a few sentences; `<s>` is 0 and `</s>` is 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece_tokenizer(*, prefix: bool = True) -> Tokenizer:
    """Return a vocabulary of letters, a few merges, and byte tokens for everything else."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdé", "ab", "\u2581ab", "ä"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[("a", "b"), ("\u2581", "ab")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "\u2581")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix else spaces
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def vocabulary(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Tokens in the order of their ids, and merges as GGUF writes them."""
    state = json.loads(tokenizer.to_str())
    tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].__getitem__)
    return tokens, [" ".join(merge) for merge in state["model"]["merges"]]


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 by canonical name; vectors are flat."""
    rng = np.random.default_rng(seed)
    shapes = expected_shapes(spec).items()
    return {name: rng.standard_normal(shape[shape[0] == 1 :], dtype=np.float32) for name, shape in shapes}


def write_folder(folder: Path, config: dict, tensors: dict[str, np.ndarray], *, shards: int = 1) -> Path:
    """A Hugging Face folder without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::shards]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def write_gguf(
    path: Path,
    metadata: dict[str, object],
    tensors: dict[str, np.ndarray],
    *,
    architecture: str = "llama",
    types: dict[str, GGMLQuantizationType] | None = None,
) -> Path:
    """A GGUF file made by the `gguf` package; `types` quantizes tensors by name, bytes are blocks already."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, tensor in tensors.items():
        kind = (types or {}).get(name)
        if kind is None:
            writer.add_tensor(name, tensor)
        else:
            blocks = tensor if tensor.dtype == np.uint8 else quants.quantize(tensor, kind)
            writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def gguf_metadata(spec: ModelSpec, architecture: str = "llama") -> dict[str, object]:
    """Return the metadata that a converter writes about a network."""
    return {
        f"{architecture}.block_count": spec.num_layers,
        f"{architecture}.context_length": spec.max_positions,
        f"{architecture}.embedding_length": spec.hidden_size,
        f"{architecture}.feed_forward_length": spec.intermediate_size,
        f"{architecture}.attention.head_count": spec.num_heads,
        f"{architecture}.attention.head_count_kv": spec.num_kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": spec.norm_eps,
        f"{architecture}.rope.freq_base": spec.ropes[0].theta,
    }


def gguf_vocabulary(tokenizer: Tokenizer, **more: object) -> dict[str, object]:
    """The metadata of a byte-level vocabulary."""
    tokens, merges = vocabulary(tokenizer)
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [control if token in {"<s>", "</s>"} else normal for token in tokens],
        "merges": merges,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | more).items()}


def refusal(load: Callable[[], object]) -> str:
    """The text of the error that a file is refused with; empty if it is read. Any other exception fails the test."""
    try:
        load()
    except (BrokenModel, UnsupportedModel) as exc:
        return str(exc)
    return ""
