"""Headrace's stand-in for DJL Serving's package `djl_python`: what a `model.py` imports."""

from .inputs import Input
from .outputs import Output
from .pair_list import PairList
from .session_manager import Session, SessionManager

__version__ = "0.36.0"

__all__ = ["Input", "Output", "PairList", "Session", "SessionManager", "__version__"]
