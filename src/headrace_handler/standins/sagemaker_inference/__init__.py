"""
Stand-in for the package of SageMaker's inference toolkit: the names that `inference.py` files import.

Headrace's own contract calls user code without the classes that a model server loads.
"""

import importlib
import importlib.util
import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from headrace_handler.arrays import array_to_json, array_to_npy, json_to_numpy, npy_to_numpy, npz_to_sparse
from headrace_handler.submodules import add_submodules

# content_types

JSON = "application/json"
CSV = "text/csv"
OCTET_STREAM = "application/octet-stream"
ANY = "*/*"
NPY = "application/x-npy"
NPZ = "application/x-npz"
UTF8_TYPES = [JSON, CSV]

# errors

_UNSUPPORTED = (
    "Content type {} is not supported by this framework.\n\n"
    "Please implement input_fn to to deserialize the request data or an output_fn to\n"
    "serialize the response. For more information, see the SageMaker Python SDK README."
)


class UnsupportedFormatError(Exception):
    """The toolkit's functions neither read nor write the content type."""

    def __init__(self, content_type: object) -> None:
        self._message = _UNSUPPORTED.format(content_type)
        super().__init__(self._message)


class BaseInferenceToolkitError(Exception):
    """An error that user code answers with a status of its own."""

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        self.status_code = status_code
        self.message = message
        self.phrase = phrase
        super().__init__(status_code, message, phrase)


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    def __init__(self, status_code: int, message: str | None = None, phrase: str | None = None) -> None:
        message = message or "Invalid Request"
        super().__init__(status_code, message, phrase or message)


# decoder, encoder


def _csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    import numpy as np

    return np.genfromtxt(io.StringIO(string_like), dtype=dtype, delimiter=",")


_decoder_map: dict[str, Callable[[Any], Any]] = {
    NPY: npy_to_numpy,
    CSV: _csv_to_numpy,
    JSON: json_to_numpy,
    NPZ: npz_to_sparse,
}


def decode(obj: Any, content_type: str | None) -> Any:
    """
    Return the array that `obj` holds.

    Raises `UnsupportedFormatError`: `content_type` is not one of JSON, CSV, NPY and NPZ.
    """
    if content_type not in _decoder_map:
        raise UnsupportedFormatError(content_type)
    return _decoder_map[content_type](obj)


def _array_to_csv(array_like: Any) -> str:
    import numpy as np

    stream = io.StringIO()
    np.savetxt(stream, array_like, delimiter=",", fmt="%s")
    return stream.getvalue()


_encoder_map: dict[str, Callable[[Any], Any]] = {
    NPY: array_to_npy,
    CSV: _array_to_csv,
    JSON: array_to_json,
}

SUPPORTED_CONTENT_TYPES = set(_encoder_map)


def encode(array_like: Any, content_type: str) -> Any:
    """
    Return the array as a body of the type: text for JSON and CSV, bytes for NPY.

    Raises `UnsupportedFormatError`: `content_type` is none of the three.
    """
    if content_type not in _encoder_map:
        raise UnsupportedFormatError(content_type)
    return _encoder_map[content_type](array_like)


# parameters: names of the environment variables that the toolkit reads

BASE_PATH_ENV = "SAGEMAKER_BASE_DIR"
USER_PROGRAM_ENV = "SAGEMAKER_PROGRAM"
LOG_LEVEL_ENV = "SAGEMAKER_CONTAINER_LOG_LEVEL"
DEFAULT_INVOCATIONS_ACCEPT_ENV = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
MODEL_SERVER_WORKERS_ENV = "SAGEMAKER_MODEL_SERVER_WORKERS"
MODEL_SERVER_TIMEOUT_ENV = "SAGEMAKER_MODEL_SERVER_TIMEOUT"
MODEL_SERVER_TIMEOUT_SECONDS_ENV = "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS"
MODEL_SERVER_VMARGS = "SAGEMAKER_MODEL_SERVER_VMARGS"
STARTUP_TIMEOUT_ENV = "SAGEMAKER_STARTUP_TIMEOUT"
BIND_TO_PORT_ENV = "SAGEMAKER_BIND_TO_PORT"
SAFE_PORT_RANGE_ENV = "SAGEMAKER_SAFE_PORT_RANGE"
MULTI_MODEL_ENV = "SAGEMAKER_MULTI_MODEL"
MAX_REQUEST_SIZE = "SAGEMAKER_MAX_PAYLOAD_IN_MB"

# environment

