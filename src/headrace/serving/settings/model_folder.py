"""
Reads the configuration in a model's folder: `serving.properties`, `model-config.yaml`, and code next to them.

The files are at the top of the folder or in its only subfolder, as archives are packed both ways. If a file names a
model that is in the folder, the name becomes its path.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.client_text import reason_of
from headrace.core.errors import SettingsError
from headrace.serving.settings.container_names import MODEL_OPTIONS, Notice
from headrace.serving.settings.container_tables import MODEL_KEYS
from headrace.serving.settings.documents import read_yaml_mapping
from headrace.serving.settings.properties_file import read_properties
from headrace_handler.stray_files import listed

MODEL_FOLDER = Path("/opt/ml/model")
"""The folder where SageMaker puts a model. Source: SageMaker developer guide, "Use Your Own Inference Code"."""

PROPERTIES_FILE = "serving.properties"
MODEL_CONFIG_FILE = "model-config.yaml"
_PATHS = (*MODEL_OPTIONS, "option.chat_template", "option.generation_config")
"""Properties that may name something in the folder."""

_MARKERS = (PROPERTIES_FILE, MODEL_CONFIG_FILE, "config.json", "params.json", "*.gguf", "MAR-INF")
_WEIGHTS = ("config.json", "params.json", "*.gguf")
_CODE = ("model.py", "requirements.txt", "*handler*.py", "code/*.py", "code/requirements.txt")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """The configuration found in a model's folder."""

    root: Path
    """The folder that has the files: the model's folder or its only subfolder."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """`serving.properties`."""
    model_config: Mapping[str, str] = field(default_factory=dict)
    """`model-config.yaml`, flat; the key that names the model comes first."""
    notices: tuple[Notice, ...] = ()

    @property
    def names_model(self) -> bool:
        """True if a file names the model, so that the folder itself is not the model."""
        in_properties = any(name.strip().lower() in MODEL_OPTIONS and value for name, value in self.properties.items())
        return in_properties or any(key in self.model_config for key in MODEL_KEYS)


def read_model_folder(folder: Path) -> ModelFolder:
    """Read the configuration in a folder. Raises `SettingsError`: a file cannot be read."""
    root = _root(folder)
    for name in (PROPERTIES_FILE, MODEL_CONFIG_FILE):
        refuse_link(root / name, folder)
    properties = {
        name: in_folder(value.strip(), root=root, folder=folder) if name.strip().lower() in _PATHS else value
        for name, value in read_properties(root / PROPERTIES_FILE).items()
    }
    config = parse_model_config(_read(root / MODEL_CONFIG_FILE))
    return ModelFolder(
        root=root,
        properties=properties,
        model_config=_with_one_model(config, root=root, folder=folder),
        notices=tuple(_code_notices(root)),
    )


def refuse_link(path: Path, folder: Path) -> None:
    """
    Refuse a file of a model whose path leads out of its folder by a link, but for those of the Hub's cache.

    Its content reaches the model's code, which could name the server's environment or a file with keys.

    Raises:
        SettingsError: it is one.
    """
    at, target = folder.resolve(), path.resolve()
    hub = at.parents[1] if at.parent.name == "snapshots" and at.parents[1].name.startswith("models--") else at
    if not target.is_relative_to(hub):
        raise SettingsError(f"{path} leads to {target}; expected a file in the model's folder. Copy it there.")


def in_folder(name: str, *, root: Path, folder: Path) -> str:
    """
    Return the path of a model that is named relative to its folder; any other name unchanged.

    `/opt/ml/model` stands for the folder, wherever it is. A relative name counts if it exists in the folder.
    """
    if name.rstrip("/") == str(MODEL_FOLDER):
        return str(root)
    if name.startswith(f"{MODEL_FOLDER}/"):
        return str(folder / name.removeprefix(f"{MODEL_FOLDER}/").lstrip("/"))
    if not name or name.startswith(("/", "~")) or "://" in name:
        return name
    inside = root / name
    return str(inside) if ".." not in inside.parts and _exists(inside) else name


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder; False also for names that no file can have."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Return whether `path` is a file; False also if its folder may not be searched."""
    try:
        return path.is_file()
    except OSError:
        return False


def parse_model_config(text: str) -> dict[str, str]:
    """
    Read TorchServe's `model-config.yaml`: keys at the top, and those of `handler` after a dot.

    Raises:
        SettingsError: it is not YAML, or not a mapping.
    """
    return dict(_flat(read_yaml_mapping(text, MODEL_CONFIG_FILE)))


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name in {"handler", "handler.vllm_engine_config"}:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif value is not None:
            # NOTE: YAML aliases can expand to a list of astronomic size: never format one.
            yield name, str(value) if isinstance(value, str | int | float) else "..."


def _with_one_model(config: dict[str, str], *, root: Path, folder: Path) -> dict[str, str]:
    """Return the configuration with the resolved model name first, and without keys that do not name a model."""
    names = {key: config[key].strip() for key in MODEL_KEYS if config.get(key, "").strip()}
    resolved = {key: in_folder(name, root=root, folder=folder) for key, name in names.items()}
    rest = {key: value for key, value in config.items() if key not in MODEL_KEYS}
    present = (
        key for key, path in resolved.items() if (path != names[key] or path.startswith("/")) and _exists(Path(path))
    )
    elsewhere = (
        key for key, name in resolved.items() if key != MODEL_KEYS[0] and ("://" in name or _HUB_ID.fullmatch(name))
    )
    unresolved = (key for key in resolved if key != "handler.model_name")
    chosen = next(present, None) or next(elsewhere, None)
    if chosen is None and not _has(root, _WEIGHTS):
        chosen = next(unresolved, None)
    return rest if chosen is None else {chosen: resolved[chosen], **rest}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _root(folder: Path) -> Path:
    if _has(folder, _MARKERS):
        return folder
    inner = [path for path in listed(folder) if path.is_dir()]
    return inner[0] if len(inner) == 1 and _has(inner[0], _MARKERS) else folder


def _has(folder: Path, patterns: tuple[str, ...]) -> bool:
    return bool(listed(folder, patterns))


def read_small(path: Path, max_bytes: int = _MAX_FILE_BYTES) -> bytes:
    """Return the content of a text file of a model. Raises `SettingsError`: it is too large; `OSError`."""
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise SettingsError(f"{path} is too large: expected at most {max_bytes} bytes.")
    return content


def _read(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        return read_small(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {reason_of(error)}. Expected a YAML file in UTF-8.") from error


def _code_notices(root: Path) -> Iterator[Notice]:
    for path in sorted(set(listed(root, _CODE))):
        name = path.relative_to(root).as_posix()
        why = "Headrace's engine serves this model and runs no code; see the setting handler"
        yield Notice(name, "ignored", f"{name} has no effect: {why}.")
