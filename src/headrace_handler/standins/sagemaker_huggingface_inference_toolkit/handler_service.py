"""The class that a model server loads; Headrace's own contract calls user code without it."""

from typing import Any

from sagemaker_inference import utils

from headrace_handler.contracts.sagemaker import pipelines
from headrace_handler.contracts.sagemaker.profiles import huggingface

from . import content_types, decoder_encoder


class HuggingFaceHandlerService:
    """A pipeline with its decoding and encoding, for subclasses."""

    def __init__(self) -> None:
        self.model_dir: str | None = None
        self.model: Any = None
        self.device: int = -1
        self.context: Any = None
        self.initialized = False

    def initialize(self, context: Any) -> None:
        self.context = context
        self.model_dir = context.system_properties.get("model_dir")
        gpu = context.system_properties.get("gpu_id")
        self.device = -1 if gpu is None else int(gpu)
        self.model = self.load(self.model_dir)
        self.initialized = True

    def load(self, model_dir: Any, context: Any = None) -> Any:  # noqa: ARG002
        return pipelines.load(str(model_dir), None if self.device < 0 else self.device)

    def preprocess(self, input_data: Any, content_type: Any, context: Any = None) -> Any:  # noqa: ARG002
        return decoder_encoder.decode(input_data, content_type)

    def predict(self, data: Any, model: Any, context: Any = None) -> Any:  # noqa: ARG002
        return huggingface.predict(data, model)

    def postprocess(self, prediction: Any, accept: str, context: Any = None) -> Any:  # noqa: ARG002
        return decoder_encoder.encode(prediction, accept)

    def transform_fn(self, model: Any, input_data: Any, content_type: Any, accept: str, context: Any = None) -> Any:
        data = self.preprocess(input_data, content_type, context)
        return self.postprocess(self.predict(data, model, context), accept, context)

    def handle(self, data: list[Any], context: Any) -> list[Any]:
        if not self.initialized:
            self.initialize(context)
        headers = context.request_processor[0].get_request_properties()
        content_type = utils.retrieve_content_type_header(headers)
        accept = headers.get("Accept") or headers.get("accept")
        if not accept or accept == content_types.ANY:
            accept = content_types.JSON
        body = data[0].get("body")
        if content_type in content_types.UTF8_TYPES:
            body = body.decode("utf-8")
        response = self.transform_fn(self.model, body, content_type, accept, context)
        context.set_response_content_type(0, accept)
        return [response]
