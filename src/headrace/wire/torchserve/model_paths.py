"""
The routes by which TorchServe's clients name a model: its own, those of KServe's protocols, and SageMaker's.

Source: pytorch/serve `frontend/server/src/main/java/org/pytorch/serve/http/api/rest/InferenceRequestHandler.java`.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A request to a model, as its path describes it."""

    model: str | None
    """None: the only model."""
    version: str | None = None
    """None: the model's default version."""
    mode: Literal["predict", "explain"] = "predict"
    rest: str = ""
    """The handler's `url_path`; a whole path where query parameters are data, too."""


def read_model_path(path: str) -> ModelCall | None:  # noqa: PLR0911 -- one return for each form of path
    """Return the model and the mode that the path of a request names; None: the path names no model."""
    segments = path.rstrip("/").split("/")[1:]
    match segments:
        case ["predictions" | "explanations" as name, model, *more]:
            mode = _mode(explains=name == "explanations")
            return ModelCall(model=model, version=more[0] if more else None, mode=mode, rest="/".join(more[1:]))
        case ["invocations"]:
            return ModelCall(model=None, rest=path)
        case ["models", model, "invoke"]:
            return ModelCall(model=model, rest=path)
        case ["v1", "models", name] if name.endswith((":predict", ":explain")):
            model, _, verb = name.rpartition(":")
            return ModelCall(model=model, mode=_mode(explains=verb == "explain"))
        case ["v2", "models", model, "infer" | "explain" as verb]:
            return ModelCall(model=model, mode=_mode(explains=verb == "explain"))
        case [model, "predict"]:
            return ModelCall(model=model, rest=path)
        case [model, version, "predict"]:
            return ModelCall(model=model, version=version, rest=path)
    return None


def _mode(*, explains: bool) -> Literal["predict", "explain"]:
    return "explain" if explains else "predict"
