"""Headrace's stand-in for DJL Serving's package `djl_python`: what a `model.py` imports."""

from headrace_handler.submodules import add_submodules

from . import inputs, output_formatter
from .inputs import Input, PairList
from .outputs import Output
from .session_manager import Session, SessionManager

__version__ = "0.36.0"

__all__ = ["Input", "Output", "PairList", "Session", "SessionManager", "__version__"]

_MARKS = "SAGEMAKER_ADAPTER_IDENTIFIER_HEADER input_formatter prediction_handler init_handler"
add_submodules(__name__, {"input_parser": _MARKS}, source=output_formatter.__name__)
add_submodules(__name__, {"pair_list": "PairList"}, source=inputs.__name__)
