"""
TorchServe's settings of the server: `config.properties` and `TS_*` variables. `load_config` reads; all else is pure.

Source: pytorch/serve `frontend/server/src/main/java/org/pytorch/serve/util/ConfigManager.java`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import SettingsError
from headrace.serving.settings.container_tables import reasons_of
from headrace.serving.settings.file_guard import TRUST_FLAG, file_scope
from headrace.serving.settings.model_folder import in_folder
from headrace.serving.settings.properties_file import read_properties
from headrace.serving.settings.rules import FileScope, split_address
from headrace.serving.settings.server_settings import setting_rule
from headrace.serving.settings.values import near_name, read_value

CONFIG_FILE: Final = "config.properties"
_VARIABLES: Final = ("TS_{0}", "SAGEMAKER_TS_{0}", "SAGEMAKER_{0}")
"""Forms of the variables for a key of config.properties; the first that is set applies."""
_ENV_REFERENCE: Final = re.compile(r"\$\$([^$]+)\$\$")
_DEFAULT_URLS: Final = "file://.*|http(s)?://.*"
_TRUE: Final = "true"

SETTINGS: Final = {
    "management_address": "management_address",
    "metrics_address": "metrics_address",
    "max_request_size": "max_body_bytes",
    "cors_allowed_origin": "cors_allow_origins",
}
"""Keys that are settings of the server, besides `inference_address`, which is `host` and `port`."""
_TLS_SETTINGS: Final = {"certificate_file": "tls_cert", "private_key_file": "tls_key"}
"""Settings of the server if an address begins with `https://`."""
_ADDRESSES: Final = ("inference_address", "management_address", "metrics_address")
_OF_THE_HOST: Final = {
    *("inference_address", *_TLS_SETTINGS),
    *(key for key, name in SETTINGS.items() if file_scope(name) is FileScope.NEVER),
}
"""Keys that the files of a model may not set."""
_OF_MODELS: Final = (
    "allowed_urls blacklist_env_vars decode_input_request default_response_timeout default_service_handler "
    "default_startup_timeout default_workers_per_model enable_metrics_api enable_model_api inference_address "
    "install_py_dep_per_model job_queue_size limit_max_image_pixels load_models metrics_config model_store models "
    "number_of_gpu service_envelope unregister_model_timeout"
)
"""Other keys that are applied."""
_REFUSED: Final = {
    "keystore": "export it to PEM files, and name them in certificate_file and private_key_file",
    "plugins_path": "plugins of TorchServe are Java code",
}
_REFUSED_VALUES: Final = {
    ("disable_token_authorization", "false"): "tokens are not supported; set api_key, which all requests then need",
    ("enable_grpc_ssl", "true"): "gRPC is not served",
    ("open_inference_protocol", "true"): "gRPC is not served",
    ("ts_open_inference_protocol", "true"): "gRPC is not served",
}
_FIXED: Final = {
    "disable_token_authorization": "true",
    "enable_envvars_config": "true",
    "metrics_format": "prometheus",
    "use_env_allowed_urls": "true",
    "debug": "false",
    "enable_grpc_ssl": "false",
}
"""Keys with a fixed value here; any other value has no effect."""
_NO_EFFECT: Final = reasons_of("config.properties")
_KNOWN: Final = frozenset((*SETTINGS, *_TLS_SETTINGS, *_OF_MODELS.split(), *_REFUSED, *_NO_EFFECT, *_FIXED))
_OFTEN_SET: Final = frozenset(("version", "debug", "models", "model_server_home"))
"""Keys whose names are too general to read `SAGEMAKER_<KEY>` or to notice a variable of their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The settings of TorchServe's server."""

    env: Mapping[str, str]
    """The environment with the keys of the file as variables; variables that were set before take precedence."""
    file: Path | None = None
    keys: frozenset[str] = frozenset()
    """The keys in the file."""
    notices: tuple[str, ...] = ()
    """Sentences about keys of the file that do not count, because the file is the model's."""


