"""The pytest plugin of `scripts/sanitize` and `scripts/arm`: load their own build of the native module."""

import importlib.util
import os
import sys

import headrace

_NAME = "headrace._native"

_spec = importlib.util.spec_from_file_location(_NAME, os.environ["HEADRACE_NATIVE_BUILD"])
headrace._native = sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(headrace._native)


def pytest_report_header():
    return f"native module: {headrace._native.__file__}"
