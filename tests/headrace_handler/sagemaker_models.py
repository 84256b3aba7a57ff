"""Models with an `inference.py`, loaded and called in the test's own process."""

import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace_handler.contract import Contract, Load
from headrace_handler.contracts.sagemaker import make
from tests.headrace_handler.support import RecordingReply, call, imports_of_a_child

JSON, CSV, NPY = "application/json", "text/csv", "application/x-npy"
SERVER_ERROR = (
    b"<!doctype html>\n<html lang=en>\n<title>500 Internal Server Error</title>\n<h1>Internal Server Error</h1>\n"
    b"<p>The server encountered an internal error and was unable to complete your request. Either the server is "
    b"overloaded or there is an error in the application.</p>\n"
)
STANDIN_NAMES = (
    "ts",
    "sagemaker_inference",
    "sagemaker_containers",
    "sagemaker_xgboost_container",
    "sagemaker_huggingface_inference_toolkit",
)
_VARIABLES = ("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", "SAGEMAKER_INFERENCE_OUTPUT", "SAGEMAKER_BATCH", "HF_MODEL_ID")


@pytest.fixture
def sagemaker_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs and stand-ins are imported afresh, and the environment is that of a model without settings."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("HF_TASK", "SM_MODEL_DIR"):
        monkeypatch.setenv(name, "")  # set, so that what a contract writes there ends with the test
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with imports_of_a_child(*STANDIN_NAMES):
        yield


def write_program(folder: Path, code: str, name: str = "code/inference.py") -> str:
    """Write the program into the model's folder, and return its name as the entry."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path.name


def load(folder: Path, profile: str = "generic", entry: str = "inference.py") -> Contract:
    contract = make()
    contract.load(Load(model_name="m", model_dir=folder, entry=entry, options={"profile": profile}))
    return contract


def load_program(folder: Path, code: str, profile: str = "generic") -> Contract:
    return load(folder, profile, write_program(folder, code))


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def invoke(contract: Contract, body: bytes, content_type: str, accept: str = "*/*") -> RecordingReply:
    return call(contract, body, content_type=content_type, headers=[("Accept", accept)])[0]
