"""Profiles of SageMaker's images: the default functions and the error texts of each."""

import os
from types import ModuleType

from headrace_handler.contract import Load, LoadFailed

from .base import Profile
from .containers import SKLearn, XGBoost
from .huggingface import HuggingFace
from .toolkit import PyTorch, Toolkit
from .xgboost_algorithm import XGBoostAlgorithm

__all__ = ["Profile", "create"]

_PROFILES: dict[str, type[Profile]] = {
    "generic": Toolkit,
    "pytorch": PyTorch,
    "huggingface": HuggingFace,
    "sklearn": SKLearn,
    "xgboost": XGBoost,
}


def create(load: Load, module: ModuleType | None) -> Profile:
    """
    Return the profile that the option `profile` names, for the user's module or for none.

    Raises `LoadFailed`: there is no such profile, or it cannot do what the environment asks for.
    """
    name = load.options.get("profile", "generic")
    if name not in _PROFILES:
        raise LoadFailed(500, f"The profile is {name}; expected one of {', '.join(_PROFILES)}.")
    if os.environ.get("SAGEMAKER_MULTI_MODEL", "false").lower() == "true":
        raise LoadFailed(
            500,
            "SAGEMAKER_MULTI_MODEL is true, and this server serves one model. Deploy it with Mode MultiModel instead.",
        )
    if name == "xgboost" and module is None:
        return XGBoostAlgorithm(load, module)
    return _PROFILES[name](load, module)
