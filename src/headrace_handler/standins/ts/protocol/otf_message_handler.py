"""The name under which handlers for TorchServe before 0.10 import `send_intermediate_predict_response`."""

from ..handler_utils.utils import send_intermediate_predict_response

__all__ = ["send_intermediate_predict_response"]
