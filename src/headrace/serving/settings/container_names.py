"""
Settings under the names of other model servers: SageMaker, TGI, LMI (DJL), vLLM and TorchServe containers.

The tables in `container_tables` define each name: it sets a field after conversion, it has no effect for a stated
reason, or it is refused unless its value asks for the default behaviour.
No name is dropped silently: `read_container_names` returns a notice for every name that it finds, unless its value asks
for the default behaviour.

Sources: djl-serving `serving/docs/lmi/`, `docs/configurations.md`; text-generation-inference `launcher/src/main.rs`
and `sagemaker-entrypoint.sh`; the AWS vLLM container.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headrace.core.engine_names import BACKENDS
from headrace.core.errors import SettingsError
from headrace.serving.settings.container_meanings import (
    FieldParts,
    Fills,
    FillsPart,
    ForBackends,
    Meaning,
    NoEffect,
    OnGpu,
    Requires,
    read_part,
    sets_model,
)
from headrace.serving.settings.container_tables import (
    ENVIRONMENT,
    FAMILY_PREFIXES,
    FLAGS,
    GENERAL_NAMES,
    MODEL_CONFIG,
    OPTIONS,
    PROPERTIES,
    USED_ELSEWHERE,
)
from headrace.serving.settings.container_values import NO_CUSTOM_CODE, NO_NEURON, QUANTIZE
from headrace.serving.settings.file_guard import FileGuard
from headrace.serving.settings.values import near_name


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about the settings for the operator, shown once at the start."""

    name: str
    """The name as the user wrote it: `SM_NUM_GPUS`, `option.dtype`."""
    kind: Literal["applied", "ignored", "unknown"]
    message: str
    backends: frozenset[str] = frozenset()
    """The message holds if one of these backends serves; empty: whichever serves."""


_PREFIXED: Mapping[str, tuple[Mapping[str, Meaning], bool]] = {
    "OPTION_": (OPTIONS, True),
    "SERVING_": ({key.lower(): meaning for key, meaning in PROPERTIES.items()}, True),
    **{prefix: (flags, False) for prefix, flags in FLAGS.items()},
}
"""Beginnings of variables → the names that follow, and whether they are LMI's."""
_HUB_FILE = ("SM_LLAMA_CPP_HF_REPO", "SM_LLAMA_CPP_HF_FILE")

MODEL_VARIABLES = (
    *(name for name, meaning in ENVIRONMENT.items() if sets_model(meaning)),
    *(f"OPTION_{key.upper()}" for key, meaning in OPTIONS.items() if sets_model(meaning)),
    *(f"{prefix}{key.upper()}" for prefix, flags in FLAGS.items() for key in flags if sets_model(flags[key])),
)
"""The variables in which containers expect the model."""
MODEL_OPTIONS = tuple(f"option.{key}" for key, meaning in OPTIONS.items() if sets_model(meaning))
"""The properties that name it."""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The settings that foreign names give."""

    values: Mapping[str, tuple[str, str]]
    """Field of `ServerSettings` → the name that sets it, and the text to parse."""
    notices: tuple[Notice, ...]
    is_lmi: bool
    """True if some names have LMI's form."""


def read_container_names(
    env: Mapping[str, str],
    properties: Mapping[str, str],
    model_config: Mapping[str, str] | None = None,
    *,
    container: bool,
    on_gpu: bool = False,
    guard: FileGuard | None = None,
) -> ContainerSettings:
    """
    Read all foreign names; if two set the same field, the files of the model take precedence over the environment.

    Args:
        env: the environment; `HEADRACE_*` variables are not read.
        properties: the content of `serving.properties`.
        model_config: the content of TorchServe's `model-config.yaml`, flat.
        container: also read names that are too general elsewhere, such as `PORT`.
        on_gpu: the model may run on a GPU of this host.
        guard: bounds what the two files may set; None: they are trusted.

    Raises:
        SettingsError: a value is not as expected, or names a path that the guard refuses.
    """
    reader = _Reader(on_gpu=on_gpu, guard=guard)
    notices: list[Notice] = []
    is_lmi = False
    # The first name to set a field counts: files before the environment, exact names before general ones.
    in_files = [*_exact_first(_properties(properties)), *_model_config(model_config or {})]
    for setting in [
        *(replace(setting, is_in_file=True) for setting in in_files),
        *_exact_first(_environment(env, container=container)),
    ]:
        is_lmi |= setting.is_lmi
        if setting.raw.strip():
            notices += reader.read(setting, setting.meaning)
    return ContainerSettings(reader.merged(), tuple(notices), is_lmi)


