"""
Variables of the servers that SageMaker's toolkits start: their values, and a sentence for each without effect. Pure.

Sources: multi-model-server and TorchServe `ConfigManager` (a variable `MMS_X` or `TS_X` for each key `x` of
config.properties, which counts before the file that the toolkits write), sagemaker-inference-toolkit `parameters.py`,
sagemaker-pytorch-inference-toolkit `ts_parameters.py`, sagemaker-containers `_params.py`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headrace.core.errors import SettingsError
from headrace.settings.near_names import near_name

TORCHSERVE: Final = "TorchServe"
MMS: Final = "multi-model-server"
GUNICORN: Final = "gunicorn"
_SERVERS: Final = {"pytorch": TORCHSERVE, "sklearn": GUNICORN, "xgboost": GUNICORN}


class _Family(NamedTuple):
    server: str
    prefix: str
    applied: frozenset[str]


_CONFIG_KEYS: Final = frozenset(
    ("DEFAULT_RESPONSE_TIMEOUT", "DEFAULT_WORKERS_PER_MODEL", "JOB_QUEUE_SIZE", "MAX_REQUEST_SIZE")
)
"""Keys of config.properties that are applied; `MAX_REQUEST_SIZE` by the server around the code."""
_MODEL_KEYS: Final = frozenset(("BATCH_SIZE", "MAX_BATCH_DELAY", "MAX_WORKERS", "MIN_WORKERS", "RESPONSE_TIMEOUT"))
_FAMILIES: Final = (
    _Family(TORCHSERVE, "SAGEMAKER_TS_", _MODEL_KEYS),
    _Family(TORCHSERVE, "TS_", _CONFIG_KEYS),
    _Family(MMS, "MMS_", _CONFIG_KEYS | {"DEFAULT_RESPONSE_TIMEOUT_SECONDS"}),
)
_OTHER_KEYS: Final = frozenset(
    (
        "ALLOWED_URLS",
        "ASYNC_LOGGING",
        "BLACKLIST_ENV_VARS",
        "CERTIFICATE_FILE",
        "CORS_ALLOWED_HEADERS",
        "CORS_ALLOWED_METHODS",
        "CORS_ALLOWED_ORIGIN",
        "CPU_LAUNCHER_ARGS",
        "CPU_LAUNCHER_ENABLE",
        "DEBUG",
        "DECODE_INPUT_REQUEST",
        "DEFAULT_SERVICE_HANDLER",
        "DEFAULT_STARTUP_TIMEOUT",
        "DISABLE_SYSTEM_METRICS",
        "DISABLE_TOKEN_AUTHORIZATION",
        "ENABLE_METRICS_API",
        "ENABLE_MODEL_API",
        "GRPC_INFERENCE_PORT",
        "GRPC_MANAGEMENT_PORT",
        "INFERENCE_ADDRESS",
        "INSTALL_PY_DEP_PER_MODEL",
        "IPEX_ENABLE",
        "KEYSTORE",
        "KEYSTORE_PASS",
        "KEYSTORE_TYPE",
        "LIMIT_MAX_IMAGE_PIXELS",
        "LOAD_MODELS",
        "MANAGEMENT_ADDRESS",
        "MAX_RESPONSE_SIZE",
        "METRICS_ADDRESS",
        "METRICS_CONFIG",
        "METRICS_MODE",
        "MODEL_STORE",
        "NETTY_CLIENT_THREADS",
        "NUMBER_OF_GPU",
        "NUMBER_OF_NETTY_THREADS",
        "PREFER_DIRECT_BUFFER",
        "PRELOAD_MODEL",
        "PRIVATE_KEY_FILE",
        "SERVICE_ENVELOPE",
        "UNREGISTER_MODEL_TIMEOUT",
    )
)
"""Keys of config.properties that concern the original servers only. Any other name is a user's own variable."""
_NO_EFFECT: Final = {
    "CA_REPOSITORY_ARN": "packages come from the index of pip; set PIP_INDEX_URL",
    "HF_OPTIMUM_BATCH_SIZE": "no Neuron device is used",
    "HF_OPTIMUM_SEQUENCE_LENGTH": "no Neuron device is used",
    "MAX_CONTENT_LENGTH": "set SAGEMAKER_MAX_PAYLOAD_IN_MB",
    "SAGEMAKER_HANDLER": "it is for multi-model endpoints, which are not served",
    "SAGEMAKER_MAX_DIRECT_MEMORY_SIZE": "there is no Java virtual machine",
    "SAGEMAKER_MAX_HEAP_SIZE": "there is no Java virtual machine",
    "SAGEMAKER_MODEL_SERVER_VMARGS": "there is no Java virtual machine",
    "SAGEMAKER_NUM_MODEL_WORKERS": "set SAGEMAKER_MODEL_SERVER_WORKERS",
    "SAGEMAKER_SAFE_PORT_RANGE": "the server needs no further port",
    "SAGEMAKER_SERVING_MODULE": "the image decides how the model is served",
    "SAGEMAKER_USE_NGINX": "no proxy is started",
}
_BASE_FOLDERS: Final = ("", "/opt/ml")


def server_of(profile: str) -> str:
    """Return the name of the server in the images of a profile."""
    return _SERVERS.get(profile, MMS)


def config_variable(profile: str, key: str) -> str:
    """Return the variable for a key of config.properties; empty for a server without that file."""
    families = (family for family in _FAMILIES if family.server == server_of(profile))
    return next((f"{prefix}{key}" for _, prefix, applied in families if key in applied), "")


def number(env: Mapping[str, str], name: str, default: int, *, at_least: int = 0, at_most: int) -> int:
    """
    Return the number in a variable; the default if it is unset or empty.

    Raises:
        SettingsError: it is not a whole number within the bounds.
    """
    value = env.get(name, "").strip()
    if not value:
        return default
    given = int(value) if value.isascii() and value.isdigit() else -1
    if not at_least <= given <= at_most:
        raise SettingsError(f"{name} is {value!r}; expected a whole number from {at_least} to {at_most}.", name=name)
    return given


def first_set(env: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the first of the variables that has a value; empty if none has."""
    return next((name for name in names if name and env.get(name, "").strip()), "")


def without_effect(env: Mapping[str, str], profile: str) -> list[str]:
    """Return a sentence for each variable that is set for a server and changes nothing here."""
    reasons = {name: _reason(name, profile) for name in sorted(env) if env[name].strip()}
    if env.get("SAGEMAKER_BASE_DIR", "").strip().rstrip("/") not in _BASE_FOLDERS:
        reasons["SAGEMAKER_BASE_DIR"] = "the container's folders are below /opt/ml"
    return [f"{name} has no effect: {reason}." for name, reason in reasons.items() if reason]


def _reason(name: str, profile: str) -> str | None:
    for server, prefix, applied in _FAMILIES:
        if not name.startswith(prefix):
            continue
        key, own_server = name.removeprefix(prefix), server_of(profile)
        if key not in applied | _OTHER_KEYS:
            near = near_name(key, sorted(applied))
            return f"it is unknown; {prefix}{near} may be meant" if near else None
        if server != own_server:
            return f"it is for {server}, and the image of this model has {own_server}"
        return None if key in applied else f"Headrace's model server takes the place of {server}"
    return _NO_EFFECT.get(name)
