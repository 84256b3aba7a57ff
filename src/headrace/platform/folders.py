"""What lies where in the platform's data folder, and the lock that keeps a second platform out of it."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import SettingsError
from headrace.core.telemetry import get_logger


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths below one data folder."""

    root: Path

    @property
    def database(self) -> Path:
        """The records, unless they are kept elsewhere."""
        return self.root / "records.sqlite"

    @property
    def metrics(self) -> Path:
        """What was measured over time."""
        return self.root / "metrics.sqlite"

    @property
    def workers(self) -> Path:
        """One folder for each worker, with its log."""
        return self.root / "workers"

    @property
    def ended_logs(self) -> Path:
        """The logs of workers that are no more."""
        return self.root / "ended-logs"

    @property
    def artifacts(self) -> Path:
        """Model files that were fetched, shared by workers."""
        return self.root / "artifacts"

    @property
    def cluster(self) -> Path:
        """A Ray cluster that was started here: its state, sessions and log."""
        return self.root / "ray"

    @property
    def invocations(self) -> Path:
        """Asynchronous invocations that wait."""
        return self.root / "invocations"

    @property
    def objects(self) -> Path:
        """The embedded S3 server's."""
        return self.root / "s3"

    @property
    def images(self) -> Path:
        """Own images, if there is such a file."""
        return self.root / "images.toml"

    @property
    def running(self) -> Path:
        """Where the platform that runs on this folder listens."""
        return self.root / "running.json"

    def cluster_namespace(self) -> str:
        """The name of this platform on a cluster that it shares with others; the same for as long as the folder."""
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
        Make the folder, for its owner alone: it holds secrets.

        Raises:
            SettingsError: it cannot be made or written.
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
        Keep other platforms out. The kernel lets go of the lock when this process ends, however it ends.

        Raises:
            SettingsError: another platform uses the folder.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SettingsError(self._taken(), name="data_dir") from error
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def announced(self, url: str) -> Iterator[None]:
        """Tell programs of this user where the platform listens, while it does; a full disk is no reason to stop."""
        partial = self.running.with_suffix(".partial")
        try:
            partial.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
            partial.replace(self.running)
        except OSError as error:
            get_logger().warning("platform.not_announced", reason=error.strerror, data_dir=str(self.root))
        try:
            yield
        finally:
            with suppress(OSError):
                self.running.unlink()

    def running_url(self) -> str | None:
        """Where the platform of this folder listens, or did when it was killed."""
        try:
            url = json.loads(self.running.read_text(encoding="utf-8"))["url"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return url if isinstance(url, str) else None

    def _taken(self) -> str:
        url = self.running_url()
        where = f" at {url}" if url else ""
        return (
            f"A platform runs{where} on {self.root} already. Use that one, stop it, "
            "or give this one a folder of its own with --data-dir."
        )


def _unusable(path: Path, why: str) -> str:
    return f"{path} cannot be used to keep data: {why}. Choose another folder with --data-dir."