def load_config(
    env: Mapping[str, str], folders: Iterable[Path], *, current: Path | None = None, trusts_models: bool = False
) -> ServerConfig:
    """
    Read the file that `TS_CONFIG_FILE` names, else the first `config.properties` in the folders.

    Args:
        env: the environment.
        folders: folders of the model, whose file may not set what only the environment sets, unless it is trusted.
        current: a folder whose file counts as the environment if the model has none.
        trusts_models: trust the file of the model.

    Raises:
        SettingsError: it cannot be read.
    """
    named = env.get("TS_CONFIG_FILE", "").strip()
    own = list(folders)
    folders = own if current is None else [*own, current]
    if named and folders:
        candidates = [Path(in_folder(named, root=folders[0], folder=folders[0]))]
    else:
        candidates = [Path(named)] if named else [folder / CONFIG_FILE for folder in folders]
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        if named:
            raise SettingsError(f"TS_CONFIG_FILE is {named!r}; expected a file.", name="TS_CONFIG_FILE")
        return ServerConfig(env=env)
    keys = resolve_variables(read_properties(file), env)
    is_bound = not (named or trusts_models) and any(file.parent.samefile(folder) for folder in own if folder.is_dir())
    refused = sorted(keys.keys() & _OF_THE_HOST) if is_bound else []
    applied = {key: value for key, value in keys.items() if key not in refused}
    why = f"only options of the server set it, because the file is the model's; or pass {TRUST_FLAG}"
    notices = tuple(f"TorchServe's {key} in {file} has no effect: {why}." for key in refused)
    return ServerConfig(env=merge_config(env, applied), file=file, keys=frozenset(keys), notices=notices)