def notices_for(notices: Iterable[Notice], backend: str) -> list[Notice]:
    """Return the notices that hold once a backend serves, of those that depend on it."""
    return [notice for notice in notices if backend in notice.backends]


@dataclass(frozen=True, slots=True)
class _ForeignSetting:
    """A foreign name with a value and its meaning (None: unknown)."""

    name: str
    raw: str
    meaning: Meaning | None
    is_lmi: bool = False
    family: Mapping[str, Meaning] | None = None
    """The names to suggest for a misspelt one."""
    spelling: str = "{}"
    """The format of a key of `family` in its source."""
    is_in_file: bool = False
    """A file of the model sets it."""


def _properties(properties: Mapping[str, str]) -> Iterator[_ForeignSetting]:
    for name, raw in properties.items():
        key = name.strip().lower()
        if key.startswith("option."):
            option = key.removeprefix("option.")
            yield _ForeignSetting(name, raw, OPTIONS.get(option), True, OPTIONS, "option.{}")
        elif key.startswith("env."):
            yield _ForeignSetting(name, raw, NoEffect("set the variable in the environment of the server"), True)
        else:
            yield _ForeignSetting(name, raw, PROPERTIES.get(key), True, PROPERTIES)


def _model_config(config: Mapping[str, str]) -> Iterator[_ForeignSetting]:
    """Yield the names in the table's order; unknown keys of `handler` are for custom code."""
    known = [name for name in MODEL_CONFIG if name in config]
    for name in (*known, *(name for name in config if name not in MODEL_CONFIG)):
        raw = config[name]
        option = name.removeprefix("handler.vllm_engine_config.")
        if option != name:
            yield _ForeignSetting(name, raw, OPTIONS.get(option), False, OPTIONS, "handler.vllm_engine_config.{}")
        elif name.startswith("handler."):
            yield _ForeignSetting(name, raw, MODEL_CONFIG.get(name, NO_CUSTOM_CODE))
        else:
            yield _ForeignSetting(name, raw, MODEL_CONFIG.get(name), False, MODEL_CONFIG)


def _environment(env: Mapping[str, str], *, container: bool) -> Iterator[_ForeignSetting]:
    """Yield prefixed names first, which are more specific, then the short names in order, then unknown ones."""
    env = _with_hub_file(env)
    for name in sorted(env):
        prefix = next((prefix for prefix in _PREFIXED if name.startswith(prefix)), "")
        if prefix and name not in ENVIRONMENT:
            known, is_lmi = _PREFIXED[prefix]
            meaning = known.get(name.removeprefix(prefix).lower())
            yield _ForeignSetting(name, env[name], meaning, is_lmi, known, f"{prefix}{{}}")
        elif name.startswith("NEURON_"):
            yield _ForeignSetting(name, env[name], NO_NEURON)
    for name, known_meaning in ENVIRONMENT.items():
        if name in env and (container or name not in GENERAL_NAMES):
            yield _ForeignSetting(name, env[name], known_meaning)
    for name in sorted(env.keys() - ENVIRONMENT.keys()):
        prefix = next((prefix for prefix in FAMILY_PREFIXES if name.startswith(prefix)), "")
        if not prefix or USED_ELSEWHERE.fullmatch(name) or name.startswith(tuple(FLAGS)):
            continue
        family = {known.removeprefix(prefix): ENVIRONMENT[known] for known in ENVIRONMENT if known.startswith(prefix)}
        # Many names begin with MAX_: only one that resembles TGI's is probably meant for it.
        if prefix != "MAX_" or near_name(name.removeprefix(prefix), family):
            yield _ForeignSetting(name, env[name], None, False, family, f"{prefix}{{}}")


