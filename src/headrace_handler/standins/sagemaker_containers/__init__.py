"""
Stand-in for the package of SageMaker's older images (scikit-learn, XGBoost); its import has no side effects.

User code imports its parts from `sagemaker_containers.beta.framework`.
"""

import csv
import importlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NoReturn

from headrace_handler.arrays import array_to_json, array_to_npy, json_to_numpy, npy_to_numpy
from headrace_handler.contracts.sagemaker import recordio
from headrace_handler.contracts.sagemaker.profiles import containers
from headrace_handler.submodules import add_submodules

# _content_types

JSON = "application/json"
CSV = "text/csv"
OCTET_STREAM = "application/octet-stream"
ANY = "*/*"
NPY = "application/x-npy"
UTF8_TYPES = [JSON, CSV]

# _errors

_UNSUPPORTED = (
    "Content type {} is not supported by this framework.\n\n"
    "Please implement input_fn to to deserialize the request data or an output_fn to\n"
    "serialize the response. For more information, see the SageMaker Python SDK README."
)


class ClientError(Exception):
    """An error of user code or of its data."""


class ImportModuleError(ClientError):
    """User code cannot be imported."""


class UnsupportedFormatError(Exception):
    """The image's functions neither read nor write the content type."""

    def __init__(self, content_type: object) -> None:
        self.message = _UNSUPPORTED.format(content_type)
        super().__init__(self.message)


# _encoders


def csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    """
    Return the cells without axes of length one: text, or of `dtype`.

    Without a `dtype` cells that are all numbers become floats, as numpy's `astype(None)` does.
    """
    import numpy as np

    try:
        array = np.array(list(csv.reader(io.StringIO(string_like), strict=True))).squeeze()
    except (csv.Error, ValueError) as error:
        raise ClientError(f"Error while decoding csv: {error}") from error
    try:
        return array.astype(dtype)
    except ValueError as error:
        if dtype is None:
            return array
        raise ClientError(f"Error while writing numpy array: {error}. dtype is: {dtype}") from error


def array_to_csv(array_like: Any) -> str:
    """Return a line for each row; the values of a vector are rows of their own."""
    import numpy as np

    array = np.array(array_like)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    stream = io.StringIO()
    try:
        csv.writer(stream, lineterminator="\n", strict=True).writerows(array)
    except csv.Error as error:
        raise ClientError(f"Error while encoding csv: {error}") from error
    return stream.getvalue()


def array_to_recordio_protobuf(array_like: Any, labels: Any = None) -> bytes:
    """Return a record for each row of a vector, a matrix or a scipy sparse matrix."""
    if len(array_like.shape) == 1:
        array_like = array_like.reshape(1, array_like.shape[0])
    return recordio.write_matrix(array_like, labels)


_encoders_map: dict[str, Callable[[Any], Any]] = {
    NPY: array_to_npy,
    CSV: array_to_csv,
    JSON: array_to_json,
}
_decoders_map: dict[str, Callable[[Any], Any]] = {
    NPY: npy_to_numpy,
    CSV: csv_to_numpy,
    JSON: json_to_numpy,
}


def decode(obj: Any, content_type: str | None) -> Any:
    if content_type not in _decoders_map:
        raise UnsupportedFormatError(content_type)
    return _decoders_map[content_type](obj)


def encode(array_like: Any, content_type: str) -> Any:
    if content_type not in _encoders_map:
        raise UnsupportedFormatError(content_type)
    return _encoders_map[content_type](array_like)


# _env

base_dir = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
code_dir = str(PurePath(base_dir, "code"))
# Set by the process that serves: the model need not lie in the container's folder.
model_dir = os.environ.get("SM_MODEL_DIR") or str(PurePath(base_dir, "model"))
input_dir = str(PurePath(base_dir, "input"))
output_dir = str(PurePath(base_dir, "output"))
output_data_dir = str(PurePath(output_dir, "data"))


def num_cpus() -> int:
    return os.cpu_count() or 1


