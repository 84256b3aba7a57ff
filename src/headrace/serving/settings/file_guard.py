"""
Bounds what the files of a model may set: formats and limits, and paths in the model's own folder.

A folder that was downloaded must not open the server to web pages, read other files of this machine, choose another
model or run code. `ServerSettings` names the scope of each setting; `trust_model_files` lifts all bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.inference.models.chat_builtins import BUILT_IN_TEMPLATES
from headrace.serving.settings.container_values import VLLM_LIMITS
from headrace.serving.settings.rules import FileScope, read_json_object
from headrace.serving.settings.server_settings import ServerSettings, setting_rule
from headrace.serving.settings.values import flag_name

TRUST_FLAG: Final = flag_name("trust_model_files")
_DRAFTERS: Final = ("ngram", "[ngram]")
"""Models of vLLM's `speculative_config` that are no files."""


def file_scope(name: str) -> FileScope:
    """Return what the files of a model may do with the setting `name`."""
    scope: FileScope = ServerSettings.__dataclass_fields__[name].metadata["files"]
    return scope


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path exists in a folder, after all links are followed."""
    try:
        return path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # names that no file can have; loops of links
        return False


@dataclass(frozen=True, slots=True)
class FileGuard:
    """The bounds of the files of one model."""

    folder: Path | None
    """The model's folder; None: no path is inside."""
    given: frozenset[str] = frozenset()
    """Settings that flags or `HEADRACE_*` variables give, so that the files do not count for them."""

    def refusal(self, name: str, field: str, text: str) -> str | None:
        """
        Return why a name in a file may not set a field, or None if it may.

        Raises:
            SettingsError: the text is a path outside the folder, or another model.
        """
        scope = file_scope(field)
        if scope is FileScope.ANY or field in self.given:
            return None
        if scope is FileScope.INSIDE:
            self._check_inside(name, field, text)
            return None
        if scope is FileScope.LIMITS:
            others = sorted(_beyond_limits(read_json_object(text)))
            return (
                f"the files of a model may not set {', '.join(others)} of {field}; {_pass(field)}" if others else None
            )
        return None if _is_default(field, text) else f"the files of a model may not set {field}; {_pass(field)}"

    def _check_inside(self, name: str, field: str, text: str) -> None:
        if field == "generation_config" and text in ("auto", "vllm"):
            return
        if field == "chat_template" and ("{" in text or text in BUILT_IN_TEMPLATES):
            return
        if self.folder is not None and text and is_inside(Path(text), self.folder):
            return
        if field == "model":
            raise SettingsError(
                f"{name} is {text!r}; expected a path in the model's folder, as the files of a model may not choose "
                f"another one. Serve {text} by its own name, or pass {TRUST_FLAG}.",
                name=name,
            )
        raise SettingsError(
            f"{name} is {text[:200]!r}; expected a path in the model's folder. Remove it, {_pass(field)}.", name=name
        )


def _pass(field: str) -> str:
    return f"pass {flag_name(field)}, or {TRUST_FLAG} to let them set everything"


def _is_default(field: str, text: str) -> bool:
    try:
        return bool(setting_rule(field).read(text) == ServerSettings.__dataclass_fields__[field].default)
    except ValueError:
        return False


def _beyond_limits(arguments: Mapping[str, object]) -> set[str]:
    """Return the arguments of vLLM that name other models, paths or code."""
    others = set(arguments) - VLLM_LIMITS
    speculation = arguments.get("speculative_config")
    if isinstance(speculation, Mapping) and speculation.get("model", _DRAFTERS[0]) in _DRAFTERS:
        others.discard("speculative_config")
    return others
