"""Models with an `inference.py`, loaded and called in the test's own process."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_handler.contract import Contract, Load
from headrace_handler.contracts.sagemaker import make
from tests.headrace_handler.support import imports_of_a_child

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
