"""
The pooling of a folder: modules of sentence-transformers, or the head of a classifier or reranker.

Source: sentence-transformers `models/Pooling.py`, `models/Dense.py`; transformers `*ForSequenceClassification`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.core.generation import PoolingMethod
from headrace.inference.models.fields import Fields, read_whole
from headrace.inference.models.pooling import ACTIVATIONS, DenseLayer, Float32, NormLayer, Pooler
from headrace.inference.models.stored_tensor import TensorFiles
from headrace.inference.models.weight_files import open_folder

_METHODS: Final[Mapping[str, PoolingMethod]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_MODE_NAMES: Final[Mapping[str, PoolingMethod]] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_HEAD: Final = "ForSequenceClassification"
_WITHOUT_LM_HEAD: Final = (_HEAD, "Model", "ForTokenClassification")
"""Suffixes of architectures without an LM head; `GPT2LMHeadModel` has one."""
_MAX_LABELS: Final = 10_000
_HEADS: Final[tuple[tuple[PoolingMethod, tuple[tuple[str, str], ...]], ...]] = (
    ("last", (("score", "identity"),)),
    ("cls", (("classifier.dense", "tanh"), ("classifier.out_proj", "identity"))),
    ("cls", (("bert.pooler.dense", "tanh"), ("classifier", "identity"))),
)
"""Heads of decoders, of RoBERTa and XLM-RoBERTa, and of BERT: layers with their activations."""
_Head = tuple[PoolingMethod, tuple[DenseLayer | NormLayer, ...]]
_MODERNBERT_HEAD: Final = ("head.dense", "head.norm", "classifier")


def read_pooler(folder: Path, config: Fields) -> Pooler | None:
    """Return the pooling that a folder's files describe, or None; raises `BrokenModel` or `UnsupportedModel`."""
    if (folder / "modules.json").is_file():
        return _read_modules(folder)
    if any(name.endswith(_HEAD) for name in config.texts("architectures")):
        return _read_head(folder, config)
    return None


def has_lm_head(config: Fields) -> bool:
    """Return whether a checkpoint can generate: those of bare networks and classifiers have no LM head."""
    names = config.texts("architectures")
    return not names or not all(name.endswith(_WITHOUT_LM_HEAD) and "LMHead" not in name for name in names)


def _read_modules(folder: Path) -> Pooler:
    method: PoolingMethod | None = None
    layers: list[DenseLayer] = []
    normalizes = False
    for module in _modules(folder):
        kind, path = module.text("type").rpartition(".")[2], folder / module.text("path", "")
        if kind == "Pooling":
            method = _pooling_method(path)
        elif kind == "Dense":
            layers.append(_dense(path))
        elif kind == "Normalize":
            normalizes = True
        elif kind != "Transformer":
            raise UnsupportedModel(f"{module.source}: modules of type {kind} are not supported.")
    if method is None:
        raise BrokenModel(f"{folder / 'modules.json'} has no module of type Pooling.")
    texts = _fields(folder / "config_sentence_transformers.json", is_required=False)
    prompts = {name: text for name, text in texts.sub("prompts").values.items() if isinstance(text, str)}
    lengths = _fields(folder / "sentence_bert_config.json", is_required=False)
    return Pooler(
        method=method,
        layers=tuple(layers),
        normalizes=normalizes,
        prompts=prompts,
        default_prompt=prompts.get(texts.text("default_prompt_name", ""), ""),
        max_tokens=lengths.whole("max_seq_length", 0, minimum=0),
    )


def _modules(folder: Path) -> list[Fields]:
    path = folder / "modules.json"
    modules = _json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BrokenModel(f"{path} must contain a list of modules.", path=str(path))
    for module in modules:
        inner = Path(str(module.get("path") or ""))
        if inner.is_absolute() or ".." in inner.parts:
            raise BrokenModel(f"{path} names a module outside its folder: {inner}.", path=str(path))
    return [Fields(module, str(path)) for module in modules]


