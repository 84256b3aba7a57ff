"""The functions of an image without user code."""

from typing import Any

from . import decoder, encoder, errors, utils

_MISSING = (
    "\nPlease provide a {0} implementation.\nSee documentation for {0} at https://sagemaker.readthedocs.io/en/stable/\n"
)


class DefaultInferenceHandler:
    """Decode and encode by content type; loading and predicting are left to a subclass or to user code."""

    def default_model_fn(self, model_dir: Any, context: Any = None) -> Any:
        raise NotImplementedError(_MISSING.format("model_fn"))

    def default_input_fn(self, input_data: Any, content_type: Any, context: Any = None) -> Any:  # noqa: ARG002
        return decoder.decode(input_data, content_type)

    def default_predict_fn(self, data: Any, model: Any, context: Any = None) -> Any:
        raise NotImplementedError(_MISSING.format("predict_fn"))

    def default_output_fn(self, prediction: Any, accept: str, context: Any = None) -> Any:  # noqa: ARG002
        for content_type in utils.parse_accept(accept):
            if content_type in encoder.SUPPORTED_CONTENT_TYPES:
                return encoder.encode(prediction, content_type), content_type
        raise errors.UnsupportedFormatError(accept)
