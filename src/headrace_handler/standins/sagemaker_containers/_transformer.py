"""Default functions, and the class that users' serving modules build from their own."""

from collections.abc import Callable
from typing import Any

from headrace_handler.contracts.sagemaker.profiles import containers

from . import _encoders, _env, _errors, _worker

_MISSING = (
    "\nPlease provide a {0} implementation.\nSee documentation for {0} at https://github.com/aws/sagemaker-python-sdk\n"
)

_Function = Callable[..., Any]


def default_model_fn(model_dir: Any) -> Any:
    raise NotImplementedError(_MISSING.format("model_fn"))


def default_input_fn(input_data: Any, content_type: str) -> Any:
    return _encoders.decode(input_data, content_type)


def default_predict_fn(data: Any, model: Any) -> Any:
    raise NotImplementedError(_MISSING.format("predict_fn"))


def default_output_fn(prediction: Any, accept: str) -> _worker.Response:
    return _worker.Response(response=_encoders.encode(prediction, accept), mimetype=accept)


class Transformer:
    """The functions of one model; `transform` takes the request that Flask's globals held in the original."""

    def __init__(
        self,
        model_fn: _Function | None = None,
        input_fn: _Function | None = None,
        predict_fn: _Function | None = None,
        output_fn: _Function | None = None,
        transform_fn: _Function | None = None,
        error_class: type[Exception] = _errors.ClientError,
    ) -> None:
        if transform_fn and (input_fn or predict_fn or output_fn):
            raise ValueError("Cannot use transform_fn implementation with input_fn, predict_fn, and/or output_fn")
        self._model: Any = None
        self._model_fn = model_fn or default_model_fn
        self._input_fn = input_fn or default_input_fn
        self._predict_fn = predict_fn or default_predict_fn
        self._output_fn = output_fn or default_output_fn
        self._transform_fn = transform_fn or self._default_transform_fn
        self._error_class = error_class

    def initialize(self) -> None:
        self._model = self._model_fn(_env.model_dir)

    def transform(self, content: Any, content_type: str, accept: str) -> Any:
        result = self._transform_fn(self._model, content, content_type, accept)
        if isinstance(result, tuple):
            return _worker.Response(response=result[0], mimetype=result[1])
        return result

    def _default_transform_fn(self, model: Any, content: Any, content_type: str, accept: str) -> Any:
        try:
            data = self._input_fn(content, content_type)
        except _errors.UnsupportedFormatError as error:
            return _worker.Response(response=containers.describe_error(error), status=415)
        prediction = self._predict_fn(data, model)
        try:
            return self._output_fn(prediction, accept)
        except _errors.UnsupportedFormatError as error:
            return _worker.Response(response=containers.describe_error(error), status=406)
