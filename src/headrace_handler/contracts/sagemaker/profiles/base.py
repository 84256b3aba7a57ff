"""The base class of the profiles of all images."""

import os
from types import ModuleType
from typing import Any, ClassVar

from headrace_handler.client_data import decode_text
from headrace_handler.contract import Item, Load
from headrace_handler.contracts.sagemaker.responses import Response, server_error
from headrace_handler.contracts.sagemaker.user_code import Function, context_of_model, find, header

JSON = "application/json"
CSV = "text/csv"
_TEXT_TYPES = frozenset({JSON, CSV})


class Profile:
    """
    The functions of one model as its image calls them.

    Attributes:
        base_context: what user code gets while it loads; requests get a copy with their own headers.
    """

    passes_context: ClassVar[bool] = True
    conflict: ClassVar[str] = (
        "Cannot use transform_fn implementation in conjunction with "
        "input_fn, predict_fn, and/or output_fn implementation"
    )

    def __init__(self, load: Load, module: ModuleType | None) -> None:
        self.base_context = context_of_model(load)
        self.model_dir = str(load.model_dir)
        self.model: Any = None
        self.module = module
        self.functions = find(module, self.defaults(), with_context=self.passes_context, conflict=self.conflict)

    def defaults(self) -> dict[str, Function]:
        """Return the image's functions by name, without a context."""
        raise NotImplementedError

    def load(self) -> None:
        self.model = self.run("model_fn", self.model_dir, self.base_context)

    def answer(self, item: Item, context: Any) -> Response:
        raise NotImplementedError

    def fail(self, error: Exception) -> Response:
        raise NotImplementedError

    def execution_parameters(self) -> Response:
        """Answer a batch transform job that asks for its parameters; Multi Model Server has none."""
        message = "Requested resource is not found, please refer to API document."
        return server_error(404, message, "ResourceNotFoundException")

    def run(self, name: str, *arguments: Any) -> Any:
        return self.functions[name](*arguments)

    def transform(self, data: Any, content_type: str | None, accept: str, context: Any) -> Any:
        """Return what `transform_fn` returns, or the three functions in its place."""
        if "transform_fn" in self.functions:
            return self.run("transform_fn", self.model, data, content_type, accept, context)
        decoded = self.run("input_fn", data, content_type, context)
        prediction = self.run("predict_fn", decoded, self.model, context)
        return self.run("output_fn", prediction, accept, context)


def body(item: Item) -> bytearray:
    return item.parts[0].content if item.parts else bytearray()


def text_if_known(data: Any, content_type: str | None) -> Any:
    """
    Return JSON and CSV as text, which toolkits decode before `input_fn`: here in the character set of their type.

    The toolkits take a type with a `charset` for another one, and pass on bytes that no default function reads.
    """
    return decode_text(data, content_type) if media_type(content_type) in _TEXT_TYPES else data


def media_type(content_type: str | None) -> str | None:
    """Return the type without parameters: toolkits know `application/json` only, and clients add a `charset`."""
    return content_type and content_type.partition(";")[0].strip().lower()


def is_text(content_type: str | None) -> bool:
    return media_type(content_type) in _TEXT_TYPES


def accept_of(item: Item, default: str = JSON) -> str:
    """Return the header `Accept`, or the endpoint's default if it is absent or `*/*`."""
    accept = header(item.headers, "accept")
    if accept and accept.strip() != "*/*":
        return accept
    return os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT") or default


def choose_type(accept: str, supported: set[str]) -> str | None:
    """Return the first supported type of a header `Accept`, or None; quality values do not count."""
    for choice in map(media_type, accept.split(",")):
        if choice in supported:
            return choice
        if choice == "*/*":
            return os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT") or JSON
    return None
