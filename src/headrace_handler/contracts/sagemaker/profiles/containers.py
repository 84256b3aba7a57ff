"""The images `sagemaker-scikit-learn` and `sagemaker-xgboost` with a script: functions behind a Flask application."""

import html
import json
import traceback
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, ClassVar

from headrace_handler.client_data import InvalidBody
from headrace_handler.contract import Item
from headrace_handler.contracts.sagemaker.responses import Response
from headrace_handler.contracts.sagemaker.user_code import Function, header

from .base import CSV, JSON, Profile, accept_of, body, choose_type, is_text, media_type, text_if_known

_PAGE = "<!doctype html>\n<html lang=en>\n<title>{0} {1}</title>\n<h1>{1}</h1>\n<p>{2}</p>\n"
_HTML = "text/html; charset=utf-8"
_INTERNAL_ERROR = (
    "The server encountered an internal error and was unable to complete your request. Either the server is "
    "overloaded or there is an error in the application."
)
_NOT_FOUND = (
    "The requested URL was not found on the server. If you entered the URL manually please check your spelling and "
    "try again."
)
_ENCODED_TYPES = {JSON, CSV, "application/x-npy"}


class Containers(Profile):
    """User code gets no context, and the server starts with its `model_fn`, which has no default."""

    passes_context: ClassVar[bool] = False
    conflict: ClassVar[str] = "Cannot use transform_fn implementation with input_fn, predict_fn, and/or output_fn"

    def defaults(self) -> dict[str, Function]:
        from sagemaker_containers.beta.framework import transformer

        return {"model_fn": transformer.default_model_fn, "output_fn": self.encode}

    @staticmethod
    def encode(prediction: Any, accept: str) -> Any:
        from sagemaker_containers.beta.framework import encoders, worker

        content_type = choose_type(accept, _ENCODED_TYPES) or accept
        return worker.Response(encoders.encode(prediction, content_type), mimetype=content_type)

    def answer(self, item: Item, context: Any) -> Response:
        content_type = header(item.headers, "contenttype") or header(item.headers, "content-type") or JSON
        accept = accept_of(item)
        data = text_if_known(bytes(body(item)), content_type)
        return render(self.transform(data, content_type, accept, context), accept)

    def transform(self, data: Any, content_type: str | None, accept: str, context: Any) -> Any:
        from sagemaker_containers.beta.framework import errors

        if "transform_fn" in self.functions:
            return super().transform(data, content_type, accept, context)
        try:
            decoded = self.run("input_fn", data, content_type, context)
        except errors.UnsupportedFormatError as error:
            return Response.of_text(415, describe_error(error), JSON)
        prediction = self.run("predict_fn", decoded, self.model, context)
        try:
            return self.run("output_fn", prediction, accept, context)
        except errors.UnsupportedFormatError as error:
            return Response.of_text(406, describe_error(error), JSON)

    def fail(self, error: Exception) -> Response:
        if not isinstance(error, InvalidBody):
            return internal_error()  # Flask's page tells nothing, which the log does
        text = _PAGE.format(error.status, HTTPStatus(error.status).phrase, html.escape(str(error)))
        return Response.of_text(error.status, text, _HTML)

    def execution_parameters(self) -> Response:
        return Response.of_text(404, _PAGE.format(404, "Not Found", _NOT_FOUND), _HTML)


class SKLearn(Containers):
    def defaults(self) -> dict[str, Function]:
        return super().defaults() | {"input_fn": _array, "predict_fn": lambda data, model: model.predict(data)}

    def execution_parameters(self) -> Response:
        function = getattr(self.module, "execution_parameters_fn", None)
        return super().execution_parameters() if function is None else render(function(), JSON)


class XGBoost(Containers):
    def defaults(self) -> dict[str, Function]:
        return super().defaults() | {
            "input_fn": _matrix,
            "predict_fn": lambda data, model: model.predict(data, validate_features=False),
        }


def _array(data: Any, content_type: str | None) -> Any:
    import numpy as np
    from sagemaker_containers.beta.framework import encoders

    array = encoders.decode(data, media_type(content_type))
    if media_type(content_type) == CSV and array.ndim == 1 and "\n" not in data.strip():
        array = array.reshape(1, -1)  # The image drops the axis of a single row, and every estimator then fails.
    return array.astype(np.float32) if is_text(content_type) else array


def _matrix(data: Any, content_type: str | None) -> Any:
    from sagemaker_xgboost_container import encoder

    # The image makes a row of missing values, or an error, of the newline that ends a file.
    return encoder.decode(data.strip() if isinstance(data, str) else data, content_type)


def describe_error(error: Exception) -> str:
    """Return the images' response to a type that they cannot read or write."""
    trace = "".join(traceback.format_exception(error))
    return json.dumps({"error": type(error).__name__, "error-message": str(error), "stack-trace": trace})


def internal_error() -> Response:
    return Response.of_text(500, _PAGE.format(500, "Internal Server Error", _INTERNAL_ERROR), _HTML)


def render(result: Any, accept: str) -> Response:
    """Return the response that Flask makes of what a function returns. Raises `TypeError`: Flask cannot convert it."""
    from sagemaker_containers.beta.framework import worker

    if isinstance(result, Response):
        return result
    if isinstance(result, tuple):
        result = worker.Response(response=result[0], mimetype=result[1])
    if hasattr(result, "get_data") and hasattr(result, "status_code"):  # ours, or a Flask response of the user's
        headers = [(name, value) for name, value in result.headers.items() if name.lower() != "content-type"]
        content = result.response if isinstance(result.response, Iterator) else result.get_data()
        return Response(
            status=result.status_code, headers=[("Content-Type", result.content_type), *headers], body=content
        )
    if isinstance(result, str | bytes | bytearray):
        return Response(headers=[("Content-Type", _HTML)], body=result)
    if isinstance(result, dict | list):
        text = json.dumps(result, sort_keys=True, separators=(",", ":")) + "\n"
        return Response(headers=[("Content-Type", JSON)], body=text)
    if isinstance(result, Iterator):
        return Response(headers=[("Content-Type", accept)], body=result)
    raise TypeError(
        f"The function returned a {type(result).__name__}; expected bytes, text, a pair of body and type, "
        "or a Response."
    )
