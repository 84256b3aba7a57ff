"""
The folder of a worker: the launcher's assignment, the worker's report, and the log.

Files are replaced by renaming, so that a reader never sees a partial file, even after a kill.
"""

import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from headrace.core.processes import ProcessId
from headrace.platform.cluster.host_resources import Given
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.serving.http.tls import pin_of

LOOPBACK: Final = "127.0.0.1"
CONTAINERS: Final = "containers"
"""In the folder of a worker with several containers, the folder of theirs."""
_VALIDITY: Final = timedelta(days=3650)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,174}(?:\+[A-Za-z0-9-]{1,63})?")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The launcher's instructions to a worker process."""

    spec: WorkerSpec
    port: int
    """Port to listen on."""
    cache_folder: str
    """Cache of fetched artifacts, shared by workers."""
    log_position: int
    """Position in the log of its name at which this process's lines begin."""
    host: str = LOOPBACK
    """Address to listen on."""
    token: str = field(default="", repr=False)
    """Bearer token that requests must carry; empty if none is required."""
    pin: str = ""
    """Fragment of its URL that names its certificate (`pin_of`), with which it serves HTTPS; empty: plain HTTP."""
    parent: ProcessId | None = None
    """The parent process, if the worker must end with it."""
    given: Given = field(default_factory=Given)
    """Its GPUs and cores."""


class WorkerFiles:
    """The paths in the folder of one worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.assignment = folder / "worker.json"
        """The `Assignment`; it contains secrets."""
        self.certificate = folder / "certificate.pem"
        """Its certificate and the key, if it serves HTTPS."""
        self.environment = folder / "container.env"
        """The environment of the worker's container; it may contain secrets."""
        self.handle = folder / "handle.json"
        """The `Handle` of the newest process."""
        self.report = folder / "report.json"
        """The `Observation` that the worker itself reports: FETCHING, STARTING (also when it is ready) or EXITED."""
        self.ready = folder / "ready"
        """Exists since `/ping` first answered 200."""
        self.stopping = folder / "stopping"
        """Exists since SIGTERM was sent; contains the time of SIGKILL, seconds since 1970."""
        self.log = folder / "log.txt"
        """The worker's stdout and stderr."""
        self.log_base = folder / "log.base"
        """Contains the number of bytes that were cut from the beginning of the log."""
        self.scratch = folder / "scratch"
        """The worker's temporary files."""


def worker_files(root: Path, name: str) -> WorkerFiles:
    """
    Return the paths of a worker, or of a container (`container_log`) in it, below the folder of all.

    Raises `ValueError` if its name is no safe file name. The logs of ended containers lie beside those of workers.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a worker name; expected up to 175 letters, digits, '.', '_' and '-'.")
    worker, _, container = name.partition("+")
    nested = root / worker / CONTAINERS / container
    return WorkerFiles(nested if container and nested.is_dir() else root / name)


def container_log(worker: str, container: str) -> str:
    """Return the name of the log of one of several containers in a worker."""
    return f"{worker}+{container}"


def issue_certificate(path: Path, host: str) -> str:
    """
    Write a new key and its certificate, which it signs itself, to a file for its owner only; return the pin.

    Its dates are not checked: it ends with its worker.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"Headrace worker on {host}"[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _VALIDITY)
        .not_valid_after(now + _VALIDITY)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_atomically(path, certificate.public_bytes(pem) + private)
    return pin_of(certificate.public_bytes(serialization.Encoding.DER))


def write_value(path: Path, value: object) -> None:
    """Replace a file by a value in JSON, readable by its owner only."""
    write_atomically(path, msgspec.json.encode(value))


def read_value(path: Path, kind: type[_Value]) -> _Value | None:
    """Read a value in JSON; None if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 -- opened with its permissions
        file.write(content)
    partial.replace(path)
