"""
SageMaker's toolkits: the variables of their images and the files of a model to a `HandlerSpec`. Pure.

Sources: sagemaker-inference-toolkit `environment.py`, `model_server.py` and `parameters.py`,
sagemaker-pytorch-inference-toolkit `ts_environment.py`, `ts_parameters.py` and `torchserve.py`, sagemaker-containers
`_env.py` and `_params.py`, multi-model-server and TorchServe `ConfigManager` (a variable `MMS_X` or `TS_X` for each key
`x` of config.properties, which counts before the file that the toolkits write).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import CODE_FOLDER, Found
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.settings.container_tables import reasons_of
from headrace.serving.settings.values import near_name
from headrace_handler.contract import Load

_PROFILES: Final = {"transformers": "huggingface", "torchserve": "pytorch", "sklearn": "sklearn", "xgboost": "xgboost"}
"""Profiles of the contract by family of the image."""
_PROFILES_OF_IMPORTS: Final = {
    "xgboost": "xgboost",
    "sklearn": "sklearn",
    "joblib": "sklearn",
    "transformers": "huggingface",
    "torch": "pytorch",
}
"""For a folder without an image: the framework that the code imports, and whose image it was written for."""
_PROGRAM: Final = "inference.py"
_BOOSTER: Final = "xgboost-model"
"""The model file that SageMaker's XGBoost algorithm writes."""
_MAX_WORKERS: Final = 1000
_MAX_QUEUE: Final = 1_000_000
_MAX_S: Final = 7 * 86400
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
_OTHER_KEYS: Final = (
    "ALLOWED_URLS ASYNC_LOGGING BLACKLIST_ENV_VARS CERTIFICATE_FILE CORS_ALLOWED_HEADERS CORS_ALLOWED_METHODS "
    "CORS_ALLOWED_ORIGIN CPU_LAUNCHER_ARGS CPU_LAUNCHER_ENABLE DEBUG DECODE_INPUT_REQUEST DEFAULT_SERVICE_HANDLER "
    "DEFAULT_STARTUP_TIMEOUT DISABLE_SYSTEM_METRICS DISABLE_TOKEN_AUTHORIZATION ENABLE_METRICS_API "
    "ENABLE_MODEL_API GRPC_INFERENCE_PORT GRPC_MANAGEMENT_PORT INFERENCE_ADDRESS INSTALL_PY_DEP_PER_MODEL "
    "IPEX_ENABLE KEYSTORE KEYSTORE_PASS KEYSTORE_TYPE LIMIT_MAX_IMAGE_PIXELS LOAD_MODELS MANAGEMENT_ADDRESS "
    "MAX_RESPONSE_SIZE METRICS_ADDRESS METRICS_CONFIG METRICS_MODE MODEL_STORE NETTY_CLIENT_THREADS NUMBER_OF_GPU "
    "NUMBER_OF_NETTY_THREADS PREFER_DIRECT_BUFFER PRELOAD_MODEL PRIVATE_KEY_FILE SERVICE_ENVELOPE "
    "UNREGISTER_MODEL_TIMEOUT"
)
"""Keys of config.properties that concern the original servers only. Any other name is a user's own variable."""
_NO_EFFECT: Final = reasons_of("toolkit variables")
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
        if key not in applied and key not in _OTHER_KEYS.split():
            near = near_name(key, sorted(applied))
            return f"it is unknown; {prefix}{near} may be meant" if near else None
        if server != own_server:
            return f"it is for {server}, and the image of this model has {own_server}"
        return None if key in applied else f"Headrace's model server takes the place of {server}"
    return _NO_EFFECT.get(name)


