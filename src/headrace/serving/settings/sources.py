"""
Gathers settings from the process environment and the files of a model folder.

This module and `settings.model_folder` read the disk; `settings.server_settings` decides.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from headrace.core.errors import SettingsError
from headrace.serving.settings.container_names import MODEL_OPTIONS, MODEL_VARIABLES, Notice
from headrace.serving.settings.container_tables import MODEL_KEYS
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.model_folder import MODEL_FOLDER, ModelFolder, in_folder, is_folder, read_model_folder
from headrace.serving.settings.server_settings import ServerSettings

MODEL_FOLDER_VARIABLE = "HEADRACE_MODEL_FOLDER"
"""Names the folder that stands for `/opt/ml/model`; set by launchers that start a model server as a container."""

_NO_CONTAINER = (
    "this folder is served as on any host: on loopback unless host says otherwise, and its files set only formats and "
    "limits. In a container of SageMaker, set HEADRACE_CONTAINER=true."
)


def gather_settings(
    overrides: Mapping[str, object],
    env: Mapping[str, str],
    *,
    model_folder: Path = MODEL_FOLDER,
    on_gpu: bool = False,
) -> tuple[ServerSettings, list[Notice]]:
    """
    Load the settings of a server that is about to start.

    The model may be a folder with a `serving.properties` or a `model-config.yaml`, or such a folder may be at
    `model_folder`; the server then serves what these files name, or the folder itself if they name nothing. What the
    files may set depends on `trust_model_files`.
    `HEADRACE_MODEL_FOLDER` moves `/opt/ml/model` elsewhere; a model in `HEADRACE_MODEL` is served with the settings of
    that folder. For `on_gpu` see `load_settings`.

    Raises:
        SettingsError: see `load_settings`; or a file of the folder cannot be read.
    """
    overrides, env = dict(overrides), dict(env)
    folder, is_mounted, is_named = locate_model(overrides, env, model_folder=model_folder)
    files = read_model_folder(folder) if folder.parts and is_folder(folder) else ModelFolder(root=folder)
    if is_mounted and is_named:
        # The folder's settings count, for a model that a flag or a variable names.
        files = replace(
            files,
            properties={
                name: raw for name, raw in files.properties.items() if name.strip().lower() not in MODEL_OPTIONS
            },
            model_config={key: raw for key, raw in files.model_config.items() if key not in MODEL_KEYS},
        )
    elif files.names_model:  # the files' own name for the model takes the place of all others
        overrides.pop("model", None)
        for name in ("HEADRACE_MODEL", *MODEL_VARIABLES):
            env.pop(name, None)
    elif is_mounted:
        _name_root(files.root, folder, overrides, env)
    elif files.root != folder:
        overrides["model"] = str(files.root)
    settings, notices = load_settings(
        overrides, env, files.properties, files.model_config, folder=folder, on_gpu=on_gpu
    )
    if is_mounted and not settings.container:
        notices = [Notice("container", "applied", f"{folder}: {_NO_CONTAINER}"), *notices]
    return settings, [*files.notices, *notices]


class Located(NamedTuple):
    """The place of the model that a server is to serve."""

    folder: Path
    """The folder of its files; otherwise its name as a path, empty without a name."""
    is_mounted: bool
    """True if the folder is `/opt/ml/model`, or stands for it."""
    is_named: bool
    """True if a flag or `HEADRACE_MODEL` names the model."""


def locate_model(
    overrides: Mapping[str, object], env: Mapping[str, str], *, model_folder: Path = MODEL_FOLDER
) -> Located:
    """
    Find the folder of a model by the rules of `gather_settings`.

    Raises:
        SettingsError: `HEADRACE_MODEL_FOLDER` is not a folder.
    """
    named = overrides.get("model") or env.get("HEADRACE_MODEL") or None
    moved = env.get(MODEL_FOLDER_VARIABLE, "").strip()
    if moved and not is_folder(Path(moved)):
        raise SettingsError(f"{MODEL_FOLDER_VARIABLE} is {moved!r}; expected a folder.", name=MODEL_FOLDER_VARIABLE)
    place = Path(moved) if moved else model_folder
    is_mounted = (bool(moved) or named is None) and place.is_dir()
    folder = place if is_mounted else Path(str(named or env.get("HF_MODEL_ID") or ""))
    return Located(folder, is_mounted, named is not None)


def names_model(env: Mapping[str, str]) -> bool:
    """Return whether an environment names a model outside the model's folder."""
    named = [env.get(name, "").strip() for name in ("HEADRACE_MODEL", *MODEL_VARIABLES)]
    return any(name and not f"{name}/".startswith(f"{MODEL_FOLDER}/") for name in named)


def _name_root(root: Path, folder: Path, overrides: dict[str, object], env: dict[str, str]) -> None:
    """Serve the model that the environment names (possibly the folder or a path in it), else the folder."""
    is_named = False
    for name in MODEL_VARIABLES:
        if env.get(name, "").strip():
            is_named = True
            env[name] = in_folder(env[name].strip(), root=root, folder=folder)
    if not is_named:
        overrides["model"] = str(root)
