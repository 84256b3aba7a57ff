"""Files of checkpoints: configs, safetensors, GGUF, pickles of torch, adapters."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from safetensors.numpy import save

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_config, read_generation_config
from headrace.inference.models.loading import load_model
from headrace.inference.models.peft_adapter import read_peft_adapter
from headrace.inference.models.pickle_file import run_pickle
from headrace.inference.models.places import folder_places, gguf_name, stored_name
from headrace.inference.models.quantized.registry import find_quantized, promised_format, refuse_other_quantization
from headrace.inference.models.sentence_transformers import read_pooler
from headrace.inference.models.weight_files import open_folder
from tests.fuzz.target import Target
from tests.fuzz.targets.archives import scene
from tests.inference.models.adapter_files import CONFIG, random_tensors
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    write_folder,
    write_gguf,
)
from tests.inference.models.test_fuzzed_checkpoints import KEYS, TYPES

_REFUSALS = (BrokenModel, UnsupportedModel)
_MATRIX = (32, 64)


@cache
def _spec():
    return from_config(Fields(TINY_LLAMA, ""))


def _config(data):
    """A `config.json` is a network, or refused by the name of the file."""
    folder = scene("config")
    (folder / "config.json").write_bytes(data)
    try:
        config = read_config(folder)
        read_pooler(folder, config)
        family, spec = from_config(config)
        folder_places(family, spec)
    except _REFUSALS as error:
        assert "config.json" in str(error), error  # noqa: PT017
        raise


def _params(data):
    folder = scene("params")
    (folder / "params.json").write_bytes(data)
    from_config(read_config(folder))


def _generation_config(data):
    folder = scene("generation")
    (folder / "generation_config.json").write_bytes(data)
    read_generation_config(folder)


def _modules(data):
    """The JSON files of Sentence Transformers, one per line."""
    folder = scene("modules")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json")
    for name, content in zip(names, data.split(b"\n"), strict=False):
        (folder / name).write_bytes(content)
    read_pooler(folder, Fields(TINY_LLAMA, "config.json"))


def _weights(file: str) -> Callable[[bytes], object]:
    """Read all tensors of one file, as a folder holds it."""

    def check(data):
        folder = scene(file)
        (folder / file).write_bytes(data)
        tensors, _ = open_folder(folder)
        for tensor in tensors.values():
            tensor.data.tobytes()

    return check


def _gguf(data):
    """A GGUF file with its weights and tokenizer."""
    path = scene("gguf") / "m.gguf"
    path.write_bytes(data)
    model = load_model(str(path))
    for name in model.weights.names():
        model.weights.load(name)
    model.tokenizer.encode("The quick brown fox")


def _adapter(data):
    """PEFT's config on the first line, then its weights."""
    config, _, weights = data.partition(b"\n")
    folder = scene("adapter")
    (folder / "adapter_config.json").write_bytes(config)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    read_peft_adapter(folder, _spec()[1], max_rank=64)


def _quantized(data):
    """A `quantization_config` on the first line, then the tensors of one matrix."""
    config, _, weights = data.partition(b"\n")
    folder = scene("quantized")
    (folder / "config.json").write_bytes(b'{"quantization_config": ' + config + b"}")
    (folder / "model.safetensors").write_bytes(weights)
    fields = read_config(folder)
    promised_format(fields)
    refuse_other_quantization(fields)
    tensors, _ = open_folder(folder)
    found = find_quantized(tensors, "m.weight", _MATRIX, fields.sub("quantization_config"))
    if found is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # a scale of any bits may be infinite, or nearly
            assert decode(found.load()).shape == _MATRIX


def _quantized_seeds() -> Mapping[str, bytes]:
    from safetensors.torch import save as save_torch

    from tests.inference.models.quantized.test_formats import CASES

    made = {}
    for name, (writer, *_) in CASES.items():
        written = writer(np.random.default_rng(0), *_MATRIX)
        tensors = {f"m.{part}": tensor.contiguous() for part, tensor in written.tensors.items()}
        made[name] = json.dumps(written.config).encode() + b"\n" + save_torch(tensors)
    return made


def _index(data):
    """The list of a checkpoint's files, two of which exist."""
    folder = scene("index")
    (folder / "model.safetensors.index.json").write_bytes(data)
    for tensor in ("a", "b"):
        (folder / f"{tensor}.safetensors").write_bytes(save({tensor: np.ones(2, np.float32)}))
    tensors, _ = open_folder(folder)
    assert {*tensors} <= {"a", "b"}