base_dir = os.environ.get(BASE_PATH_ENV, "/opt/ml")
# Set by the process that serves: the model need not lie in the container's folder.
model_dir = os.environ.get("SM_MODEL_DIR") or str(PurePath(base_dir, "model"))
code_dir = str(PurePath(model_dir, "code"))


def _int(name: str, default: str) -> int:
    return int(os.environ.get(name, default))


class Environment:
    """A snapshot of the settings; unset ones have the toolkit's defaults."""

    def __init__(self) -> None:
        program = os.environ.get(USER_PROGRAM_ENV, "inference.py")
        seconds = os.environ.get(MODEL_SERVER_TIMEOUT_SECONDS_ENV)
        request_mb = os.environ.get(MAX_REQUEST_SIZE)
        port = os.environ.get(BIND_TO_PORT_ENV, "8080")
        self.module_name = program.removesuffix(".py")
        self.model_server_timeout = _int(MODEL_SERVER_TIMEOUT_ENV, "60")
        self.model_server_timeout_seconds = None if seconds is None else int(seconds)
        self.model_server_workers = os.environ.get(MODEL_SERVER_WORKERS_ENV)
        self.startup_timeout = _int(STARTUP_TIMEOUT_ENV, "600")
        self.default_accept = os.environ.get(DEFAULT_INVOCATIONS_ACCEPT_ENV, JSON)
        self.inference_http_port = port
        self.management_http_port = port
        self.safe_port_range = os.environ.get(SAFE_PORT_RANGE_ENV)
        self.vmargs = os.environ.get(MODEL_SERVER_VMARGS, "-XX:-UseContainerSupport")
        self.max_request_size = None if request_mb is None else int(request_mb) * 1024 * 1024


# utils

_CONTENT_TYPE = ("content-type", "contenttype")


def read_file(path: Any, mode: str = "r") -> Any:
    with Path(path).open(mode) as file:
        return file.read()


def write_file(path: Any, data: Any, mode: str = "w") -> None:
    with Path(path).open(mode) as file:
        file.write(data)


def retrieve_content_type_header(request_property: Mapping[str, Any]) -> Any:
    """Return the first header that is a spelling of `Content-Type`, or None."""
    return next((request_property[name] for name in request_property if name.lower().startswith(_CONTENT_TYPE)), None)


def parse_accept(accept: str) -> list[str]:
    return accept.replace(" ", "").split(",")


def remove_crlf(illegal_string: str) -> str:
    """Return the text fit for a status line."""
    return illegal_string.replace("\r", " ").replace("\n", " ")


# default_inference_handler

_MISSING = (
    "\nPlease provide a {0} implementation.\nSee documentation for {0} at https://sagemaker.readthedocs.io/en/stable/\n"
)


class DefaultInferenceHandler:
    """Decode and encode by content type; loading and predicting are left to a subclass or to user code."""

    def default_model_fn(self, model_dir: Any, context: Any = None) -> Any:
        raise NotImplementedError(_MISSING.format("model_fn"))

    def default_input_fn(self, input_data: Any, content_type: Any, context: Any = None) -> Any:  # noqa: ARG002
        return decode(input_data, content_type)

    def default_predict_fn(self, data: Any, model: Any, context: Any = None) -> Any:
        raise NotImplementedError(_MISSING.format("predict_fn"))

    def default_output_fn(self, prediction: Any, accept: str, context: Any = None) -> Any:  # noqa: ARG002
        for content_type in parse_accept(accept):
            if content_type in SUPPORTED_CONTENT_TYPES:
                return encode(prediction, content_type), content_type
        raise UnsupportedFormatError(accept)


# transformer

_STEPS = ("input_fn", "predict_fn", "output_fn")


