"""The description of a model's handler: which code runs in which child processes, and within which limits."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace_handler.contract import Load
from headrace_handler.policy import Policy

ContractName = Literal["djl", "torchserve", "sagemaker"]
"""A module of `headrace_handler.contracts`; also the wording of errors that the model server answers itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """
    The limits at which the pool gives up on a model whose children keep failing.

    A child that has loaded and answered a call ends the series of failures. Without limits the pool never gives up.
    """

    max_failures: int | None = None
    """Consecutive failures that are tolerated (DJL's `retry_threshold`)."""
    max_retry_s: float | None = None
    """Seconds from the first failure of a series during which children are restarted (`maxRetryTimeoutInSec`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """User code to serve, and the children that run it."""

    contract: ContractName
    load: Load
    python: Path = Path(sys.executable)
    """The interpreter; it needs neither Headrace nor any package installed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of a child; nothing is inherited from the server."""
    num_gpus: int = 0
    """GPUs that the model server sees, among which children are spread (`handlers.devices`) if `load.device` is set."""
    container_folders: Mapping[Path, Path] = field(default_factory=dict)
    """Folders that the code finds at these paths of a container, such as `/opt/ml/model`."""
    private_folders: Sequence[Path] = ()
    """Folders of the host, such as `/lib`, in which the code may create files that stay invisible to the host."""
    sandbox: Policy | None = None
    """The rights of the children; None: those of the server's user."""
    min_workers: int = 1
    """Children that always run, at least 1."""
    max_workers: int = 1
    max_idle_s: float = 60.0
    """Seconds without a call after which a child over `min_workers` is stopped."""
    queue_size: int = 1000
    """Requests that may wait for a child; more are refused."""
    max_batch_delay_ms: float = 100.0
    """Longest wait for a full batch, from its first request; only with `load.batch_size` > 1."""
    max_calls_per_worker: int = 64
    """Concurrent calls in a child whose contract is asynchronous; all other children run one call at a time."""
    load_timeout_s: float = 240.0
    call_timeout_s: float | None = 120.0
    """From the start of a call to its end, or for a stream to its first chunk. None: no limit."""
    chunk_timeout_s: float | None = 120.0
    """Longest gap between chunks of a stream; time spent waiting for a slow client does not count."""
    restart: RestartPolicy = RestartPolicy()
    cache_locks: Sequence[Callable[[], None]] = ()
    """Functions that release the model's entries in the caches of files and packages; see `release`."""

    def release(self) -> None:
        """Let the caches remove the model's files and packages, which no child uses any more."""
        for release_lock in self.cache_locks:
            release_lock()

    @property
    def model_name(self) -> str:
        """Name of the model, for logs, metrics and errors."""
        return self.load.model_name

    @property
    def batch_size(self) -> int:
        return self.load.batch_size
