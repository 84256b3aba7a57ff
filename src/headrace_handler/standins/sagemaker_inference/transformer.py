"""The class that handler services build on; Headrace's own contract calls user code without it."""

import importlib
import importlib.util
import inspect
import traceback
from typing import Any

from . import content_types, environment, utils
from .default_inference_handler import DefaultInferenceHandler
from .errors import BaseInferenceToolkitError, GenericInferenceToolkitError

_STEPS = ("input_fn", "predict_fn", "output_fn")


class Transformer:
    """The functions of the user's module and the defaults of an image, for the requests of a model server."""

    def __init__(self, default_inference_handler: Any = None) -> None:
        self._default_inference_handler = default_inference_handler or DefaultInferenceHandler()
        self._initialized = False
        self._functions: dict[str, Any] = {}
        self._environment: environment.Environment
        self._model: Any = None
        self._context: Any = None

    @staticmethod
    def handle_error(context: Any, inference_exception: BaseInferenceToolkitError, trace: str) -> list[str]:
        phrase = utils.remove_crlf(inference_exception.phrase)
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
        content_type = utils.retrieve_content_type_header(headers)
        accept = headers.get("Accept") or headers.get("accept")
        if not accept or accept == content_types.ANY:
            accept = self._environment.default_accept
        body = item.get("body")
        if content_type in content_types.UTF8_TYPES:
            body = body.decode("utf-8")
        result = self._run("transform_fn", self._model, body, content_type, accept)
        result, response_type = result if isinstance(result, tuple) else (result, accept)
        context.set_response_content_type(index, response_type)
        return result

    def validate_and_initialize(self, model_dir: Any = environment.model_dir, context: Any = None) -> None:
        """Import the module and load the model, once."""
        if self._initialized:
            return
        self._context = context
        self._environment = environment.Environment()
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
