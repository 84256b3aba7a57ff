"""Write the GGUF file of a BERT folder, with the names and the vocabulary of llama.cpp's converter."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

_SPECIAL = {"bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
_MEAN = gguf.PoolingType.MEAN


def write_gguf(folder: Path, target: Path) -> Path:
    """Write the network of a folder in float32, pooled by the mean, and return the file."""
    config = json.loads((folder / "config.json").read_text())
    architecture = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.BERT]
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(_MEAN)
    writer.add_token_type_count(config["type_vocab_size"])
    _add_vocabulary(writer, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, values in load_file(folder / "model.safetensors").items():
        stored = names.get_name(name.removeprefix("bert."), try_suffixes=(".weight", ".bias"))
        if stored is not None and not stored.startswith("cls"):
            writer.add_tensor(stored, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Add the WordPiece vocabulary: a space precedes words, and the pieces that go on lose their `##`."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    special = set(_SPECIAL.values())
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([_stored(piece, special) for piece in pieces])
    kinds = [gguf.TokenType.CONTROL if piece in special else gguf.TokenType.NORMAL for piece in pieces]
    writer.add_token_types(kinds)
    for name, piece in _SPECIAL.items():
        if piece not in vocabulary:
            continue
        getattr(writer, f"add_{name}_token_id")(vocabulary[piece])


def _stored(piece: str, special: set[str]) -> str:
    if piece in special:
        return piece
    return piece[2:] if piece.startswith("##") else f"\u2581{piece}"