def num_gpus() -> int:
    """Return the GPUs that the process may see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])


class ServingEnv:
    """A snapshot of the settings; unset ones have the image's defaults."""

    def __init__(self) -> None:
        program = os.environ.get("SAGEMAKER_PROGRAM")
        self.module_name = program and program.removesuffix(".py")
        self.user_entry_point = program
        self.module_dir = os.environ.get("SAGEMAKER_SUBMIT_DIRECTORY", code_dir)
        self.model_dir = model_dir
        self.current_host = os.environ.get("SM_CURRENT_HOST")
        self.num_gpus = num_gpus()
        self.num_cpus = num_cpus()
        self.log_level = int(os.environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL", "20"))
        self.use_nginx = os.environ.get("SAGEMAKER_USE_NGINX", "true").lower() in {"y", "yes", "t", "true", "on", "1"}
        self.model_server_timeout = int(os.environ.get("SAGEMAKER_MODEL_SERVER_TIMEOUT", "60"))
        self.model_server_workers = int(os.environ.get("SAGEMAKER_MODEL_SERVER_WORKERS") or num_cpus())
        self.framework_module = os.environ.get("SAGEMAKER_SERVING_MODULE")
        self.default_accept = os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", JSON)
        self.http_port = os.environ.get("SAGEMAKER_BIND_TO_PORT", "8080")
        self.safe_port_range = os.environ.get("SAGEMAKER_SAFE_PORT_RANGE")


# _modules

DEFAULT_MODULE_NAME = "default_user_module_name"


def exists(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def has_requirements(path: str) -> bool:
    return Path(path, "requirements.txt").exists()


def import_module(uri: str, name: str = DEFAULT_MODULE_NAME, cache: Any = None) -> Any:  # noqa: ARG001
    """
    Import a module of a local folder.

    The original downloads and installs a package first; here code and requirements are in place before the process
    starts.

    Raises `ImportModuleError`: the module cannot be imported.
    """
    folder = code_dir if uri.startswith("s3://") else uri
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ImportModuleError(error) from error


# _worker

_TEXT_TYPES = frozenset({"application/ecmascript", "application/javascript", "application/sql", "application/xml"})


def full_content_type(mimetype: str) -> str:
    """Return the type as Flask sends it: text carries its character set."""
    is_text = mimetype.startswith("text/") or mimetype in _TEXT_TYPES or mimetype.endswith("+xml")
    return f"{mimetype}; charset=utf-8" if is_text and "charset=" not in mimetype else mimetype


class Response:
    """
    A response with the attributes of Flask's that `inference.py` files use.

    Attributes:
        data: the body; also what `get_data` returns.
    """

    default_mimetype = "application/json"

    def __init__(
        self,
        response: Any = None,
        accept: str | None = None,  # noqa: ARG002 - deprecated and ignored by the original, too
        status: int = 200,
        headers: Any = None,
        mimetype: str | None = None,
        direct_passthrough: bool = False,  # noqa: ARG002
    ) -> None:
        self.response = b"" if response is None else response
        self.status_code = int(status)
        self.headers = dict(headers or {})
        self.mimetype = mimetype or self.default_mimetype

    @property
    def content_type(self) -> str:
        return full_content_type(self.mimetype)

    @property
    def data(self) -> bytes:
        return self.response.encode() if isinstance(self.response, str) else bytes(self.response)

    def get_data(self, as_text: bool = False) -> Any:
        return self.data.decode() if as_text else self.data


# _transformer

_MISSING = (
    "\nPlease provide a {0} implementation.\nSee documentation for {0} at https://github.com/aws/sagemaker-python-sdk\n"
)

_Function = Callable[..., Any]


def default_model_fn(model_dir: Any) -> Any:
    raise NotImplementedError(_MISSING.format("model_fn"))


def default_input_fn(input_data: Any, content_type: str) -> Any:
    return decode(input_data, content_type)


def default_predict_fn(data: Any, model: Any) -> Any:
    raise NotImplementedError(_MISSING.format("predict_fn"))


def default_output_fn(prediction: Any, accept: str) -> Response:
    return Response(response=encode(prediction, accept), mimetype=accept)


class Transformer:
    """The functions of one model; `transform` takes the request that Flask's globals held in the original."""

    def __init__(
        self,
        model_fn: _Function | None = None,
        input_fn: _Function | None = None,
        predict_fn: _Function | None = None,
        output_fn: _Function | None = None,
        transform_fn: _Function | None = None,
        error_class: type[Exception] = ClientError,
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
        self._model = self._model_fn(model_dir)

    def transform(self, content: Any, content_type: str, accept: str) -> Any:
        result = self._transform_fn(self._model, content, content_type, accept)
        if isinstance(result, tuple):
            return Response(response=result[0], mimetype=result[1])
        return result

    def _default_transform_fn(self, model: Any, content: Any, content_type: str, accept: str) -> Any:
        try:
            data = self._input_fn(content, content_type)
        except UnsupportedFormatError as error:
            return Response(response=containers.describe_error(error), status=415)
        prediction = self._predict_fn(data, model)
        try:
            return self._output_fn(prediction, accept)
        except UnsupportedFormatError as error:
            return Response(response=containers.describe_error(error), status=406)


# entry_point: training's, which some `inference.py` files import and none can use while serving


def run(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise NotImplementedError("sagemaker_containers.entry_point.run starts training; this process serves a model.")


def install(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise NotImplementedError("sagemaker_containers.entry_point.install starts training; this process serves a model.")


add_submodules(
    __name__,
    {
        "_content_types": "JSON CSV OCTET_STREAM ANY NPY UTF8_TYPES",
        "_encoders": "csv_to_numpy array_to_csv array_to_recordio_protobuf decode encode array_to_npy array_to_json "
        "json_to_numpy npy_to_numpy _encoders_map _decoders_map",
        "_env": "base_dir code_dir model_dir input_dir output_dir output_data_dir num_cpus num_gpus ServingEnv",
        "_errors": "ClientError ImportModuleError UnsupportedFormatError",
        "_modules": "DEFAULT_MODULE_NAME exists has_requirements import_module",
        "_transformer": "default_model_fn default_input_fn default_predict_fn default_output_fn Transformer",
        "_worker": "Response full_content_type",
        "entry_point": "run install",
        "beta": "",
        "beta.framework": "",
    },
)
for _name in ("_content_types", "_encoders", "_env", "_errors", "_modules", "_transformer", "_worker", "entry_point"):
    setattr(sys.modules[f"{__name__}.beta.framework"], _name.lstrip("_"), sys.modules[f"{__name__}.{_name}"])
