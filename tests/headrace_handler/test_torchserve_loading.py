"""Loading of handlers by TorchServe's contract: functions, classes, and the errors of those that fail."""

from pathlib import Path

import pytest

from headrace_handler.contract import LoadFailed
from tests.headrace_handler.support import call
from tests.headrace_handler.torchserve_models import load, write_model

pytestmark = pytest.mark.usefixtures("ts_imports")

ECHO = """
    def handle(data, context):
        if data is None:
            return None
        return [row["body"] for row in data]
"""


def test_a_function_is_called_once_while_it_loads_and_then_with_batches(tmp_path: Path) -> None:
    contract = load(write_model(tmp_path / "m", ECHO))

    first, second = call(contract, b"one", b"two")

    assert (first.status, first.body, first.headers) == (200, b"one", [])
    assert second.body == b"two"
    assert first.has_ended


@pytest.mark.parametrize("entry", ["service", "service.py", "service:handle", "service.py:handle"])
def test_all_spellings_of_a_handler_name_the_same_file(tmp_path: Path, entry: str) -> None:
    contract = load(write_model(tmp_path / "m", ECHO, entry=entry))

    assert call(contract, b"x")[0].body == b"x"


def test_a_handler_may_name_another_function(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "def run(data, ctx): return data and ['OK']", entry="service:run")

    assert call(load(folder), b"x")[0].body == b"OK"


def test_a_class_is_initialized_and_may_replace_its_handle(tmp_path: Path) -> None:
    handler = """
        from ts.torch_handler.base_handler import BaseHandler
        class Handler(BaseHandler):
            def __init__(self):
                super().__init__()
                self.handle = self.other
            def initialize(self, ctx):
                self.name = ctx.model_name
            def other(self, data, ctx):
                return [self.name]
    """
    assert call(load(write_model(tmp_path / "m", handler)), b"x")[0].body == b"m"


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("class A: ...\nclass B: ...", "Expected only one class in custom service code or a function entry point"),
        ("class A: ...", "Expect handle method in class"),
        ("import package_that_is_missing", "No module named 'package_that_is_missing'"),
        ("def handle(data, ctx): raise RuntimeError('Initialize failure.')", "RuntimeError: Initialize failure."),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_reported_with_the_first_error(
    tmp_path: Path, handler: str, message: str
) -> None:
    with pytest.raises(LoadFailed, match=message) as failed:
        load(write_model(tmp_path / "m", handler))
    assert failed.value.status == 500


@pytest.mark.parametrize("error", ["MemoryError('x')", "RuntimeError('CUDA out of memory')"])
def test_a_handler_that_lacks_memory_while_it_loads_fails_with_507(tmp_path: Path, error: str) -> None:
    with pytest.raises(LoadFailed, match="System out of memory") as failed:
        load(write_model(tmp_path / "m", f"def handle(data, ctx): raise {error}"))
    assert failed.value.status == 507


def test_a_handler_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"'nothing.py', which is neither a file of the model nor a default handler"):
        load(write_model(tmp_path / "m", ECHO, entry="nothing.py"))