def make_spec(found: Found) -> HandlerSpec:
    """
    Describe a model that one of SageMaker's toolkits serves.

    Raises:
        SettingsError: a variable is invalid, or asks for what is not served.
    """
    env = found.env
    if env.get("SAGEMAKER_MULTI_MODEL", "").strip().lower() == "true":
        raise SettingsError(
            "SAGEMAKER_MULTI_MODEL is true, and this server serves one model. Deploy it with Mode MultiModel instead.",
            name="SAGEMAKER_MULTI_MODEL",
        )
    profile = find_profile(found)
    min_workers, max_workers = _workers(env, profile)
    timeout_s = _call_timeout_s(env, profile)
    notices = without_effect(env, profile)
    batches = profile == "pytorch"
    return HandlerSpec(
        contract="sagemaker",
        load=Load(
            model_name=found.model_name,
            model_dir=found.root,
            entry=find_program(found),
            options={"profile": profile} | ({"notices": "\n".join(notices)} if notices else {}),
            device=0 if found.num_gpus and profile in ("pytorch", "huggingface") else None,
            batch_size=number(env, "SAGEMAKER_TS_BATCH_SIZE", 1, at_least=1, at_most=10_000) if batches else 1,
        ),
        min_workers=min_workers,
        max_workers=max_workers,
        queue_size=number(env, config_variable(profile, "JOB_QUEUE_SIZE"), 100, at_least=1, at_most=_MAX_QUEUE),
        max_batch_delay_ms=number(env, "SAGEMAKER_TS_MAX_BATCH_DELAY", 100, at_most=_MAX_S * 1000),
        load_timeout_s=number(env, "SAGEMAKER_STARTUP_TIMEOUT", 600, at_least=1, at_most=_MAX_S),
        call_timeout_s=timeout_s,
        chunk_timeout_s=timeout_s,
    )


def find_profile(found: Found) -> str:
    """Return the contract's profile: that of the image, else that of the framework which the code or model needs."""
    if found.family in _PROFILES:
        return _PROFILES[found.family]
    model_id = found.env.get("HF_MODEL_ID", "").strip()
    if found.env.get("HF_TASK", "").strip() or (model_id and not Path(model_id).is_absolute()):
        return "huggingface"  # a path is the folder itself, as `headrace deploy FOLDER` names it
    program = find_program(found)
    imported = frozenset[str]().union(*(found.imports.get(name, ()) for name in (program, f"{CODE_FOLDER}/{program}")))
    by_import = (profile for package, profile in _PROFILES_OF_IMPORTS.items() if package in imported)
    has_torch_file = any(name.endswith((".pt", ".pth")) for name in found.files)
    by_file = "xgboost" if _BOOSTER in found.files else "pytorch" if has_torch_file else "generic"
    return next(by_import, by_file)


def find_program(found: Found) -> str:
    """
    Return the file with the functions, or an empty string for the image's own.

    SageMaker's SDK sends an empty `SAGEMAKER_PROGRAM` for a model without code.
    """
    program = found.env.get("SAGEMAKER_PROGRAM", "").strip()
    folders = {"": found.root, f"{CODE_FOLDER}/": found.root / CODE_FOLDER}
    if found.code not in folders.values():  # a folder of its own (`SAGEMAKER_SUBMIT_DIRECTORY`)
        return str(found.code / (program or _PROGRAM))
    is_there = any(f"{prefix}{_PROGRAM}" in found.files for prefix in folders)
    return program or (_PROGRAM if is_there else "")


def _workers(env: Mapping[str, str], profile: str) -> tuple[int, int]:
    """
    Return the minimum and the maximum number of processes.

    The images start one per core; Headrace starts one, because each has a copy of the model, unless a variable asks for
    more.
    """
    names = (config_variable(profile, "DEFAULT_WORKERS_PER_MODEL"), "SAGEMAKER_MODEL_SERVER_WORKERS")
    asked = number(env, first_set(env, names), 1, at_least=1, at_most=_MAX_WORKERS)
    if profile != "pytorch":
        return asked, asked
    least = number(env, "SAGEMAKER_TS_MIN_WORKERS", asked, at_least=1, at_most=_MAX_WORKERS)
    most = number(env, "SAGEMAKER_TS_MAX_WORKERS", least, at_least=1, at_most=_MAX_WORKERS)
    return least, max(least, most)


def _call_timeout_s(env: Mapping[str, str], profile: str) -> float:
    """Return the timeout of a request: the first set variable of those that the image's server reads."""
    unit_s = 60 if server_of(profile) == MMS else 1
    in_seconds = {
        "SAGEMAKER_TS_RESPONSE_TIMEOUT": profile == "pytorch",
        config_variable(profile, "DEFAULT_RESPONSE_TIMEOUT_SECONDS"): True,
        config_variable(profile, "DEFAULT_RESPONSE_TIMEOUT"): unit_s == 1,
        "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": True,
    }
    if name := first_set(env, (name for name, is_read in in_seconds.items() if is_read)):
        return number(env, name, 60, at_least=1, at_most=_MAX_S)
    name = first_set(env, (config_variable(profile, "DEFAULT_RESPONSE_TIMEOUT"), "SAGEMAKER_MODEL_SERVER_TIMEOUT"))
    return unit_s * number(env, name, 60, at_least=1, at_most=_MAX_S // unit_s)
