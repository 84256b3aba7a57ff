"""Selectable outputs of the XGBoost image, which `SAGEMAKER_INFERENCE_OUTPUT` names."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from headrace_handler.contracts.sagemaker import recordio

_log = logging.getLogger(__name__)

_NAN = float("nan")
_LABELS = ("predicted_label", "labels")
_PROBABILITIES = ("probability", "probabilities")
_RAW_SCORES = ("raw_score", "raw_scores")
_VALID = (
    dict.fromkeys(
        ("reg:squarederror", "reg:logistic", "reg:gamma", "reg:absoluteerror", "reg:tweedie"), ("predicted_score",)
    )
    | dict.fromkeys(("binary:logistic", "multi:softprob"), (*_LABELS, *_PROBABILITIES, *_RAW_SCORES))
    | dict.fromkeys(("binary:logitraw", "binary:hinge", "multi:softmax"), (*_LABELS, *_RAW_SCORES))
)


def select(predictions: Any, keys: list[str], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """
    Return the named outputs of each prediction; NaN for one that the objective does not have.

    Args:
        predictions: the booster's, one a row.
        keys: names of outputs.
        config: the learner's part of the booster's configuration.

    Raises:
        ValueError: the objective offers no outputs to choose from.
    """
    objective = config["objective"]["name"]
    if objective not in _VALID:
        raise ValueError(f"Objective `{objective}` unsupported for selectable inference predictions.")
    valid = _VALID[objective]
    invalid = sorted(set(keys).difference(valid))
    if invalid:
        _log.warning("Outputs %s do not exist for the objective %s; expected some of %s", invalid, objective, valid)
    num_classes = int(config["learner_model_param"].get("num_class") or 0)
    outputs = _outputs(objective, num_classes)
    return [
        {key: outputs[key](prediction) for key in valid if key in keys} | dict.fromkeys(invalid, _NAN)
        for prediction in predictions
    ]


def _outputs(objective: str, num_classes: int) -> dict[str, Callable[[Any], Any]]:
    is_vector = objective == "multi:softprob"
    labels = list(range(num_classes)) if objective.startswith("multi:") else [0, 1]

    def label(prediction: Any) -> Any:
        if is_vector:
            return int(prediction.argmax())
        thresholds = {"binary:logistic": 0.5, "binary:logitraw": 0.0}
        if objective in thresholds:
            return int(prediction > thresholds[objective])
        return prediction.item()

    def best(prediction: Any) -> float:
        return float(prediction.max())

    def scores(prediction: Any) -> list[float]:
        return prediction.tolist() if is_vector else [1.0 - prediction.item(), prediction.item()]

    return {
        "predicted_label": label,
        "labels": lambda _: labels,
        "probability": best,
        "probabilities": scores,
        "raw_score": best,
        "raw_scores": scores,
        "predicted_score": best,
    }


def encode(predictions: list[dict[str, Any]], keys: list[str], accept: str) -> Any:
    """
    Return the outputs in the type that the client accepts.

    Raises:
        RuntimeError: the type is none of the image's.
    """
    if accept == "application/json":
        return json.dumps({"predictions": predictions})
    if accept == "application/jsonlines":
        return "".join(json.dumps(prediction) + "\n" for prediction in predictions)
    if accept == "application/x-recordio-protobuf":
        return b"".join(map(_record, predictions))
    if accept == "text/csv":
        lines = [",".join(_cell(prediction[key]) for key in keys) for prediction in predictions]
        return "\n".join(lines) + ("\n" if os.environ.get("SAGEMAKER_BATCH") else "")
    raise RuntimeError(f"Cannot encode selected predictions into accept type '{accept}'.")


def _cell(value: Any) -> str:
    return f'"{value}"' if isinstance(value, list) else str(value)


def _record(prediction: dict[str, Any]) -> bytes:
    import numpy as np

    values = {key: np.atleast_1d(np.asarray(value, dtype=np.float32)) for key, value in prediction.items()}
    return recordio.write_record({}, {key: recordio.Tensor(value) for key, value in values.items()})
