"""
Where settings come from on a real machine: the process environment and the files of a model folder.

The one part of the settings that looks at the disk; `core.settings` decides.
"""

from collections.abc import Mapping
from pathlib import Path

from headrace.core.container_names import Notice, parse_properties
from headrace.core.errors import SettingsError
from headrace.core.settings import ServerSettings, load_settings

MODEL_FOLDER = Path("/opt/ml/model")
"""Where SageMaker puts a model. Source: SageMaker developer guide, "Use Your Own Inference Code"."""

_PROPERTIES_FILE = "serving.properties"


def gather_settings(
    overrides: Mapping[str, object], env: Mapping[str, str], *, model_folder: Path = MODEL_FOLDER
) -> tuple[ServerSettings, list[Notice]]:
    """
    Load the settings of a server that is about to start.

    A folder with a `serving.properties` may be named as the model, or lie at `model_folder`; its `option.model_id`
    then says what to serve, and without one the folder itself is the model.

    Raises:
        SettingsError: see `load_settings`; or the properties cannot be read.
    """
    named = overrides.get("model") or env.get("HEADRACE_MODEL")
    container = named is None and model_folder.is_dir()
    folder = (
        Path(str(named)) if named is not None else Path(env.get("HF_MODEL_ID", "")) if not container else model_folder
    )
    properties = _read_properties(folder / _PROPERTIES_FILE)
    overrides, env = dict(overrides), dict(env)
    if properties and _model_elsewhere(properties):
        overrides.pop("model", None)
        env.pop("HEADRACE_MODEL", None)
        env.pop("HF_MODEL_ID", None)
    elif container and "HF_MODEL_ID" not in env:
        overrides["model"] = str(model_folder)
    return load_settings(overrides, env, properties, container=container)


def _read_properties(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}. It should be a Java properties file in UTF-8.") from error


def _model_elsewhere(properties: Mapping[str, str]) -> bool:
    return any(name.strip().lower() == "option.model_id" and value.strip() for name, value in properties.items())
