"""
TorchServe's settings of a model: the manifest, `model-config.yaml` and `TS_*` variables to a `HandlerSpec`. Pure.

Source: pytorch/serve `frontend/archive/src/main/java/org/pytorch/serve/archive/model/{Manifest,ModelConfig}.java`,
`frontend/server/src/main/java/org/pytorch/serve/util/ConfigManager.java`, and the image's
`sagemaker-pytorch-inference-toolkit/etc/default-ts.properties`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import MANIFEST_FILE, Found
from headrace.serving.handlers.spec import HandlerSpec, RestartPolicy
from headrace.serving.handlers.torchserve_config import variable, versions_of
from headrace.serving.settings.container_tables import reasons_of
from headrace_handler.contract import Load
from headrace_handler.contracts.torchserve.loader import ENVELOPES

DEFAULT_VERSION: Final = "1.0"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
_CONFIG_DEFAULT_S: Final = 120
"""Default timeout of a model with a `model-config.yaml`, instead of the image's own default."""
_SAGEMAKER_RESPONSE_S: Final = 60
_MAX_S: Final = 7 * 86400
_REFUSED: Final = {
    "asyncCommunication": "it runs vLLM inside of TorchServe; serve the model's folder without a handler",
    "torchrun": "it starts several processes for one model; serve the model's folder without a handler",
}
_NO_EFFECT: Final = reasons_of("model-config.yaml of handlers")


def make_spec(found: Found) -> HandlerSpec:
    """
    Describe a model of TorchServe.

    Precedence: `model-config.yaml`, the model's entry in the key `models` of config.properties, variables
    (`TS_BATCH_SIZE`, `SAGEMAKER_TS_BATCH_SIZE`), defaults.

    Raises:
        SettingsError: the manifest is incomplete, or a setting is invalid or cannot be applied.
    """
    model = _read_manifest(found)
    config = found.model_config
    name = found.model_name if found.family else model.get("modelName", found.model_name)
    entry = versions_of(found.env, name).get(model_version(found.manifest), {})
    found = replace(found, model_config={**entry, **config})
    for key, reason in _REFUSED.items():
        if config.get(key):
            raise SettingsError(f"model-config.yaml: {key} is not supported: {reason}.", name=key)
    min_workers, max_workers = _workers(found)
    return HandlerSpec(
        contract="torchserve",
        load=Load(
            model_name=name,
            model_dir=found.root,
            entry=_handler(found, model),
            options=_options(found, model),
            manifest=found.manifest,
            model_config=config,
            device=_device(found),
            batch_size=_number(found, "batchSize", "BATCH_SIZE", 1, largest=10_000),
        ),
        min_workers=min_workers,
        max_workers=max_workers,
        queue_size=_number(found, "jobQueueSize", "JOB_QUEUE_SIZE", 100, largest=1_000_000),
        max_batch_delay_ms=_number(found, "maxBatchDelay", "MAX_BATCH_DELAY", 100, smallest=0, largest=_MAX_S * 1000),
        load_timeout_s=_seconds(found, "startupTimeout", "DEFAULT_STARTUP_TIMEOUT", _CONFIG_DEFAULT_S),
        call_timeout_s=(response_s := _response_timeout_s(found)),
        chunk_timeout_s=response_s,
        restart=RestartPolicy(max_retry_s=_seconds(found, "maxRetryTimeoutInSec", "MAX_RETRY_TIMEOUT_IN_SEC", 300)),
    )


def model_version(manifest: Mapping[str, Any]) -> str:
    """Return the version of a model, for `/predictions/{name}/{version}`."""
    model = manifest.get("model")
    return str((model if isinstance(model, dict) else {}).get("modelVersion") or DEFAULT_VERSION)


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """Name the keys of a model-config.yaml that change nothing here, each with the reason."""
    return [f"model-config.yaml: {key} has no effect: {why}." for key, why in _NO_EFFECT.items() if config.get(key)]


def _read_manifest(found: Found) -> Mapping[str, Any]:
    """Return `model` of the manifest; empty for a folder without a manifest."""
    if not found.manifest:
        return {}
    model = found.manifest.get("model")
    if not isinstance(model, dict):
        raise SettingsError(f"{MANIFEST_FILE}: Missing Model entry in manifest file.")
    name = model.get("modelName")
    if not isinstance(name, str) or not name:
        raise SettingsError(f"{MANIFEST_FILE}: Model name is not defined.")
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{MANIFEST_FILE}: modelName is {name!r}; expected letters, digits, '_', '-' and '.'.")
    if not model.get("modelVersion"):
        raise SettingsError(f"{MANIFEST_FILE}: Model version is not defined.")
    if found.manifest.get("runtime", "python") not in ("python", "python2", "python3"):
        raise SettingsError(
            f"{MANIFEST_FILE}: Runtime is not defined or invalid: {found.manifest['runtime']!r}; expected 'python'."
        )
    return model


