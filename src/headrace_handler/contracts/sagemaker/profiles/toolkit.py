"""`sagemaker-inference`: the toolkit that images for PyTorch, MXNet and users' own build on."""

import os
import traceback
from typing import Any

from headrace_handler.client_data import InvalidBody
from headrace_handler.contract import Item
from headrace_handler.contracts.sagemaker.context import header
from headrace_handler.contracts.sagemaker.functions import Function
from headrace_handler.contracts.sagemaker.responses import Response, UnsupportedOutput, server_error

from .base import Profile, accept_of, body, choose_type, media_type, text_if_known


class Toolkit(Profile):
    def defaults(self) -> dict[str, Function]:
        from sagemaker_inference.default_inference_handler import DefaultInferenceHandler

        handler = DefaultInferenceHandler()
        return {
            "model_fn": handler.default_model_fn,
            "input_fn": self.decode,
            "predict_fn": handler.default_predict_fn,
            "output_fn": self.encode,
        }

    def load(self) -> None:
        if "pre_model_fn" in self.functions:
            self.run("pre_model_fn", self.model_dir, self.base_context)
        super().load()
        if "model_warmup_fn" in self.functions:
            self.run("model_warmup_fn", self.model_dir, self.model, self.base_context)

    def answer(self, item: Item, context: Any) -> Response:
        content_type = header(item.headers, "content-type", "contenttype")
        accept = accept_of(item)
        data = text_if_known(body(item), content_type)
        return respond(self.transform(data, content_type, accept, context), accept, context)

    @staticmethod
    def decode(data: Any, content_type: str | None) -> Any:
        from sagemaker_inference import decoder

        return decoder.decode(data, media_type(content_type))

    @staticmethod
    def encode(prediction: Any, accept: str) -> Any:
        from sagemaker_inference import encoder, errors

        content_type = choose_type(accept, encoder.SUPPORTED_CONTENT_TYPES)
        if content_type is None:
            raise errors.UnsupportedFormatError(accept)
        return encoder.encode(prediction, content_type), content_type

    def fail(self, error: Exception) -> Response:
        from sagemaker_inference.errors import BaseInferenceToolkitError, GenericInferenceToolkitError

        if isinstance(error, UnsupportedOutput):
            return server_error(503, "Unsupported model output data type.")
        status = error.status if isinstance(error, InvalidBody) else 500
        known = error if isinstance(error, BaseInferenceToolkitError) else None
        known = known or GenericInferenceToolkitError(status, str(error))
        trace = "".join(traceback.format_exception(error)) if shows_traceback() else ""
        phrase = " ".join(str(known.phrase).splitlines())
        return Response(status=int(known.status_code), phrase=phrase, body=f"{known.message}\n{trace}")

    def execution_parameters(self) -> Response:
        message = "Requested resource is not found, please refer to API document."
        return server_error(404, message, "ResourceNotFoundException")


def respond(result: Any, accept: str, context: Any) -> Response:
    """Return the response for the result of user code and for the values that it set in the context."""
    content, content_type = result if isinstance(result, tuple) else (result, accept)
    status, phrase = context.get_response_status(0)
    own = [(name, value) for name, value in context.get_response_headers(0).items() if name.lower() != "content-type"]
    headers = [("Content-Type", content_type), *own] if content_type else own
    return Response(status=status, phrase=phrase or "", headers=headers, body=content)


def shows_traceback() -> bool:
    """Return whether errors carry the traceback, as the toolkits do; the log has it in any case."""
    return os.environ.get("HEADRACE_ERROR_TRACEBACK", "true").lower() != "false"