def resolve_variables(properties: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """
    Return the keys of a `config.properties`; `$$NAME$$` in a value is a variable of the environment.

    Raises:
        SettingsError: such a variable is not set.
    """

    def resolve(match: re.Match[str]) -> str:
        if match[1] not in env:
            raise SettingsError(f"{CONFIG_FILE}: Invalid Environment Variable {match[1]}; expected one that is set.")
        return env[match[1]]

    return {key: _ENV_REFERENCE.sub(resolve, value) for key, value in properties.items()}


def merge_config(env: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str]:
    """Add the keys of a file to the environment, as variables; variables that are set already take precedence."""
    added = {f"TS_{key.upper()}": value for key, value in config.items() if not variable(env, key.upper())}
    return {**env, **added}


def variable(env: Mapping[str, str], key: str) -> str:
    """Return the value of a key of config.properties from the environment; empty if it is not set."""
    return next(filter(None, (env.get(form.format(key), "").strip() for form in _VARIABLES)), "")


def is_true(env: Mapping[str, str], key: str, *, default: bool) -> bool:
    value = variable(env, key).lower()
    return value == _TRUE if value else default


def check_config(config: ServerConfig) -> list[str]:
    """
    Return sentences about keys that change nothing here.

    Raises:
        SettingsError: a key asks for what is not supported.
    """
    env = config.env
    given = {key: value for key in _KNOWN if (value := _given(env, key))}
    for key, why in _REFUSED.items():
        if key in given:
            raise SettingsError(f"TorchServe's {key} is set; expected no such key: {why}.", name=key)
    for (key, refused), why in _REFUSED_VALUES.items():
        if given.get(key, "").lower() == refused:
            raise SettingsError(f"TorchServe's {key} is {refused}: {why}.", name=key)
    notices = [*config.notices]
    notices += [f"TorchServe's {key} has no effect: {why}." for key, why in _NO_EFFECT.items() if key in given]
    notices += [
        f"TorchServe's {key} is {given[key]} and has no effect: it is always {value}."
        for key, value in _FIXED.items()
        if given.get(key, value).lower() != value
    ]
    if not _has_tls(env):
        why = "no address begins with https://"
        notices += [f"TorchServe's {key} has no effect: {why}." for key in _TLS_SETTINGS if key in given]
    for key in sorted(config.keys - _KNOWN):
        near = near_name(key, _KNOWN, cutoff=0.8)
        notices.append(f"{CONFIG_FILE}: {key} is no key of TorchServe.{f' Did you mean {near}?' if near else ''}")
    return notices


def server_settings(env: Mapping[str, str]) -> dict[str, object]:
    """
    Return the settings of the server that the keys set, read by their rules.

    Raises:
        SettingsError: a value is not as expected.
    """
    has_tls = _has_tls(env)

    def read(key: str, name: str, rule: str) -> Any:
        raw = _given(env, key)
        if has_tls and key in _ADDRESSES:
            raw = raw.replace("https://", "http://", 1)
        return read_value(setting_rule(rule), raw, name=name, source=f"TorchServe's {key}", is_own=True)

    keys = SETTINGS | _TLS_SETTINGS if has_tls else SETTINGS
    settings = {name: read(key, name, name) for key, name in keys.items() if _given(env, key)}
    if _given(env, "inference_address"):
        address = read("inference_address", "host", "management_address")
        if address is None:
            raise SettingsError("TorchServe's inference_address is off; expected an address.", name="host")
        settings["host"], settings["port"] = split_address(address)
    if not is_true(env, "ENABLE_METRICS_API", default=True):
        settings["metrics_address"] = None
    return {name: "off" if value is None else value for name, value in settings.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementOptions:
    """Settings of the management API."""

    default_workers: int = 0
    """Workers of a model that is registered without a number."""
    drain_s: float = 120.0
    """Time for the requests of a model that is unregistered."""
    accepts_changes: bool = True
    """Clients may register and unregister models."""


def management_options(env: Mapping[str, str]) -> ManagementOptions:
    """Return the settings of the management API. Raises `SettingsError`: a value is not as expected."""
    defaults = ManagementOptions()
    return ManagementOptions(
        default_workers=_whole_number(env, "default_workers_per_model", defaults.default_workers),
        drain_s=_whole_number(env, "unregister_model_timeout", round(defaults.drain_s)),
        accepts_changes=is_true(env, "ENABLE_MODEL_API", default=True),
    )


def _whole_number(env: Mapping[str, str], key: str, default: int) -> int:
    value = _given(env, key)
    if value and not (value.isascii() and value.isdecimal()):
        raise SettingsError(f"TorchServe's {key} is {value!r}; expected a whole number.", name=key)
    return int(value) if value else default


def _has_tls(env: Mapping[str, str]) -> bool:
    """Return whether there is a certificate and an address that needs it; all addresses have TLS then."""
    is_https = any(_given(env, key).lower().startswith("https://") for key in _ADDRESSES)
    return is_https and bool(_given(env, "certificate_file"))


def allowed_urls(env: Mapping[str, str]) -> list["re.Pattern[str]"]:
    """
    Return the patterns, one of which must match a whole URL.

    Raises:
        SettingsError: a pattern is not a regular expression.
    """
    given = variable(env, "ALLOWED_URLS")
    patterns = [part.strip() for part in given.split(",") if part.strip()] if given else [_DEFAULT_URLS]
    return [_pattern(pattern, "allowed_urls") for pattern in patterns]


def visible_environment(env: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables that handlers see: `blacklist_env_vars` hides those whose names it matches.

    Raises:
        SettingsError: it is not a regular expression.
    """
    hidden = variable(env, "BLACKLIST_ENV_VARS")
    if not hidden:
        return dict(env)
    pattern = _pattern(hidden, "blacklist_env_vars")
    return {name: value for name, value in env.items() if not pattern.fullmatch(name)}


def versions_of(env: Mapping[str, str], model_name: str) -> Mapping[str, Mapping[str, Any]]:
    """
    Return the entries of the key `models` for the versions of a model.

    Raises:
        SettingsError: it is not the JSON that TorchServe expects.
    """
    text = env.get("TS_MODELS", "").strip()
    try:
        versions = (json.loads(text) if text else {}).get(model_name, {})
        return {version: dict(entry) for version, entry in versions.items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        example = '{"name": {"1.0": {"minWorkers": 1}}}'
        text = f"TorchServe's models is {text[:100]!r}; expected JSON such as {example}."
        raise SettingsError(text, name="models") from error


def _given(env: Mapping[str, str], key: str) -> str:
    return env.get(f"TS_{key.upper()}", "").strip() if key in _OFTEN_SET else variable(env, key.upper())


def _pattern(text: str, name: str) -> "re.Pattern[str]":
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise SettingsError(f"TorchServe's {name} is {text!r}; expected a regular expression: {error}.") from error
