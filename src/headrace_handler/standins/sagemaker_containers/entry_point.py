"""Training's entry point, which some `inference.py` files import and none can use while serving."""

from typing import Any, NoReturn


def run(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise NotImplementedError("sagemaker_containers.entry_point.run starts training; this process serves a model.")


def install(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise NotImplementedError("sagemaker_containers.entry_point.install starts training; this process serves a model.")