def _with_hub_file(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the repository and the file that llama.cpp takes from the Hub as one name."""
    repository, file = (env.get(name, "").strip() for name in _HUB_FILE)
    if not repository or not file:
        return env
    others = {name: value for name, value in env.items() if name not in _HUB_FILE}
    return {**others, _HUB_FILE[0]: f"{repository.partition(':')[0]}/{file}"}


def _exact_first(settings: Iterable[_ForeignSetting]) -> list[_ForeignSetting]:
    """Put quantization methods first: they describe the weights more exactly than a dtype."""
    return sorted(settings, key=lambda setting: setting.meaning is not QUANTIZE)


class _Reader:
    """Collects the values and notices of names, the strongest first."""

    def __init__(self, *, on_gpu: bool, guard: FileGuard | None) -> None:
        self._on_gpu = on_gpu
        self._guard = guard
        self._values: dict[str, tuple[str, str]] = {}
        self._parts = FieldParts()

    def merged(self) -> dict[str, tuple[str, str]]:
        """Return each field with the names that set it and its text."""
        return {**self._values, **self._parts.merged()}

    def read(self, setting: _ForeignSetting, meaning: Meaning | None) -> list[Notice]:
        """Apply a setting by its meaning, and return the notices about it."""
        notices: list[Notice] = []
        match meaning:
            case None:
                notices = [_unknown(setting)]
            case Requires():
                if setting.raw.strip().lower() not in meaning.values:
                    expected = f"expected {'one of ' if len(meaning.values) > 1 else ''}{', '.join(meaning.values)}"
                    text = f"{setting.name} is {setting.raw.strip()!r}; {expected}. {meaning.why}"
                    raise SettingsError(text, name=setting.name)
            case NoEffect() if setting.raw.strip().lower() not in meaning.quiet:
                notices = [Notice(setting.name, "ignored", f"{setting.name} has no effect: {meaning.why}.")]
            case OnGpu():
                notices = self.read(setting, meaning.gpu if self._on_gpu else meaning.cpu)
            case ForBackends():
                others = [name for name in BACKENDS if name not in meaning.backends]
                notices = [
                    *_if_served_by(meaning.backends, self.read(setting, meaning.meaning)),
                    *_if_served_by(others, self.read(setting, meaning.otherwise)),
                ]
            case FillsPart():
                notices = self._read_part(setting, meaning)
            case Fills():
                notices = self._read_field(setting, meaning)
        return notices

    def _read_field(self, setting: _ForeignSetting, meaning: Fills) -> list[Notice]:
        if meaning.field in self._values:
            notices = [_overruled(setting, self._values[meaning.field][0], meaning.field)]
        else:
            notices = self._apply(setting, meaning)
        if meaning.vllm is None:
            return notices
        arguments = self._read_part(setting, FillsPart("vllm_args", meaning.vllm, {}))
        others = [name for name in BACKENDS if name != "vllm"]
        return [*_if_served_by(others, notices), *_if_served_by(["vllm"], arguments)] if arguments else notices

    def _apply(self, setting: _ForeignSetting, meaning: Fills) -> list[Notice]:
        try:
            text, remark = meaning.convert(setting.raw.strip())
        except ValueError as error:
            raise SettingsError(f"{setting.name} is {setting.raw!r}; expected {error}.", name=setting.name) from None
        if text is not None and (refused := self._refusal(setting, meaning.field, text)):
            return refused
        if text is not None:
            self._values[meaning.field] = (setting.name, text)
            is_secret = meaning.field == "api_key"
            effect = f"{setting.name} sets {meaning.field}" + ("" if is_secret else f" to {text}")
            return [Notice(setting.name, "applied", f"{effect}{f': {remark}' if remark else ''}.")]
        message = f"{setting.name}={setting.raw.strip()} has no effect: {remark}."
        return [Notice(setting.name, "ignored", message)] if remark else []

    def _read_part(self, setting: _ForeignSetting, meaning: FillsPart) -> list[Notice]:
        earlier = self._parts.source(meaning.field)
        raw = setting.raw.strip()
        part = read_part(setting.name, meaning, raw)
        if not part:
            return []
        if refused := self._refusal(setting, meaning.field, json.dumps(part)):
            return refused
        new = self._parts.add(setting.name, meaning, raw)
        if not new:
            return [_overruled(setting, earlier, meaning.field)]
        return [Notice(setting.name, "applied", f"{setting.name} sets {meaning.field} to {json.dumps(new)}.")]

    def _refusal(self, setting: _ForeignSetting, field: str, text: str) -> list[Notice]:
        """Return a notice if a file of the model may not set the field."""
        why = self._guard.refusal(setting.name, field, text) if self._guard and setting.is_in_file else None
        return [Notice(setting.name, "ignored", f"{setting.name} has no effect: {why}.")] if why else []


def _if_served_by(backends: Iterable[str], notices: Iterable[Notice]) -> list[Notice]:
    return [replace(notice, backends=frozenset(backends)) for notice in notices]


def _overruled(setting: _ForeignSetting, winner: str, field: str) -> Notice:
    return Notice(setting.name, "ignored", f"{setting.name} has no effect: {winner} sets {field} already.")


def _unknown(setting: _ForeignSetting) -> Notice:
    family = setting.family or {}
    style = str.upper if setting.name.isupper() else str
    key = setting.name[len(setting.spelling.removesuffix("{}")) :]
    near = near_name(key, family)
    hint = f" Did you mean {setting.spelling.format(style(near))}?" if near else ""
    return Notice(setting.name, "unknown", f"{setting.name} is unknown and has no effect.{hint}")
