"""The layout of the platform's data folder, and the lock that keeps a second platform out of it."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from headrace.core.errors import SettingsError
from headrace.core.telemetry import get_logger


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a platform for programs on its machine."""

    url: str
    ca_bundle: str | None = None
    """File with the certificate to trust, if the platform's is its own root (self-signed); None otherwise."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The paths below a platform's data folder."""

    root: Path

    @property
    def database(self) -> Path:
        """The database of records, unless another one is configured."""
        return self.root / "records.sqlite"

    @property
    def metrics(self) -> Path:
        """Time series of metrics."""
        return self.root / "metrics.sqlite"

    @property
    def workers(self) -> Path:
        """A folder for each worker, with its log."""
        return self.root / "workers"

    @property
    def ended_logs(self) -> Path:
        """The logs of ended workers."""
        return self.root / "ended-logs"

    @property
    def artifacts(self) -> Path:
        """Fetched model files, shared by workers."""
        return self.root / "artifacts"

    @property
    def cluster(self) -> Path:
        """State, sessions and log of a Ray cluster started by the platform."""
        return self.root / "ray"

    @property
    def invocations(self) -> Path:
        """Pending asynchronous invocations."""
        return self.root / "invocations"

    @property
    def objects(self) -> Path:
        """The data of the embedded S3 server."""
        return self.root / "s3"

    @property
    def images(self) -> Path:
        """The file of own images, if it exists."""
        return self.root / "images.toml"

    @property
    def running(self) -> Path:
        """The file with the URL of the platform that runs on this folder."""
        return self.root / "running.json"

    def cluster_namespace(self) -> str:
        """Return this platform's name on a shared cluster; it is generated once and stored in the folder."""
        path = self.root / "cluster-namespace"
        try:
            return path.read_text(encoding="ascii")
        except FileNotFoundError:
            name = f"headrace-{secrets.token_hex(6)}"
            partial = path.with_suffix(".partial")
            partial.write_text(name, encoding="ascii")
            partial.replace(path)
            return name

    def make(self) -> None:
        """
        Create the folder, private to its owner because it holds secrets.

        Raises:
            SettingsError: it cannot be created or written.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_writable = os.access(self.root, os.W_OK | os.X_OK)
        except OSError as error:
            raise SettingsError(_unusable(self.root, str(error.strerror)), name="data_dir") from error
        if not is_writable:
            raise SettingsError(_unusable(self.root, "permission denied"), name="data_dir")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """
        Lock the folder against other platforms. The kernel releases the lock when this process ends for any reason.

        Raises:
            SettingsError: another platform uses the folder.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SettingsError(self._in_use_message(), name="data_dir") from error
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def announced(self, address: Address) -> Iterator[None]:
        """Publish the address to programs of this user until the block ends; a full disk does not prevent it."""
        partial = self.running.with_suffix(".partial")
        try:
            partial.write_text(json.dumps({**asdict(address), "pid": os.getpid()}), encoding="utf-8")
            partial.replace(self.running)
        except OSError as error:
            get_logger().warning("platform.not_announced", reason=error.strerror, data_dir=str(self.root))
        try:
            yield
        finally:
            with suppress(OSError):
                self.running.unlink()

    def running_address(self) -> Address | None:
        """Return the address of this folder's platform, even if it was killed."""
        try:
            return msgspec.json.decode(self.running.read_bytes(), type=Address)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _in_use_message(self) -> str:
        address = self.running_address()
        where = f" at {address.url}" if address else ""
        return (
            f"Another platform{where} already uses {self.root}. Use that one, stop it, "
            "or choose another folder with --data-dir."
        )


def _unusable(path: Path, why: str) -> str:
    return f"{path} cannot be used as the data folder: {why}. Choose another folder with --data-dir."
