"""The images `huggingface-*-inference`: a transformers pipeline unless the user's functions replace it."""

from typing import Any

from headrace_handler.client_data import InvalidBody, check_parameters
from headrace_handler.contract import Item
from headrace_handler.contracts.sagemaker import pipelines
from headrace_handler.contracts.sagemaker.responses import Response, UnsupportedOutput, server_error
from headrace_handler.contracts.sagemaker.user_code import Function, header

from .base import Profile, accept_of, body, choose_type, media_type, text_if_known
from .toolkit import respond

_NO_CSV = frozenset({"zero-shot-classification", "table-question-answering"})


class HuggingFace(Profile):
    def defaults(self) -> dict[str, Function]:
        return {
            "model_fn": lambda model_dir: pipelines.load(model_dir, self.base_context.system_properties["gpu_id"]),
            "input_fn": self._decode,
            "predict_fn": predict,
            "output_fn": _encode,
        }

    def load(self) -> None:
        self.model_dir = pipelines.fetch_model(self.model_dir)
        self.base_context.system_properties["model_dir"] = self.model_dir
        super().load()

    def answer(self, item: Item, context: Any) -> Response:
        content_type = header(item.headers, "content-type", "contenttype")
        accept = accept_of(item)
        data = text_if_known(body(item), content_type)
        result = self.transform(data, content_type, accept, context)
        # The toolkit knows no pair (body, type): it is a value like others, written as JSON.
        value = list(result) if isinstance(result, tuple) else result
        return respond((value, choose_type(accept, _encoded_types()) or accept), accept, context)

    @staticmethod
    def _decode(data: Any, content_type: str | None) -> Any:
        from sagemaker_huggingface_inference_toolkit import decoder_encoder

        task = pipelines.configured_task()
        if task in _NO_CSV and media_type(content_type) == "text/csv":
            raise ValueError(f"content type {content_type} not support with {task}, use different content_type")
        return decoder_encoder.decode(data, media_type(content_type))

    def fail(self, error: Exception) -> Response:
        if isinstance(error, UnsupportedOutput):
            return server_error(503, "Unsupported model output data type.")
        return server_error(error.status if isinstance(error, InvalidBody) else 400, str(error))


def predict(data: Any, model: Any) -> Any:
    """Call the pipeline with `inputs` and `parameters`, or with the whole body."""
    if not isinstance(data, dict):  # an array: the toolkit fails at its `pop`
        return model(data)
    inputs = data.pop("inputs", data)
    parameters = data.pop("parameters", None)
    check_parameters(parameters)
    return model(inputs) if parameters is None else model(inputs, **parameters)


def _encoded_types() -> set[str]:
    from sagemaker_huggingface_inference_toolkit import content_types

    return {content_types.JSON, content_types.CSV, content_types.NPY, *content_types.VISION_TYPES}


def _encode(prediction: Any, accept: str) -> Any:
    from sagemaker_huggingface_inference_toolkit import decoder_encoder

    return decoder_encoder.encode(prediction, choose_type(accept, _encoded_types()) or accept)
