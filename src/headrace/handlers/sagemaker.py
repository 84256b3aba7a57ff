"""
SageMaker's toolkits: the variables of their images and the files of a model to a `HandlerSpec`. Pure.

Sources: sagemaker-inference-toolkit `environment.py` and `model_server.py`, sagemaker-pytorch-inference-toolkit
`ts_environment.py` and `torchserve.py`, sagemaker-containers `_env.py`, multi-model-server `ConfigManager`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.handlers.found import CODE_FOLDER, Found
from headrace.handlers.sagemaker_variables import (
    MMS,
    config_variable,
    first_set,
    number,
    server_of,
    without_effect,
)
from headrace.handlers.spec import HandlerSpec
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


def make_spec(found: Found) -> HandlerSpec:
    """
    Describe a model that one of SageMaker's toolkits serves.

    Raises:
        SettingsError: a variable is invalid, or asks for what is not served.
    """
    env = found.env
    if env.get("SAGEMAKER_MULTI_MODEL", "").strip().lower() == "true":
        raise SettingsError(
            "SAGEMAKER_MULTI_MODEL is true, and multi-model endpoints are not served. Deploy each model by itself.",
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
    by_file = "xgboost" if _BOOSTER in found.files else "pytorch" if _has_torch_file(found) else "generic"
    return next(by_import, by_file)


def _has_torch_file(found: Found) -> bool:
    return any(name.endswith((".pt", ".pth")) for name in found.files)


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
