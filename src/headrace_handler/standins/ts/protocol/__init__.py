"""The name under which handlers for TorchServe before 0.10 import `send_intermediate_predict_response`."""

from headrace_handler.submodules import add_submodules

from ..handler_utils import send_intermediate_predict_response

__all__ = ["send_intermediate_predict_response"]

add_submodules(__name__, {"otf_message_handler": "send_intermediate_predict_response"})
