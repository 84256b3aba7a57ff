"""
Read a LoRA adapter from the folder that PEFT's `save_pretrained` writes.

The names of the tensors say which modules are adapted; `places` says which rows of them each canonical weight has, so
adapters of fused and rotary-permuted matrices need no code of their own.
`adapter_config.json` has ranks and scales of the matrices; what is not LoRA is refused.
Source: PEFT `utils/save_and_load.py`, `tuners/lora/config.py`, `tuners/lora/layer.py` (scales), `utils/other.py`
(`get_pattern_key`).
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.adapter import Adapter, Float32, LowRank, is_adaptable
from headrace.inference.models.families.registry import family_of
from headrace.inference.models.fields import Fields, json_fields, read_whole
from headrace.inference.models.places import Place, folder_places
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.stored_tensor import StoredTensor, TensorFiles
from headrace.inference.models.weight_files import open_files

_NEUTRAL_INITS: Final = (True, False, "gaussian", "eva", "orthogonal")
"""Initialisations that leave the base model as it is; pissa, olora, loftq and corda change it."""
_CONVERT: Final = "save it with PEFT's path_initial_model_for_weight_conversion"
_PLAIN_KEY: Final = re.compile(r"[\w.\-]+", re.ASCII)
_QUANTIFIED_GROUP: Final = re.compile(r"\)[*+?{]")
_UNBOUNDED: Final = re.compile(r"[*+]|(?<![(*+}])\?|\{\d*,\d*\}")
_MAX_PATTERN_CHARACTERS: Final = 500
_MAX_UNBOUNDED: Final = 3
"""Unbounded quantifiers of a pattern. More, or a repeated group, could match for hours: patterns come from the file."""
_MAX_PATTERNS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """The values of a PEFT config that decide the size and the scale of each matrix."""

    source: str
    rank: int
    alpha: float
    divides_by_root: bool
    """The scale is alpha / sqrt(rank) (rsLoRA) instead of alpha / rank."""
    rank_pattern: Mapping[str, float]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module, by its name without the prefixes of PEFT."""
        return int(_matched(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        rank, alpha = self.rank_of(module), _matched(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.divides_by_root else rank)


def read_peft_config(config: Fields) -> PeftConfig:
    """Read a config and refuse what Headrace does not apply; raises `BrokenModel` or `UnsupportedModel`."""
    kind = config.text("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{config.source}: peft_type is {kind!r:.100}; expected LORA.", peft_type=kind)
    config.refuse("use_dora", "DoRA", unless=(False,))
    config.refuse("bias", "training of biases", unless=("none",))
    config.refuse("lora_bias", "a bias in LoRA's matrices", unless=(False,))
    config.refuse("modules_to_save", "replacing whole modules", unless=([],))
    config.refuse("trainable_token_indices", "replacing the embeddings of tokens", unless=([], {}))
    config.refuse("target_parameters", "adapting stacked experts", unless=([],))
    config.refuse("layer_replication", "replicating layers", unless=([],))
    config.refuse("use_qalora", "QA-LoRA", unless=(False,))
    config.refuse("alora_invocation_tokens", "activating an adapter in the middle of a prompt (aLoRA)", unless=([],))
    init = config.values.get("init_lora_weights", True)
    if init is not None and not any(init is value or init == value for value in _NEUTRAL_INITS):
        raise UnsupportedModel(
            f"{config.source}: init_lora_weights is {init!r:.100}, which changes the base model; {_CONVERT}.",
            init_lora_weights=init,
        )
    return PeftConfig(
        source=config.source,
        rank=config.whole("r"),
        alpha=config.number("lora_alpha"),
        divides_by_root=config.flag("use_rslora", default=False),
        rank_pattern=_patterns(config, "rank_pattern"),
        alpha_pattern=_patterns(config, "alpha_pattern"),
    )


def _patterns(config: Fields, key: str) -> dict[str, float]:
    values = config.sub(key)
    if len(values.values) > _MAX_PATTERNS:
        raise BrokenModel(f"{config.source}: {key} has {len(values.values)} entries; expected at most {_MAX_PATTERNS}.")
    patterns = {}
    for pattern in values.values:
        _check_pattern(f"{config.source}, {key}", pattern)
        patterns[pattern] = float(values.whole(pattern)) if key == "rank_pattern" else values.number(pattern)
    return patterns


def _check_pattern(source: str, pattern: str) -> None:
    if _PLAIN_KEY.fullmatch(pattern):
        return
    if (
        len(pattern) > _MAX_PATTERN_CHARACTERS
        or _QUANTIFIED_GROUP.search(pattern)
        or len(_UNBOUNDED.findall(pattern)) > _MAX_UNBOUNDED
    ):
        raise UnsupportedModel(
            f"{source}: the pattern {pattern!r:.200} is not supported; expected at most {_MAX_PATTERN_CHARACTERS} "
            f"characters, {_MAX_UNBOUNDED} of *, + and ?, and no repeated group."
        )
    try:
        re.compile(pattern)
    except re.error as exc:
        raise BrokenModel(f"{source}: {pattern!r:.200} is not a regular expression: {exc}.") from exc


def _matched(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first pattern that matches the end of a module's name."""
    for pattern, value in patterns.items():
        if _PLAIN_KEY.fullmatch(pattern):
            is_match = f".{module}".endswith(f".{pattern}")
        else:
            is_match = re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module) is not None
        if is_match:
            return value
    return default


CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX: Final = "base_model.model."
_SHRINK, _EXPAND = ".lora_A", ".lora_B"
_OTHERS: Final = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "an adapter of the embedding",
    "modules_to_save": "replacing whole modules",
    "trainable_tokens": "replacing the embeddings of tokens",
}
_NETWORKS: Final = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")
"""Prefixes of `layers.` in the names of modules; the bare network (`AutoModel`) has none."""
_DIGEST_BYTES: Final = 16


def read_peft_adapter(folder: Path, spec: ModelSpec, *, max_rank: int) -> Adapter:
    """
    Read an adapter for a network.

    Raises `BrokenModel`, also if it was made for another network, and `UnsupportedModel` if it needs more than low-rank
    additions to the matrices of attention and MLP, or more rank.
    """
    # The canonical weights that each module holds, by its name below the network.
    modules: dict[str, list[tuple[str, Place]]] = {}
    for name, place in folder_places(family_of(spec), spec).items():
        if is_adaptable(name):
            module = place.stored.removesuffix(".weight").removeprefix("model.")
            modules.setdefault(module, []).append((name, place))
    shapes = {module: places[0][1].shape for module, places in modules.items()}
    matrices: dict[str, LowRank] = {}
    for module, low_rank in _modules_of(folder, shapes, _below_network, max_rank=max_rank).items():
        for name, place in modules[module]:
            expand = low_rank.expand if place.rows is None else low_rank.expand[place.rows]
            matrices[name] = LowRank(low_rank.shrink, expand)
    return Adapter(identity=_identity(matrices), matrices=matrices)


def read_peft_modules(folder: Path, shapes: Mapping[str, tuple[int, int]], *, max_rank: int) -> Adapter:
    """
    Read an adapter for a network of another library, with the names of its modules instead of canonical ones.

    `shapes` has outputs and inputs of each module that can be adapted. Raises what `read_peft_adapter` raises.
    """

    def find(module: str) -> str:
        found = [name for name in shapes if f".{name}".endswith(f".{module}") or f".{module}".endswith(f".{name}")]
        return module if module in shapes or len(found) != 1 else found[0]

    matrices = _modules_of(folder, shapes, find, max_rank=max_rank)
    return Adapter(identity=_identity(matrices), matrices=matrices)


def _modules_of(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], find: Callable[[str], str], *, max_rank: int
) -> dict[str, LowRank]:
    """Return the scaled factors of each adapted module by its name in `shapes`; `find` maps PEFT's names to those."""
    config = read_peft_config(_read_config(folder))
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise BrokenModel(f"{folder} has no {' or '.join(WEIGHTS)}.", path=str(folder))
    tensors, _ = open_files([file])
    matrices: dict[str, LowRank] = {}
    for module, (shrink, expand) in _pairs(tensors, shapes, find, config).items():
        if len(shrink) > max_rank:
            raise UnsupportedModel(
                f"{folder}: {module} has rank {len(shrink)}; expected at most {max_rank}. Raise max_lora_rank."
            )
        scale = config.scale_of(module)
        with np.errstate(over="ignore"):
            scaled = expand * np.float32(scale)
        if not np.isfinite(scaled).all():
            raise BrokenModel(
                f"{folder}: {module} times its scale of {scale:g} is not finite; expected a smaller lora_alpha."
            )
        matrices[find(module)] = LowRank(shrink, scaled)
    return matrices


