"""Meanings of the keys of TorchServe's `model-config.yaml`."""

from headrace.settings.container_backends import TENSOR_PARALLEL
from headrace.settings.container_meanings import (
    ALWAYS,
    DTYPE,
    NO_CUSTOM_CODE,
    NO_LOAD_TIMEOUT,
    NO_SESSIONS,
    NO_TIMEOUT,
    NO_WORKERS,
    NOT_SPLIT,
    Converted,
    Fills,
    Meaning,
    NoEffect,
)

_CONTINUOUS = NoEffect("requests are batched continuously and do not wait for others", ("1",))


def _read_model_name(raw: str) -> Converted:
    """Accept a Hub id; handlers also use `model_name` for a label without meaning."""
    return (raw, "") if "/" in raw else (None, "it is a label; model_path names the model")


MODEL_CONFIG: dict[str, Meaning] = {
    "minWorkers": NO_WORKERS,
    "maxWorkers": NO_WORKERS,
    "batchSize": _CONTINUOUS,
    "maxBatchDelay": _CONTINUOUS,
    "micro_batching": _CONTINUOUS,
    "continuousBatching": ALWAYS,
    "asyncCommunication": ALWAYS,
    "responseTimeout": NO_TIMEOUT,
    "clientTimeoutInMills": NO_TIMEOUT,
    "startupTimeout": NO_LOAD_TIMEOUT,
    "maxRetryTimeoutInSec": NoEffect("restarting the server is up to the process that started it"),
    "jobQueueSize": Fills("max_concurrent_requests"),
    "useJobTicket": NoEffect("a full server answers 429 with Retry-After"),
    "deviceType": NoEffect("the model runs on the CPU", ("cpu",)),
    "deviceIds": NOT_SPLIT,
    "parallelType": NOT_SPLIT,
    "parallelLevel": TENSOR_PARALLEL,
    "torchrun": NOT_SPLIT,
    "pippy": NOT_SPLIT,
    "deepspeed": NOT_SPLIT,
    "sequenceBatching": NO_SESSIONS,
    "sequenceMaxIdleMSec": NO_SESSIONS,
    "sequenceTimeoutMSec": NO_SESSIONS,
    "maxSequenceJobQueueSize": NO_SESSIONS,
    "maxNumSequence": NO_SESSIONS,
    "useVenv": NO_CUSTOM_CODE,
    "handler.model_checkpoint_dir": Fills("model"),
    "handler.model_path": Fills("model"),
    "handler.model_id": Fills("model"),
    "handler.model_name": Fills("model", _read_model_name),
    "handler.revision": Fills("revision"),
    "handler.max_new_tokens": Fills("default_max_new_tokens"),
    "handler.max_length": Fills("default_max_new_tokens"),
    "handler.dtype": DTYPE,
    "handler.amp": NoEffect("dtype selects the format of the weights", ("bf16", "bfloat16")),
    "handler.tp_degree": TENSOR_PARALLEL,
    "handler.tensor_parallel": NOT_SPLIT,
    "handler.manual_seed": NoEffect("the seed is a field of each request"),
}
"""
Top-level keys, and keys of `handler` after a dot. Any other key of `handler` is for code that is not run; keys of
`handler.vllm_engine_config` are vLLM options. Source: pytorch/serve `docs/configuration.md` and
`examples/large_models`.
"""

MODEL_KEYS = ("handler.model_checkpoint_dir", "handler.model_path", "handler.model_id", "handler.model_name")
"""Keys that may name the model, the most specific one first."""
