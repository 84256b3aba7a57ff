"""
The files of a Hugging Face folder besides its weights: config, tokenizer, chat template, generation defaults.

A GGUF file has no `config.json`: it is written from the `ModelSpec` (the keys of every family are supported), read
back, and must yield the same spec. A folder is built under a temporary name beside its target, and renamed when it is
complete.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.core.errors import BrokenModel, SettingsError, UnsupportedModel
from headrace.inference.models.families.registry import NESTED, family_of, from_config, text_part
from headrace.inference.models.fields import Fields
from headrace.inference.models.model import Model
from headrace.inference.models.spec import ModelSpec
from headrace_handler.stray_files import is_stray, listed

_COPIED: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.tiktoken",
    "tiktoken.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
    "LICENSE*",
    "NOTICE*",
)
"""Files that are copied unchanged from the folder of a model."""
_PLAIN_NAME: Final = re.compile(r"[\w.-]{1,100}")
_TEXT_ARCHITECTURES: Final = {
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
}
"""Text parts that transformers loads alone; those of Qwen VL have no class of their own, but are Qwen 2 and 3."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """
    Yield an empty folder that becomes `target` when the block succeeds and is deleted when it fails.

    Raises `SettingsError` if `target` exists and is not an empty folder.
    """
    check_is_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield building
        building.chmod(0o755)
        building.replace(target)
    except BaseException as error:
        shutil.rmtree(building, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            error.filename = str(target)
        raise


def check_is_free(target: Path) -> None:
    """Refuse a target that exists, unless it is an empty folder."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise SettingsError(f"{target} already exists. Name a folder that is new or empty.", path=str(target))


def export_files(model: Model, folder: Path, changes: Mapping[str, object]) -> None:
    """
    Write everything but the weights; `changes` override values of `config.json`.

    Raises:
        UnsupportedModel: the network cannot be described by a `config.json`.
        BrokenModel: a chat template has a name that a file cannot have.
    """
    if model.path.is_dir():
        config = _text_config(model)
        for path in listed(model.path, _COPIED):
            if path.is_dir():
                shutil.copytree(path, folder / path.name, ignore=lambda _, names: filter(is_stray, names))
            else:
                shutil.copyfile(path, folder / path.name)
    else:
        config = config_from_spec(model.spec) | _token_ids(model)
        _write_tokenizer(model, folder)
    _write_generation_config(model, folder / "generation_config.json")
    _write_json(folder / "config.json", {**{key: value for key, value in config.items() if key != "dtype"}, **changes})


def _text_config(model: Model) -> dict[str, object]:
    """Return the config of a folder; of a vision-language model that of the text part, which alone is written."""
    file = model.path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    if config.get("model_type") not in NESTED:
        return dict(config)
    part = text_part(Fields(config, str(file)))
    architecture = _TEXT_ARCHITECTURES.get(part.text("model_type"))
    if architecture is None:
        return config_from_spec(model.spec) | _token_ids(model)
    return {**part.values, "architectures": [architecture]}


def _write_tokenizer(model: Model, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", model.tokenizer.to_config(max_tokens=model.spec.max_positions))
    for name, text in (model.chat_template.templates if model.chat_template else {}).items():
        path = folder / "chat_template.jinja"
        if not _PLAIN_NAME.fullmatch(name):  # it comes from the file, and would name a file elsewhere
            raise BrokenModel(
                f"{model.path} has a chat template named {name!r:.100}; expected letters, digits, '.', '_' and '-'."
            )
        if name != "default":
            path = folder / "additional_chat_templates" / f"{name}.jinja"
            path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _write_generation_config(model: Model, path: Path) -> None:
    """Write the sampling that is known by the model's name, which the folder loses, unless the file names one."""
    values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else _token_ids(model)
    sampling = model.defaults.sampling.values()
    if not path.exists() or sampling.keys() - values.keys():
        _write_json(path, values | ({"do_sample": True} | sampling if sampling else {}))


def _token_ids(model: Model) -> dict[str, object]:
    ends = sorted(model.tokenizer.eos_token_ids)
    values = {
        "bos_token_id": model.tokenizer.bos_token_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    return {key: value for key, value in values.items() if value is not None}


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


def config_from_spec(spec: ModelSpec) -> dict[str, object]:
    """Return the config of a network; raises `UnsupportedModel` if a config.json cannot describe it."""
    family = family_of(spec)
    config = {"architectures": [_ARCHITECTURES.get(spec.family, "")], "model_type": family.model_types[0]}
    values: dict[str, object] = config | _sizes(spec) | _rope(spec) | _windows(spec)
    if spec.family == "gemma3":
        scalar = spec.attention_scale**-2
        values |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 * scalar else scalar,
            "attention_bias": False,
        }
    else:
        values |= {"hidden_act": "silu", "attention_bias": spec.qkv_bias and spec.family != "qwen2"}
    _, again = from_config(Fields(values, "the config.json to be written"))
    if _without_rounding(again) != _without_rounding(spec):
        raise UnsupportedModel(
            f"A config.json of the family {spec.family} cannot describe this network, so it cannot be written as a "
            "Hugging Face folder. Use its original checkpoint, if this is a GGUF file, or serve it with --dtype w8a8.",
            family=spec.family,
        )
    return values


def _sizes(spec: ModelSpec) -> dict[str, object]:
    rope = spec.ropes[0]
    stretched = rope.kind in {"linear", "dynamic"} and spec.family != "gemma3"
    return {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": round(spec.max_positions / rope.factor) if stretched else spec.max_positions,
        "rms_norm_eps": _shortest(spec.norm_eps),
        "tie_word_embeddings": spec.tie_embeddings,
    }


def _rope(spec: ModelSpec) -> dict[str, object]:
    rope, *local = spec.ropes
    values: dict[str, object] = {"rope_theta": rope.theta}
    scaling: dict[str, object] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_positions,
        }
    if rope.kind != "default":
        values["rope_scaling"] = scaling
    if local:
        values["rope_local_base_freq"] = local[0].theta
    return values


def _windows(spec: ModelSpec) -> dict[str, object]:
    sliding = [window for window in spec.windows if window]
    if not sliding:
        return {"sliding_window": None} if spec.family == "mistral" else {}
    values: dict[str, object] = {"sliding_window": sliding[0]}
    if spec.family != "mistral":
        values["layer_types"] = [
            "sliding_attention" if spec.window(layer) else "full_attention" for layer in range(spec.num_layers)
        ]
    return values | ({"use_sliding_window": True} if spec.family.startswith("qwen") else {})


def _without_rounding(spec: ModelSpec) -> ModelSpec:
    """Return the spec without the fields that GGUF files hold in lower precision, or not at all."""
    ropes = [
        replace(rope, original_max_positions=0) if rope.kind in {"linear", "dynamic"} else rope for rope in spec.ropes
    ]
    return replace(
        spec,
        norm_eps=_shortest(spec.norm_eps),
        attention_scale=round(spec.attention_scale, 9),
        ropes=tuple(ropes),
    )


def _shortest(value: float) -> float:
    """Return the shortest decimal of a float32 (GGUF files hold those): 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")