class Transformer:
    """The functions of the user's module and the defaults of an image, for the requests of a model server."""

    def __init__(self, default_inference_handler: Any = None) -> None:
        self._default_inference_handler = default_inference_handler or DefaultInferenceHandler()
        self._initialized = False
        self._functions: dict[str, Any] = {}
        self._environment: Environment
        self._model: Any = None
        self._context: Any = None

    @staticmethod
    def handle_error(context: Any, inference_exception: BaseInferenceToolkitError, trace: str) -> list[str]:
        phrase = remove_crlf(inference_exception.phrase)
        context.set_response_status(code=inference_exception.status_code, phrase=phrase)
        return [f"{inference_exception.message}\n{trace}"]

    def transform(self, data: list[Any], context: Any) -> list[Any]:
        """Answer the requests of a batch, each by its own headers."""
        try:
            self.validate_and_initialize(model_dir=context.system_properties.get("model_dir"), context=context)
            return [self._answer(item, index, context) for index, item in enumerate(data)]
        except BaseInferenceToolkitError as error:
            return self.handle_error(context, error, traceback.format_exc())
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            return self.handle_error(context, GenericInferenceToolkitError(500, str(error)), traceback.format_exc())

    def _answer(self, item: Any, index: int, context: Any) -> Any:
        headers = context.request_processor[index].get_request_properties()
        content_type = retrieve_content_type_header(headers)
        accept = headers.get("Accept") or headers.get("accept")
        if not accept or accept == ANY:
            accept = self._environment.default_accept
        body = item.get("body")
        if content_type in UTF8_TYPES:
            body = body.decode("utf-8")
        result = self._run("transform_fn", self._model, body, content_type, accept)
        result, response_type = result if isinstance(result, tuple) else (result, accept)
        context.set_response_content_type(index, response_type)
        return result

    def validate_and_initialize(self, model_dir: Any = model_dir, context: Any = None) -> None:
        """Import the module and load the model, once."""
        if self._initialized:
            return
        self._context = context
        self._environment = Environment()
        self._functions = self._find_functions()
        if "pre_model_fn" in self._functions:
            self._run("pre_model_fn", model_dir)
        self._model = self._run("model_fn", model_dir)
        if "model_warmup_fn" in self._functions:
            self._run("model_warmup_fn", model_dir, self._model)
        self._initialized = True

    def _find_functions(self) -> dict[str, Any]:
        names = ("pre_model_fn", "model_fn", "model_warmup_fn", *_STEPS, "transform_fn")
        module = None
        if importlib.util.find_spec(self._environment.module_name) is not None:
            module = importlib.import_module(self._environment.module_name)
        own = {name: function for name in names if (function := getattr(module, name, None))}
        if "transform_fn" in own and any(name in own for name in _STEPS):
            raise ValueError(
                "Cannot use transform_fn implementation in conjunction with "
                "input_fn, predict_fn, and/or output_fn implementation"
            )
        handler = self._default_inference_handler
        defaults = {name: function for name in names if (function := getattr(handler, f"default_{name}", None))}
        return {"transform_fn": self._default_transform_fn} | defaults | own

    def _default_transform_fn(self, model: Any, input_data: Any, content_type: Any, accept: Any) -> Any:
        data = self._run("input_fn", input_data, content_type)
        return self._run("output_fn", self._run("predict_fn", data, model), accept)

    def _run(self, name: str, *arguments: Any) -> Any:
        function = self._functions[name]
        num_parameters = len(inspect.signature(function).parameters)
        if num_parameters == len(arguments):
            return function(*arguments)
        if num_parameters == len(arguments) + 1:
            return function(*arguments, self._context)
        raise TypeError(f"{function.__name__} takes {num_parameters} arguments but {len(arguments)} were given.")


# default_handler_service


class DefaultHandlerService:
    def __init__(self, transformer: Any = None) -> None:
        self._service = transformer or Transformer()

    def handle(self, data: list[Any], context: Any) -> Any:
        return self._service.transform(data, context)

    def initialize(self, context: Any) -> None:
        """Make the code of the model importable, and load the model."""
        model_dir = context.system_properties.get("model_dir")
        code_dir = str(PurePath(model_dir, "code"))
        if code_dir not in sys.path:
            sys.path.insert(0, code_dir)
        self._service.validate_and_initialize(model_dir=model_dir, context=context)


add_submodules(
    __name__,
    {
        "content_types": "JSON CSV OCTET_STREAM ANY NPY NPZ UTF8_TYPES",
        "decoder": "decode _decoder_map",
        "default_handler_service": "DefaultHandlerService",
        "default_inference_handler": "DefaultInferenceHandler",
        "encoder": "encode SUPPORTED_CONTENT_TYPES _encoder_map",
        "environment": "Environment base_dir model_dir code_dir",
        "errors": "UnsupportedFormatError BaseInferenceToolkitError GenericInferenceToolkitError",
        "parameters": "BASE_PATH_ENV USER_PROGRAM_ENV LOG_LEVEL_ENV DEFAULT_INVOCATIONS_ACCEPT_ENV MODEL_SERVER_VMARGS "
        "MODEL_SERVER_WORKERS_ENV MODEL_SERVER_TIMEOUT_ENV MODEL_SERVER_TIMEOUT_SECONDS_ENV STARTUP_TIMEOUT_ENV "
        "BIND_TO_PORT_ENV SAFE_PORT_RANGE_ENV MULTI_MODEL_ENV MAX_REQUEST_SIZE",
        "transformer": "Transformer",
        "utils": "read_file write_file retrieve_content_type_header parse_accept remove_crlf",
    },
)
