"""
Make `references/networks` and `references/ropes.npz`: what `transformers` writes and computes for each network.

    python -m tests.parity.references            # all
    python -m tests.parity.references "gemma 4"  # the named networks

Needs torch. `test_references.py` makes the same again and compares.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.pytorch_utils import Conv1D

from headrace.inference.runner.step import Float32
from tests.parity.checkpoints import (
    LONG_TOKENS,
    REFERENCES,
    TOKENS,
    Network,
    TensorKind,
    network_path,
    sample,
    write_checkpoint,
    write_files,
)
from tests.parity.networks import ABSENT, NETWORKS, ORACLES, ROPE_OVERRIDES, SHAPE

CENTERS = {"A_log": 0.0, "dt_bias": -3.0}
TRANSPOSED = (Conv1D, GptOssExperts)
"""Modules whose matrices have the inputs as rows."""


def network_config(model_class: type[PreTrainedModel], values: dict[str, object]) -> PretrainedConfig:
    """Return the config of a network; one that also reads images has the values in `text_config`, or beside it."""
    values = {key: value for key, value in values.items() if value != ABSENT}
    beside: dict[str, Any] = values.pop("beside_text_config", {})
    if "vision_config" not in values:
        return model_class.config_class(**values)
    tied = bool(values.get("tie_word_embeddings"))
    text = {key: value for key, value in values.items() if key != "vision_config"} | {"tie_word_embeddings": tied}
    return model_class.config_class(
        text_config=text, vision_config=values["vision_config"], tie_word_embeddings=tied, **beside
    )


def describe_network(name: str, folder: Path) -> Network:
    """Let `transformers` save a network into a folder, and compute the logits of its weights by name there."""
    network = make_network(*(NETWORKS | ORACLES)[name], folder)
    return Network(network.files, network.tensors, sample(logits_of(load_network(name, folder), TOKENS)))


def make_network(architecture: str, changes: dict[str, object], folder: Path) -> Network:
    """Let `transformers` save a network, replace the weights by those by name, and return it without logits."""
    model_class = getattr(transformers, architecture)
    network = model_class(network_config(model_class, SHAPE | changes)).eval()
    transposed = [path for path, module in network.named_modules() if isinstance(module, TRANSPOSED)]
    network.save_pretrained(folder)
    tensors = {
        tensor: TensorKind(
            values.shape,
            center=center_of(tensor, values),
            is_transposed=values.ndim > 1 and tensor.startswith(tuple(transposed)) if transposed else False,
        )
        for tensor, values in sorted(load_file(folder / "model.safetensors").items())
    }
    described = Network(json_files(folder), tensors, np.empty(0, np.float32))
    write_files(described, folder)
    return described


def center_of(tensor: str, values: Float32) -> float:
    """Return a scalar, or the mean of random values; that of decays lets a state live for tens of tokens."""
    if values.ndim != 1:
        return 0.0 if values.ndim else float(values)
    return CENTERS.get(tensor.rpartition(".")[2], round(float(values.mean())))


def json_files(folder: Path) -> dict[str, dict[str, Any]]:
    files = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    files.pop("tokenizer.json", None)
    return {name: values | {"transformers_version": "5"} for name, values in files.items()}


def torch_network(name: str, folder: Path) -> PreTrainedModel:
    """Write the checkpoint of a network; return it in float32, with the random state of torch reset for the caller."""
    write_checkpoint(name, folder)
    network = load_network(name, folder)
    torch.manual_seed(0)
    return network


def load_network(name: str, folder: Path) -> PreTrainedModel:
    return load_architecture((NETWORKS | ORACLES)[name][0], folder)


def load_architecture(architecture: str, folder: Path) -> PreTrainedModel:
    return getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()


def logits_of(network: PreTrainedModel, tokens: list[int]) -> Float32:
    """Return the logits (T, V) of a prompt."""
    with torch.inference_mode():
        logits: Float32 = network(torch.tensor([tokens])).logits[0].float().numpy()
    return logits


def logits_with_rope(name: str, folder: Path) -> Float32:
    """Return a sample of the logits of a network that was made with other rope parameters."""
    network, parameters = ROPE_OVERRIDES[name]
    own = torch_network(network, folder)
    own.config.rope_parameters = parameters
    changed = type(own)(own.config).eval()
    changed.load_state_dict(own.state_dict())
    return sample(logits_of(changed, LONG_TOKENS))


def store_network(name: str, network: Network) -> None:
    np.savez_compressed(
        network_path(name),
        files=np.frombuffer(json.dumps(network.files).encode(), np.uint8),
        tensors=np.frombuffer(msgspec.json.encode(network.tensors), np.uint8),
        logits=network.logits,
    )


def main() -> None:
    """Write the references of the networks that the arguments name, or all references."""
    for name in sys.argv[1:] or NETWORKS | ORACLES:
        with tempfile.TemporaryDirectory() as folder:
            store_network(name, describe_network(name, Path(folder)))
    if not sys.argv[1:]:
        store_ropes()


def store_ropes() -> None:
    ropes = {}
    for name in ROPE_OVERRIDES:
        with tempfile.TemporaryDirectory() as folder:
            ropes[name] = logits_with_rope(name, Path(folder))
    np.savez_compressed(REFERENCES / "ropes.npz", **ropes)


if __name__ == "__main__":
    main()