def _device(found: Found) -> int | None:
    """Return the first GPU, if there is one and it may be used."""
    allowed = _count(variable(found.env, "NUMBER_OF_GPU"), "TS_NUMBER_OF_GPU", default=found.num_gpus)
    is_cpu = str(found.model_config.get("deviceType", "gpu")).lower() == "cpu"
    return 0 if min(found.num_gpus, allowed) and not is_cpu else None


def _handler(found: Found, model: Mapping[str, Any]) -> str:
    handler = model.get("handler") or variable(found.env, "DEFAULT_SERVICE_HANDLER")
    if not handler:
        raise SettingsError(
            f"The model {found.model_name} names no handler. Expected model.handler in {MANIFEST_FILE}, or "
            "TS_DEFAULT_SERVICE_HANDLER, such as 'service.py:handle'."
        )
    return str(handler)


def _options(found: Found, model: Mapping[str, Any]) -> dict[str, str]:
    envelope = str(model.get("envelope") or variable(found.env, "SERVICE_ENVELOPE"))
    if envelope and envelope not in ENVELOPES:
        raise SettingsError(f"The service envelope is {envelope!r}; expected one of {', '.join(ENVELOPES)}.")
    decode = found.env.get("TS_DECODE_INPUT_REQUEST") or ("false" if found.family == "torchserve" else "true")
    options = {
        "service_envelope": envelope,
        "decode_input_request": decode.strip().lower(),
        "limit_max_image_pixels": variable(found.env, "LIMIT_MAX_IMAGE_PIXELS").lower(),
        "metrics_config": variable(found.env, "METRICS_CONFIG"),
        "notices": "\n".join(without_effect(found.model_config)),
    }
    return {key: value for key, value in options.items() if value}


def _workers(found: Found) -> tuple[int, int]:
    """Return the minimum and maximum workers; as in TorchServe, inconsistent configured numbers are ignored."""
    config = found.model_config
    if config.get("sequenceBatching"):
        if _count(config.get("maxWorkers"), "maxWorkers", default=1) > 1:
            raise SettingsError(
                f"model-config.yaml: maxWorkers is {config['maxWorkers']} with sequenceBatching; expected 1, because a "
                "sequence stays with its worker.",
                name="maxWorkers",
            )
        return 1, 1
    least = _count(config.get("minWorkers"), "minWorkers", default=0)
    most = _count(config.get("maxWorkers"), "maxWorkers", default=0)
    if 0 < least <= most:
        return least, most
    by_default = variable(found.env, "DEFAULT_WORKERS_PER_MODEL") or found.env.get("SAGEMAKER_NUM_MODEL_WORKERS")
    least = _count(variable(found.env, "MIN_WORKERS") or by_default, "TS_MIN_WORKERS", default=1)
    return least, max(least, _count(variable(found.env, "MAX_WORKERS"), "TS_MAX_WORKERS", default=least))


def _response_timeout_s(found: Found) -> int:
    default = _SAGEMAKER_RESPONSE_S if found.family == "torchserve" else _CONFIG_DEFAULT_S
    if found.model_config:
        return _count(
            found.model_config.get("responseTimeout"), "responseTimeout", default=_CONFIG_DEFAULT_S, at_most=_MAX_S
        )
    given = variable(found.env, "RESPONSE_TIMEOUT") or variable(found.env, "DEFAULT_RESPONSE_TIMEOUT")
    return _count(given, "TS_DEFAULT_RESPONSE_TIMEOUT", default=default, at_most=_MAX_S)


def _seconds(found: Found, key: str, name: str, default: int) -> int:
    return _number(found, key, name, default, largest=_MAX_S)


def _number(found: Found, key: str, name: str, default: int, *, smallest: int = 1, largest: int) -> int:
    """Return a number of model-config.yaml, else of a variable, else the default."""
    if found.model_config.get(key) is not None:
        return _count(found.model_config[key], key, default=default, at_least=smallest, at_most=largest)
    return _count(variable(found.env, name), f"TS_{name}", default=default, at_least=smallest, at_most=largest)


def _count(value: Any, name: str, *, default: int, at_least: int = 0, at_most: int = 1000) -> int:
    """Check a number; return the default if it is absent."""
    if value is None or value == "":
        return default
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or not at_least <= number <= at_most:
        raise SettingsError(f"{name} is {value!r}; expected a whole number from {at_least} to {at_most}.", name=name)
    return number