def _safetensors_seeds() -> Mapping[str, bytes]:
    made = write_folder(
        scene("seeds") / "st", TINY_LLAMA, {"a": _tensors()["model.norm.weight"], "b": _tensors()["lm_head.weight"]}
    )
    content = (made / "model.safetensors").read_bytes()
    shutil.rmtree(made)
    return {"two": content}


@cache
def _tensors():
    family, spec = _spec()
    return {stored_name(name, family.tensors): values for name, values in random_weights(spec).items()}


def _gguf_seeds() -> Mapping[str, bytes]:
    _, spec = _spec()
    tensors = {gguf_name(name): values for name, values in random_weights(spec).items()}
    metadata = gguf_metadata(spec) | gguf_vocabulary(byte_level_tokenizer())
    path = write_gguf(scene("seeds") / "seed.gguf", metadata, tensors)
    content = path.read_bytes()
    header = write_gguf(path, metadata, {}).read_bytes()
    return {"whole": content, "header": header}


def _pickle_seeds() -> Mapping[str, bytes]:
    import torch  # takes seconds, which only this target needs

    out = io.BytesIO()
    state = {
        "state_dict": {"a": torch.ones(2, 3), "b": torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))},
        "n": 1,
    }
    torch.save(state, out)
    return {"saved": out.getvalue()}


def _program_seeds() -> Mapping[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(_pickle_seeds()["saved"])) as archive:
        return {"program": archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))}


def _adapter_seeds() -> Mapping[str, bytes]:
    return {"one": json.dumps(CONFIG).encode() + b"\n" + save(random_tensors(_spec()[1]))}


_CONFIG_WORDS = tuple(name.encode() for name in (*KEYS, *TYPES))
_MODULES = [
    [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
    {"prompts": {"query": "Q: "}, "default_prompt_name": "query"},
    {"max_seq_length": 64},
]

TARGETS = (
    Target(
        "config-json",
        _config,
        _REFUSALS,
        lambda: {kind: json.dumps(TINY_LLAMA | {"model_type": kind}).encode() for kind in TYPES},
        words=_CONFIG_WORDS,
        is_json=True,
    ),
    Target("params-json", _params, _REFUSALS, words=_CONFIG_WORDS, is_json=True, suite_cases=400),
    Target("generation-config", _generation_config, _REFUSALS, is_json=True, suite_cases=400),
    Target(
        "sentence-transformers",
        _modules,
        _REFUSALS,
        lambda: {"all": b"\n".join(json.dumps(part).encode() for part in _MODULES)},
        words=(b"Normalize", b"Dense", b"pooling_mode_cls_token", b"\n", b"null"),
        suite_cases=300,
    ),
    Target(
        "safetensors",
        _weights("model.safetensors"),
        _REFUSALS,
        _safetensors_seeds,
        words=(b'"BF16"', b'"F4"', b'"shape":[', b'"data_offsets":[', b"18446744073709551615", b"-1", b"1e3", b"true"),
    ),
    Target("gguf", _gguf, _REFUSALS, _gguf_seeds, suite_cases=200, limit_s=4),
    Target(
        "torch-file",
        _weights("pytorch_model.bin"),
        _REFUSALS,
        _pickle_seeds,
        words=(b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"data.pkl", b"\xff\xff\xff\xff", b"cposix\nsystem\n"),
    ),
    Target(
        "torch-pickle",
        lambda data: run_pickle(data, "data.pkl"),
        _REFUSALS,
        _program_seeds,
        words=(
            b"cos\nsystem\n",
            b"\x8c\x02os\x93",
            b"R",
            b"b",
            b"}",
            b"]",
            b"(",
            b"t",
            b"Q",
            b"q\x00",
            b"h\x00",
            b"0",
            b"2",
        ),
        suite_cases=2000,
    ),
    Target(
        "adapter-files", _adapter, _REFUSALS, _adapter_seeds, words=(b'"rank_pattern"', b'"use_dora"'), suite_cases=300
    ),
    Target(
        "quantized",
        _quantized,
        _REFUSALS,
        _quantized_seeds,
        words=(
            *(
                b'"desc_act": true',
                b'"bits": ',
                b'"group_size": ',
                b'"quant_method": ',
                b'"I32"',
                b'"shape":[',
                b"1e400",
            ),
            *(
                b"m.g_idx",
                b"m.qzeros",
                b"m.weight_scale",
                b"config_groups",
                b"weight_block_size",
                b"\x00\x7c",
                b"\xff\xff",
            ),
        ),
        suite_cases=300,
    ),
    Target(
        "weight-index",
        _index,
        _REFUSALS,
        lambda: {"two": b'{"metadata": {}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}'},
        words=(b"../", b"/etc/passwd", b"\\u0000", b"a" * 300, b'"weight_map"', b"."),
        is_json=True,
        suite_cases=200,
    ),
)
