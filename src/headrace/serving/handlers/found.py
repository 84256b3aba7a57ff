"""The facts of a model that decide which code serves it. `find_model` reads the folder; all else is pure."""

import ast
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.core.client_text import reason_of
from headrace.core.errors import SettingsError
from headrace.serving.handlers.isolation import NO_ISOLATION, Isolation
from headrace.serving.settings.documents import read_yaml_mapping
from headrace.serving.settings.model_folder import (
    MODEL_CONFIG_FILE,
    PROPERTIES_FILE,
    in_folder,
    is_folder,
    read_small,
    refuse_link,
)
from headrace.serving.settings.properties_file import read_properties
from headrace_handler.stray_files import is_hidden, listed

MANIFEST_FILE: Final = "MAR-INF/MANIFEST.json"
CODE_FOLDER: Final = "code"
_MARKERS: Final = (
    PROPERTIES_FILE,
    MODEL_CONFIG_FILE,
    "MAR-INF",
    CODE_FOLDER,
    "model.py",
    "config.json",
    "requirements.txt",
)
_LISTED_FOLDERS: Final = ("MAR-INF", CODE_FOLDER)
_MAX_FILES: Final = 10_000
_MAX_FILE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The facts of a model by which the code that serves it is chosen."""

    model_name: str
    root: Path
    """The folder that holds the files: the model's folder or its only subfolder."""
    code: Path
    """The folder of the toolkits' code: `SAGEMAKER_SUBMIT_DIRECTORY`, else `code`, else `root`."""
    files: frozenset[str] = frozenset()
    """POSIX paths of the files at the top of `root`, in `code` and in `MAR-INF`."""
    functions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Names that the Python files at the top define or import, by file; decorators of functions as `@name`."""
    imports: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Top-level packages that the Python files at the top and in `code` import, by file."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """`serving.properties`."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    """`model-config.yaml`, or the file that the manifest names."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """`MAR-INF/MANIFEST.json`."""
    architecture: str = ""
    """The first of `architectures` in `config.json`."""
    is_encoder_decoder: bool = False
    """Value in `config.json`."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment of the model server, with the model's own `Environment`."""
    family: str = ""
    """Family of the image (`control.model.images`); empty without an image."""
    num_gpus: int = 0
    channels: Mapping[str, Path] = field(default_factory=dict)
    """Folders of additional model data sources, by channel."""
    isolation: Isolation = NO_ISOLATION
    """The sandbox of its code."""

    def option(self, name: str, *variables: str) -> str:
        """Return `option.<name>`, else the first of the variables that is set, else an empty string."""
        wanted = f"option.{name}".lower()
        given = (value for key, value in self.properties.items() if key.strip().lower() == wanted)
        return next(
            filter(None, (value.strip() for value in (*given, *(self.env.get(key, "") for key in variables)))), ""
        )


def find_model(folder: Path, *, model_name: str, env: Mapping[str, str], family: str = "", num_gpus: int = 0) -> Found:
    """Read the facts from a model's folder. Raises `SettingsError`: a file cannot be read."""
    root = _root(folder.absolute())  # the code's processes have another current directory
    for name in (MANIFEST_FILE, PROPERTIES_FILE):
        refuse_link(root / name, folder)
    files = frozenset(_files(root))
    manifest = _read_json(root / MANIFEST_FILE)
    config_file = (manifest.get("model") or {}).get("configFile") if isinstance(manifest.get("model"), dict) else None
    try:
        config = _read_json(root / "config.json")
    except SettingsError:  # the model's loader reports it
        config = {}
    architectures = config.get("architectures")
    sources = {name: _parse(root / name) for name in sorted(files) if name.endswith(".py")}
    return Found(
        model_name=model_name,
        root=root,
        code=_code(root, folder, env.get("SAGEMAKER_SUBMIT_DIRECTORY", "").strip()),
        files=files,
        functions={name: frozenset(_defined(tree)) for name, tree in sources.items() if tree is not None},
        imports={name: frozenset(_imported(tree)) for name, tree in sources.items() if tree is not None},
        properties=read_properties(root / PROPERTIES_FILE),
        model_config=_read_yaml(root, str(config_file or MODEL_CONFIG_FILE)),
        manifest=manifest,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        is_encoder_decoder=config.get("is_encoder_decoder") is True,
        env=env,
        family=family,
        num_gpus=num_gpus,
    )


def _root(folder: Path) -> Path:
    """Return the folder, or its only subfolder if the files are there: archives are packed both ways."""
    if any((folder / name).exists() for name in _MARKERS):
        return folder
    inner = listed(folder)
    is_packed = len(inner) == 1 and inner[0].is_dir() and any((inner[0] / name).exists() for name in _MARKERS)
    return inner[0] if is_packed else folder


def _code(root: Path, folder: Path, submitted: str) -> Path:
    place = Path(in_folder(submitted, root=root, folder=folder)) if submitted else root / CODE_FOLDER
    return place if is_folder(place) else root / CODE_FOLDER if is_folder(root / CODE_FOLDER) else root


def _files(root: Path) -> Iterator[str]:
    for folder in (root, *(root / name for name in _LISTED_FOLDERS)):
        if folder.is_dir():
            with os.scandir(folder) as entries:
                names = [entry.name for _, entry in zip(range(_MAX_FILES), entries, strict=False) if entry.is_file()]
            kept = (name for name in names if not is_hidden(name))
            yield from (name if folder == root else f"{folder.name}/{name}" for name in kept)


def _read(path: Path) -> str:
    if not path.is_file() or path.resolve().is_relative_to("/proc"):  # where reading some files waits without end
        return ""
    try:
        return read_small(path, _MAX_FILE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {reason_of(error)}. Expected text in UTF-8.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(_read(path) or "{}")
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not JSON: {error}.") from error
    if not isinstance(read, dict):
        raise SettingsError(f"{path} is not a JSON object; expected a manifest as torch-model-archiver writes it.")
    return read


def _read_yaml(root: Path, name: str) -> dict[str, Any]:
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise SettingsError(f"{MANIFEST_FILE}: configFile is {name!r}; expected a file in the model's folder.")
    return read_yaml_mapping(_read(path), name)


def _parse(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file; None if it cannot be parsed, which its import reports."""
    try:
        return ast.parse(_read(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError, SettingsError):
        return None


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds at its top level, conditional ones included, and decorators as `@name`."""
    statements: list[ast.AST] = list(tree.body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            yield from (f"@{_last_name(decorator)}" for decorator in node.decorator_list)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            statements += list(ast.iter_child_nodes(node))


def _last_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
