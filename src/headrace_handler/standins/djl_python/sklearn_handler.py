"""DJL's handler for models of scikit-learn; functions of a `model.py` next to the model take over single steps."""

import inspect
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from importlib import import_module, util
from pathlib import Path
from typing import Any

from headrace_handler.stray_files import listed

from .encode_decode import decode
from .inputs import Input
from .outputs import Output

_EXTENSIONS = {
    "skops": ("skops",),
    "joblib": ("joblib", "jl"),
    "pickle": ("pkl", "pickle"),
    "cloudpickle": ("pkl", "pickle", "cloudpkl"),
}
_DECORATED = ("is_init_handler", "is_input_formatter", "is_prediction_handler", "is_output_formatter")
_SAGEMAKER = {
    "model_fn": (["model_dir"],),
    "input_fn": (["request_body", "content_type"], ["request_body", "request_content_type"]),
    "predict_fn": (["input_data", "model"],),
    "output_fn": (["prediction", "accept"], ["prediction", "response_content_type"]),
}
"""Functions of SageMaker that stand for the decorated ones if their parameters have these names."""


class CustomFormatterError(Exception):
    """A function of the `model.py` failed."""


class SklearnHandler:
    """A model of scikit-learn with its functions."""

    def __init__(self) -> None:
        self.initialized = False
        self.model: Any = None
        self.default_accept = "application/json"
        self.functions: list[Callable[..., Any] | None] = [None] * len(_DECORATED)
        self.is_sagemaker_script = False

    def initialize(self, properties: Mapping[str, Any]) -> None:
        folder = Path(properties["model_dir"])
        self.functions, self.is_sagemaker_script = _functions(_user_module(folder))
        self.default_accept = properties.get("default_accept", self.default_accept)
        load = self.functions[0]
        loaded = None if load is None else _call("init handler", load, str(folder))
        self.model = _load_model(folder, properties) if loaded is None else loaded
        self.initialized = True

    def inference(self, inputs: Input) -> Output:
        _, read, predict, write = self.functions
        accept = inputs.get_property("Accept") or self.default_accept
        if accept == "*/*":
            accept = self.default_accept
        if write is None and not any(known in accept for known in ("application/json", "text/csv")):
            raise ValueError(f"Unsupported Accept type: {accept}. Supported types: application/json, text/csv")
        rows = self._rows(inputs, read)
        predictions = None if predict is None else _call("prediction handler", predict, rows, self.model)
        if predictions is None:
            predictions = self.model.predict(rows)
        return self._output(predictions, accept, write)

    def _rows(self, inputs: Input, read: Callable[..., Any] | None) -> Any:
        content_type = inputs.get_property("Content-Type") or ""
        if read is None:
            rows = _decode(inputs, content_type)
        elif self.is_sagemaker_script:
            rows = _call("input formatter", read, inputs.get_as_bytes(), content_type)
        else:
            rows = _call("input formatter", read, inputs, content_type=content_type)
        if not hasattr(rows, "ndim"):
            raise ValueError(f"Input processing failed for content type {content_type}")
        return rows.reshape(1, -1) if rows.ndim < 2 else rows

    def _output(self, predictions: Any, accept: str, write: Callable[..., Any] | None) -> Output:
        import numpy as np

        if write is not None and self.is_sagemaker_script:
            written = _call("output formatter", write, predictions, accept)
            return Output().add_property("Content-Type", accept).add(written)
        if write is not None:
            return Output().add(_call("output formatter", write, predictions))
        if "text/csv" not in accept:
            return Output().add_as_json({"predictions": predictions.tolist()})
        text = io.StringIO()
        np.savetxt(text, predictions, fmt="%s", delimiter=",")
        return Output().add_property("Content-Type", "text/csv").add(text.getvalue().rstrip())


_service = SklearnHandler()


def handle(inputs: Input) -> Output | None:
    """Load the model with the first call, then answer requests."""
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    return None if inputs.is_empty() else _service.inference(inputs)


def _decode(inputs: Input, content_type: str) -> Any:
    import numpy as np

    payload = decode(inputs, content_type, require_csv_headers=False)
    if "text/csv" in content_type:
        return payload
    return np.array(payload.get("inputs") if isinstance(payload, dict) else payload)


def _user_module(folder: Path) -> Any:
    """Return the folder's `model.py`, which runs once: the server may have imported it already."""
    file = folder / "model.py"
    if "model" in sys.modules or not file.is_file():
        return sys.modules.get("model")
    spec = util.spec_from_file_location("model", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["model"] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _functions(module: Any) -> tuple[list[Callable[..., Any] | None], bool]:
    """Return the functions that load, read, predict and write, and whether they are SageMaker's."""
    values = [value for value in vars(module).values() if callable(value)] if module else []
    decorated = [next((value for value in values if getattr(value, mark, False)), None) for mark in _DECORATED]
    if any(decorated):
        return decorated, False
    named = [_with_parameters(getattr(module, name, None), parameters) for name, parameters in _SAGEMAKER.items()]
    return named, any(named)


def _with_parameters(function: Any, parameters: tuple[list[str], ...]) -> Callable[..., Any] | None:
    if not callable(function):
        return None
    return function if list(inspect.signature(function).parameters) in parameters else None


def _call(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise CustomFormatterError(f"Custom {what} execution failed: {error}") from error


def _load_model(folder: Path, properties: Mapping[str, Any]) -> Any:
    model_format = properties.get("model_format", "skops")
    extensions = _EXTENSIONS.get(model_format)
    if extensions is None:
        raise ValueError(
            f"Unsupported model format: {model_format}. Supported formats: skops, joblib, pickle, cloudpickle"
        )
    file = _model_file(folder, model_format, extensions)
    if model_format == "skops":
        return import_module("skops.io").load(file, trusted=_trusted_types(properties))
    if str(properties.get("trust_insecure_model_files", "false")).lower() != "true":
        raise ValueError(
            f"option.trust_insecure_model_files must be set to 'true' to use {model_format} format"
            " (only skops is secure by default)"
        )
    if model_format == "joblib":
        return import_module("joblib").load(file)
    if model_format == "cloudpickle":
        import_module("cloudpickle")
    return pickle.loads(file.read_bytes())  # noqa: S301  # the owner of the model has set the switch above


def _model_file(folder: Path, model_format: str, extensions: tuple[str, ...]) -> Path:
    files = listed(folder, [f"*.{extension}" for extension in extensions])
    if not files:
        raise FileNotFoundError(f"No model file found with format '{model_format}' in {folder}")
    if len(files) > 1:
        raise ValueError(
            f"Multiple model files found in {folder}: {[file.name for file in files]}."
            " Only one model file is supported per directory."
        )
    return files[0]


def _trusted_types(properties: Mapping[str, Any]) -> list[str]:
    types = [name.strip() for name in str(properties.get("skops_trusted_types", "")).split(",") if name.strip()]
    if not types:
        raise ValueError(
            "option.skops_trusted_types must be set to load skops models. Example:"
            " option.skops_trusted_types='sklearn.ensemble._forest.RandomForestClassifier,numpy.ndarray'"
        )
    return types
