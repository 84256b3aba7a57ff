"""
The image `sagemaker-xgboost` without a script: a booster that answers csv, libsvm and recordio-protobuf.

`SAGEMAKER_INFERENCE_OUTPUT` selects outputs by their names.
"""

import json
import logging
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace_handler.client_data import decode_text
from headrace_handler.contract import Item, LoadFailed
from headrace_handler.contracts.sagemaker import recordio
from headrace_handler.contracts.sagemaker.responses import Response
from headrace_handler.contracts.sagemaker.user_code import Function, header
from headrace_handler.stray_files import listed

from .base import CSV, JSON, Profile, body, media_type
from .containers import internal_error

_log = logging.getLogger(__name__)

_JSON_LINES = "application/jsonlines"
_RECORDIO = "application/x-recordio-protobuf"
_ACCEPTS = [JSON, _JSON_LINES, _RECORDIO, CSV]
_HTML = "text/html; charset=utf-8"
_VOTING = frozenset({"multi:softmax", "binary:hinge"})
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


class _Refused(Exception):
    """An error that is answered with a status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class XGBoostAlgorithm(Profile):
    def defaults(self) -> dict[str, Function]:
        return {"model_fn": load_boosters}

    def load(self) -> None:
        try:
            super().load()
        except Exception as error:
            raise LoadFailed(500, f"Unable to load model: {error}") from error
        self.config = json.loads(self.model[0][0].save_config())["learner"]

    def answer(self, item: Item, context: Any) -> Response:  # noqa: ARG002
        payload = bytes(body(item))
        if not payload:
            return Response(status=204)
        try:
            return self._answer(item, payload)
        except _Refused as error:
            _log.exception("Request %s was refused", item.request_id)
            return Response.of_text(error.status, str(error), _HTML)

    def _answer(self, item: Item, payload: bytes) -> Response:
        kind, matrix = _parse(payload, header(item.headers, "content-type"))
        try:
            predictions = self._predict(matrix, kind)
        except Exception as error:
            raise _Refused(400, f"Unable to evaluate payload provided: {error}") from error
        accept = _accept(item)
        if "SAGEMAKER_INFERENCE_OUTPUT" in os.environ:
            keys = os.environ["SAGEMAKER_INFERENCE_OUTPUT"].replace(" ", "").lower().split(",")
            try:
                encoded = encode_selection(select_outputs(predictions, keys, self.config), keys, accept)
            except (ValueError, RuntimeError) as error:
                raise _Refused(500, str(error)) from error
        else:
            encoded = encode_scores(predictions.tolist(), accept)
        content_type = f"{accept}; charset=utf-8" if accept.startswith("text/") else accept
        return Response(headers=[("Content-Type", content_type)], body=encoded)

    def _predict(self, matrix: Any, kind: str) -> Any:
        import numpy as np

        results = []
        for booster, is_pickle in self.model:
            if is_pickle:
                _check_columns(matrix.num_col(), booster.num_features(), kind)
            results.append(booster.predict(matrix, validate_features=False))
        if len(results) == 1:
            return results[0]
        if self.config["objective"]["name"] in _VOTING:
            return np.apply_along_axis(_most_frequent, 0, np.array(results))
        return np.mean(results, axis=0)

    def fail(self, error: Exception) -> Response:  # noqa: ARG002
        return internal_error()

    def execution_parameters(self) -> Response:
        max_bytes = int(os.environ.get("MAX_CONTENT_LENGTH", str(6 * 1024 * 1024)))
        parameters = {
            "MaxConcurrentTransforms": os.cpu_count() or 1,
            "BatchStrategy": "MULTI_RECORD",
            "MaxPayloadInMB": max_bytes // 1024**2,
        }
        return Response(headers=[("Content-Type", JSON)], body=json.dumps(parameters))


def load_boosters(model_dir: str) -> list[tuple[Any, bool]]:
    """
    Return each booster of the folder with whether it was a pickle.

    Raises `RuntimeError`: a file is neither a pickle nor a model of XGBoost, or there is none.
    """
    files = [file for file in listed(Path(model_dir)) if file.is_file()]
    if not files:
        raise RuntimeError(f"No model file in {model_dir}")
    is_ensemble = os.environ.get("SAGEMAKER_INFERENCE_ENSEMBLE", "true") == "true"
    return [_load_booster(file) for file in (files if is_ensemble else files[:1])]


def _load_booster(file: Path) -> tuple[Any, bool]:
    import xgboost

    try:
        booster = pickle.loads(file.read_bytes())  # noqa: S301 - the model is the endpoint owner's code
        is_pickle = True
    except Exception as pickle_error:  # noqa: BLE001 - what is no pickle may fail in any way
        booster, is_pickle = xgboost.Booster(), False
        try:
            booster.load_model(file)
        except xgboost.core.XGBoostError as error:
            raise RuntimeError(
                f"Model {file} cannot be loaded:\nPickle load error={pickle_error}\nXGB load model error={error}"
            ) from error
    booster.set_param("nthread", 1)
    return booster, is_pickle


def _parse(payload: bytes, content_type: str | None) -> tuple[str, Any]:
    """Return the short name of the format and the rows."""
    from sagemaker_xgboost_container import data_utils, encoder

    try:
        kind = data_utils.get_content_type(content_type)
    except Exception as error:
        raise _Refused(415, str(error)) from error
    decoders = {
        "csv": lambda: encoder.csv_to_dmatrix(decode_text(payload, content_type).strip(), dtype=float),
        "libsvm": lambda: encoder.libsvm_to_dmatrix(payload),
        "recordio-protobuf": lambda: encoder.recordio_protobuf_to_dmatrix(payload),
    }
    if kind not in decoders:
        raise _Refused(415, f"Content-type {content_type} is not supported.")
    try:
        return kind, decoders[kind]()
    except Exception as error:
        raise _Refused(
            415,
            f"Loading {kind} data failed with Exception, please ensure data is in {kind} format:\n"
            f" {type(error)}\n {error}",
        ) from error


def _check_columns(num_columns: int, num_features: int, kind: str) -> None:
    if kind == "libsvm" and num_columns > num_features + 1:
        raise ValueError(
            f"Feature size of libsvm inference data {num_columns} is larger than "
            f"feature size of trained model {num_features}."
        )
    if kind != "libsvm" and num_columns not in {num_features, num_features - 1}:
        raise ValueError(
            f"Feature size of {kind} inference data {num_columns} is not consistent "
            f"with feature size of trained model {num_features}."
        )


def _most_frequent(votes: Any) -> Any:
    import numpy as np

    values, counts = np.unique(votes, return_counts=True)
    return values[counts.argmax()]


def _accept(item: Item) -> str:
    accept = media_type(header(item.headers, "accept"))
    if not accept or accept == "*/*":
        return os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT") or CSV
    if accept not in _ACCEPTS:
        raise _Refused(406, f"Accept type {accept} is not supported. Please use supported accept types: {_ACCEPTS}.")
    return accept


def encode_scores(scores: list[Any], accept: str) -> Any:
    """Return the predictions in the type; a batch transform job gets a line for each."""
    from sagemaker_containers.beta.framework import encoders

    if os.environ.get("SAGEMAKER_BATCH"):
        return "\n".join(map(str, scores)) + "\n"
    if accept == CSV:
        return encoders.encode(scores, CSV)
    # The image fails at jsonlines and recordio; AWS documents them in the form of selected outputs.
    return encode_selection([{"score": score} for score in scores], ["score"], accept)


def select_outputs(predictions: Any, keys: list[str], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """
    Return the named outputs of each prediction; NaN for one that the objective does not have.

    Raises `ValueError`: the objective offers no outputs to choose from.
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


def encode_selection(predictions: list[dict[str, Any]], keys: list[str], accept: str) -> Any:
    """
    Return the outputs in the type that the client accepts.

    Raises `RuntimeError`: the type is none of the image's.
    """
    if accept == JSON:
        return json.dumps({"predictions": predictions})
    if accept == _JSON_LINES:
        return "".join(json.dumps(prediction) + "\n" for prediction in predictions)
    if accept == _RECORDIO:
        return b"".join(map(_record, predictions))
    if accept == CSV:
        lines = [
            ",".join(f'"{value}"' if isinstance(value := prediction[key], list) else str(value) for key in keys)
            for prediction in predictions
        ]
        return "\n".join(lines) + ("\n" if os.environ.get("SAGEMAKER_BATCH") else "")
    raise RuntimeError(f"Cannot encode selected predictions into accept type '{accept}'.")


def _record(prediction: dict[str, Any]) -> bytes:
    import numpy as np

    values = {key: np.atleast_1d(np.asarray(value, dtype=np.float32)) for key, value in prediction.items()}
    return recordio.write_record({}, {key: recordio.Tensor(value) for key, value in values.items()})