def _pooling_method(folder: Path) -> PoolingMethod:
    config = _fields(folder / "config.json")
    if config.has("pooling_mode"):
        mode = config.text("pooling_mode")
        modes = [_MODE_NAMES[mode]] if mode in _MODE_NAMES else []
    else:
        on = [key for key, value in config.values.items() if key.startswith("pooling_mode_") and value is True]
        modes = [_METHODS[key] for key in on if key in _METHODS] if len(on) == 1 else []
        mode = ", ".join(on) or "none"
    if not modes:
        raise UnsupportedModel(f"{config.source}: the pooling is {mode}; expected one of cls, mean or lasttoken.")
    if not config.flag("include_prompt", default=True):
        raise UnsupportedModel(f"{config.source}: pooling without the prompt (include_prompt) is not supported.")
    return modes[0]


def _dense(folder: Path) -> DenseLayer:
    config = _fields(folder / "config.json")
    activation = config.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{config.source}: the activation {activation} is not supported.")
    tensors, _ = open_folder(folder)
    bias = _tensor(folder, tensors, "linear.bias").reshape(-1) if config.flag("bias", default=True) else None
    return DenseLayer(weight=_tensor(folder, tensors, "linear.weight"), bias=bias, activation=activation)


def _read_head(folder: Path, config: Fields) -> Pooler:
    tensors, _ = open_folder(folder)
    method, layers = _head(folder, tensors, config)
    count = len(layers[-1].weight)
    if count > _MAX_LABELS:
        raise BrokenModel(f"{config.source}: the head has {count} labels; expected at most {_MAX_LABELS}.")
    names = config.sub("id2label").values
    return Pooler(
        method=method,
        layers=layers,
        normalizes=False,
        labels=tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(count)),
        problem_type=str(config.values.get("problem_type") or ""),
    )


def _head(folder: Path, tensors: TensorFiles, config: Fields) -> _Head:
    if all(f"{name}.weight" in tensors for name in _MODERNBERT_HEAD):
        return _modernbert_head(folder, tensors, config)
    for method, parts in _HEADS:
        if all(f"{name}.weight" in tensors for name, _ in parts):
            return method, tuple(_linear(folder, tensors, name, activation) for name, activation in parts)
    raise UnsupportedModel(f"{config.source}: this classification head is not supported.")


def _modernbert_head(folder: Path, tensors: TensorFiles, config: Fields) -> _Head:
    dense, norm, classifier = _MODERNBERT_HEAD
    activation, pooling = config.text("classifier_activation", "gelu"), config.text("classifier_pooling", "cls")
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{config.source}: the activation {activation} is not supported.")
    if pooling not in _MODE_NAMES:
        raise UnsupportedModel(f"{config.source}: classifier_pooling is {pooling}; expected cls or mean.")
    return _MODE_NAMES[pooling], (
        _linear(folder, tensors, dense, activation),
        NormLayer(
            weight=_tensor(folder, tensors, f"{norm}.weight").reshape(-1),
            bias=_bias(folder, tensors, norm),
            eps=config.positive("norm_eps", 1e-5),
        ),
        _linear(folder, tensors, classifier, "identity"),
    )


def _linear(folder: Path, tensors: TensorFiles, name: str, activation: str) -> DenseLayer:
    return DenseLayer(
        weight=_tensor(folder, tensors, f"{name}.weight"), bias=_bias(folder, tensors, name), activation=activation
    )


def _bias(folder: Path, tensors: TensorFiles, name: str) -> Float32 | None:
    name = f"{name}.bias"
    return _tensor(folder, tensors, name).reshape(-1) if name in tensors else None


def _tensor(folder: Path, tensors: TensorFiles, name: str) -> Float32:
    if name not in tensors:
        raise BrokenModel(f"{folder} has no tensor {name}.", tensor=name)
    return np.ascontiguousarray(tensors[name].floats(), np.float32)


def _fields(path: Path, *, is_required: bool = True) -> Fields:
    if not is_required and not path.is_file():
        return Fields({}, str(path))
    values = _json(path)
    if not isinstance(values, dict):
        raise BrokenModel(f"{path} must contain a JSON object.", path=str(path))
    return Fields(values, str(path))


def _json(path: Path) -> object:
    try:
        return json.loads(read_whole(path))
    except (OSError, ValueError, RecursionError) as exc:
        raise BrokenModel(f"{path} is not valid JSON: {exc}.", path=str(path)) from exc