def is_peft_folder(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def _read_config(folder: Path) -> Fields:
    path = folder / CONFIG
    try:
        content = read_whole(path)
    except OSError as exc:
        raise BrokenModel(
            f"{path} cannot be read: {exc.strerror or exc}. Expected a folder that PEFT's save_pretrained wrote."
        ) from exc
    return json_fields(content, str(path))


def _pairs(
    tensors: TensorFiles, shapes: Mapping[str, tuple[int, ...]], find: Callable[[str], str], config: PeftConfig
) -> dict[str, tuple[Float32, Float32]]:
    """Return A and B of each adapted module, by its name in the base model, checked against the network."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        module, kind = _parse(name, tensor)
        if find(module) not in shapes:
            raise UnsupportedModel(
                f"{tensor.file}: tensor {name!r:.200} adapts a module that this network does not have or whose "
                "adapters are not supported; expected the matrices of attention and of the dense MLP, "
                f"such as {next(iter(shapes), 'none')}.",
                tensor=name,
            )
        found.setdefault(module, {})[kind] = tensor
    if not found:
        raise BrokenModel(f"{config.source}: the adapter has no tensors.")
    return {module: _checked(module, pair, shapes[find(module)], config) for module, pair in found.items()}


def _parse(name: str, tensor: StoredTensor) -> tuple[str, str]:
    """Return the module of a tensor by its name in the base model, and whether it is A or B."""
    for part, meaning in _OTHERS.items():
        if part in name:
            raise UnsupportedModel(f"{tensor.file}: tensor {name!r:.200} needs {meaning}, which is not supported.")
    path = name.removesuffix(".weight").removesuffix(".default")
    for kind in (_SHRINK, _EXPAND):
        if path.endswith(kind):
            return path.removesuffix(kind).removeprefix(_PREFIX), kind
    raise UnsupportedModel(
        f"{tensor.file}: tensor {name!r:.200} is not one of LoRA's; expected names that end with "
        f"{_SHRINK}.weight or {_EXPAND}.weight.",
        tensor=name,
    )


def _below_network(module: str) -> str:
    """Return the name of a module without the part that depends on the class of the base model."""
    prefix = next((prefix for prefix in _NETWORKS if module.startswith(f"{prefix}layers.")), "")
    return module.removeprefix(prefix)


def _checked(
    module: str, pair: Mapping[str, StoredTensor], shape: tuple[int, ...], config: PeftConfig
) -> tuple[Float32, Float32]:
    if len(pair) != 2:
        (tensor,) = pair.values()
        raise BrokenModel(
            f"{tensor.file} has only {tensor.name!r:.200} of module {module}; expected lora_A and lora_B."
        )
    rank, (num_rows, num_columns) = config.rank_of(module), shape
    shrink = pair[_SHRINK].expect((rank, num_columns)).floats()
    expand = pair[_EXPAND].expect((num_rows, rank)).floats()
    for tensor, values in ((pair[_SHRINK], shrink), (pair[_EXPAND], expand)):
        if not np.isfinite(values).all():
            raise tensor.broken("it has numbers that are not finite")
    return shrink, expand


def _identity(matrices: Mapping[str, LowRank]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(matrices):
        matrix = matrices[name]
        digest.update(f"{name} {matrix.shrink.shape} {matrix.expand.shape} ".encode())
        digest.update(np.ascontiguousarray(matrix.shrink).data)
        digest.update(np.ascontiguousarray(matrix.expand).data)
    return digest.hexdigest()
