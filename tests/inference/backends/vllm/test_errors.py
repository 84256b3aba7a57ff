"""vLLM's failures as our errors."""

import json
import logging
from pathlib import Path

import pytest

from headrace.core.errors import (
    BrokenModel,
    Busy,
    EngineFailed,
    HeadraceError,
    InsufficientMemory,
    InvalidRequest,
    SettingsError,
    UnsupportedModel,
)
from headrace.inference.backends.vllm.child import FailureFile, library_level
from headrace.inference.backends.vllm.errors import Failure, read_failures, request_error, start_error

INITIALIZATION = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", InsufficientMemory),
        ("ValueError", "No available memory for the cache blocks.", InsufficientMemory),
        ("ValueError", "To serve at least one request, 4 GiB KV cache is needed, which is larger", InsufficientMemory),
        ("ValueError", "Available memory on node 0 (1/2 GiB) on startup is less than desired", InsufficientMemory),
        ("ValueError", "Model architectures ['Foo'] are not supported for now.", UnsupportedModel),
        ("ValueError", "Unknown quantization method: gguf. Must be one of [...]", UnsupportedModel),
        ("ValueError", "awq quantization is currently not supported in cpu.", UnsupportedModel),
        ("ValueError", "Failed to find a kernel that can implement the WNA16 linear layer. R", UnsupportedModel),
        ("ValueError", "Please pass the argument `trust_remote_code=True`", SettingsError),
        ("ValidationError", "1 validation error for CacheConfig\ncache_dtype\n  Input should be", SettingsError),
        ("SafetensorError", "Error while deserializing header: HeaderTooLarge", BrokenModel),
        ("RuntimeError", "cuda error 999", EngineFailed),
    ],
)
def test_the_cause_in_a_process_of_vllm_decides(kind: str, message: str, expected: type[HeadraceError]) -> None:
    error = start_error(INITIALIZATION, [Failure(kind, message), Failure("RuntimeError", "a consequence")])
    assert type(error) is expected
    assert message.split("\n", maxsplit=1)[0] in error.message
    assert "consequence" not in error.message


def test_an_error_in_the_server_itself_is_explained_too() -> None:
    assert isinstance(start_error(ValueError("Model architectures ['T5'] are not supported"), []), UnsupportedModel)


def test_processes_note_the_exceptions_that_they_log(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    handler = FailureFile(path)
    error = ValueError("no\nmemory")
    handler.handle(logging.LogRecord("vllm", logging.ERROR, "", 0, "failed", (), (ValueError, error, None)))
    handler.handle(logging.LogRecord("vllm", logging.ERROR, "", 0, "no exception", (), None))
    assert json.loads(path.read_text())["type"] == "ValueError"
    assert read_failures(path) == [Failure("ValueError", "no\nmemory")]
    assert read_failures(tmp_path / "none") == []


def test_lines_that_a_process_has_not_completed_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    whole = b'{"type": "ValueError", "message": "no memory"}\n'
    path.write_bytes(b'{"type": "Val' + b"\n" + b'{"type": 1}\n\xff\n[]\n\n' + whole + whole[:20])
    assert read_failures(path) == [Failure("ValueError", "no memory")]


def test_vllm_logs_its_warnings_and_more_only_for_debugging() -> None:
    levels = [library_level(level) for level in ("debug", "info", "warning", "error")]
    assert levels == [logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR]


class VLLMClientError(Exception):
    """Named as vLLM's: the table goes by names, because vLLM is not installed here."""

    parameter = "top_k"


class QueueOverflowError(Exception):
    pass


class EngineGenerateError(Exception):
    pass


def test_errors_of_requests_become_ours() -> None:
    refused = request_error(VLLMClientError("top_k is wrong"))
    assert isinstance(refused, InvalidRequest)
    assert refused.param == "top_k"
    assert isinstance(request_error(QueueOverflowError("busy")), Busy)
    wrapped = EngineGenerateError()
    wrapped.__cause__ = RuntimeError("the cause")
    assert "the cause" in request_error(wrapped).message
