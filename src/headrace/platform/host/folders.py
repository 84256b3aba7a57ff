"""The layout of the platform's data folder, the lock that keeps a second platform out of it, and the key in it."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from headrace.core.errors import SettingsError
from headrace.core.processes import ProcessId, is_running, this_process
from headrace.core.telemetry import get_logger


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a platform for programs on its machine."""

    url: str
    ca_bundle: str | None = None
    """File with the certificate to trust, if the platform's is its own root (self-signed); None otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPlatform:
    """The platform that a data folder names: its address, its process, and whether it is shutting down."""

    url: str
    process: ProcessId
    is_stopping: bool = False


class _Below:
    """A path below the data folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "DataFolder", _owner: type) -> Path:
        return folder.root / self._name


@dataclass(frozen=True)
class DataFolder:
    """The paths below a platform's data folder."""

    root: Path

    database = _Below("records.sqlite")
    """The database of records, unless another one is configured."""
    metrics = _Below("metrics.sqlite")
    """Time series of metrics."""
    workers = _Below("workers")
    """A folder for each worker, with its log."""
    ended_logs = _Below("ended-logs")
    """The logs of ended workers."""
    artifacts = _Below("artifacts")
    """Fetched model files, shared by workers."""
    cluster = _Below("ray")
    """State, sessions and log of a Ray cluster started by the platform."""
    invocations = _Below("invocations")
    """Long responses to asynchronous invocations, and invocations that earlier versions have accepted."""
    blobs = _Below("blobs.sqlite")
    """Blobs, such as pending asynchronous invocations, unless the database is a server."""
    prefixes = _Below("prefixes")
    """The prefix caches of endpoints, as sensitive as their prompts; removed with them."""
    batches = _Below("batches")
    """Files and batches of OpenAI's and Anthropic's APIs."""
    transforms = _Below("transforms")
    """Progress of batch transform jobs: their inputs, and the responses that are in no output object yet."""
    objects = _Below("s3")
    """The data of the embedded S3 server."""
    storage_log = _Below("s3/log.txt")
    """The output of the embedded S3 server since its last start."""
    images = _Below("images.toml")
    """The file of own images, if it exists."""
    registry = _Below("registry")
    """Images of containers that clients have pushed."""
    jumpstart = _Below("jumpstart.toml")
    """The user's rows of JumpStart's catalogue, if it exists."""
    settings = _Below("settings.json")
    """The settings of the newest start on which records depend."""
    members = _Below("members.sqlite")
    """Leader and loads of the processes that share the SQLite store of this folder."""
    sockets = _Below("sockets")
    """A Unix socket for each process of a platform with several."""
    key_usage = _Below("key-usage")
    """A file for each access key with limits: the counts of all processes."""
    access_key = _Below("access-key.json")
    """The access key for programs of this user (`LocalKey`)."""
    running = _Below("running.json")
    """The file with the URL and the process of the platform that runs on this folder."""
    log = _Below("platform.log")
    """The log of a platform in the background; that of the one before it has the suffix `.1`."""

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
        Create the folder, private to its owner because it holds secrets; one of another owner stays as it is.

        Raises `SettingsError` if it cannot be created or written.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.root.stat().st_uid == os.geteuid():
                self.root.chmod(0o700)
            why = "" if os.access(self.root, os.W_OK | os.X_OK) else "permission denied"
        except OSError as error:
            why = str(error.strerror)
        if why:
            raise SettingsError(
                f"{self.root} cannot be used as the data folder: {why}. Choose another folder with --data-dir.",
                name="data_dir",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """
        Lock the folder against other platforms, or raise `SettingsError`.

        The kernel releases the lock when this process ends for any reason.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                address = self.running_address()
                raise SettingsError(
                    f"Another platform{f' at {address.url}' if address else ''} already uses {self.root}. Use that "
                    "one, stop it with `headrace down`, or choose another folder with --data-dir.",
                    name="data_dir",
                ) from error
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def announced(self, address: Address) -> Iterator[None]:
        """Publish the address to programs of this user until the block ends; a full disk does not prevent it."""
        process = this_process()
        content = {**asdict(address), "pid": process.pid, "process": asdict(process)}
        try:
            self._write_running(content)
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

    def announce_stop(self) -> None:
        """Add to the announcement that the platform is shutting down: a second signal would kill it."""
        with suppress(OSError, ValueError):
            self._write_running({**json.loads(self.running.read_bytes()), "is_stopping": True})

    def forget_members(self) -> None:
        """Remove the members of an earlier platform on this folder; their times may be those of another boot."""
        for suffix in ("", "-wal", "-shm"):
            self.members.with_name(self.members.name + suffix).unlink(missing_ok=True)

    def _write_running(self, content: Mapping[str, object]) -> None:
        partial = self.running.with_suffix(".partial")
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(self.running)

    def running_platform(self) -> RunningPlatform | None:
        """Return the platform that runs on this folder, in this container; None if there is none or it was killed."""
        try:
            found = msgspec.json.decode(self.running.read_bytes(), type=RunningPlatform)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return found if is_running(found.process) else None

    def is_locked(self) -> bool:
        """Return whether a platform uses the folder, in this container or another one."""
        try:
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no platform has used it, or it is another user's
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """Yield a short path of a folder, for Unix sockets in it: a socket's path has at most 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


GENERATED_KEY_ID: Final = "HRAKGENERATEDATSTART"
"""The id of a generated key is fixed, so that only one of two processes that start at once can create it."""


class LocalKey(msgspec.Struct, frozen=True, kw_only=True):
    """
    The access key in a data folder: programs of the same user find it there, and need no configuration.

    The platform writes it when it starts. Other users cannot read it, as they cannot read the folder.
    """

    key_id: str
    secret: str

    @property
    def is_generated(self) -> bool:
        """True if the platform created it; its secret is no operator's."""
        return self.key_id == GENERATED_KEY_ID

    def __repr__(self) -> str:
        return f"LocalKey(key_id={self.key_id!r}, secret='***')"


def read_local_key(folder: DataFolder) -> LocalKey | None:
    """Return the key in a data folder, or None if there is none that this user can read."""
    try:
        return msgspec.json.decode(folder.access_key.read_bytes(), type=LocalKey)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def local_key_for(url: str, folder: DataFolder) -> LocalKey | None:
    """
    Return the key for a URL of the platform that runs on a data folder; None for any other URL.

    After the platform was killed, its port may belong to a program of another user, which must not get the secret.
    """
    running = folder.running_platform()
    if running is None or not f"{url}/".startswith(f"{running.url}/"):
        return None
    return read_local_key(folder)


def console_url(url: str, key: LocalKey | None) -> str:
    """
    Return the address of the console.

    For a generated key it has the secret in its fragment, which browsers neither send nor log: the page signs in with
    it. The secrets of other keys are shown only when they are created.
    """
    fragment = f"#key={quote(key.secret, safe='')}" if key is not None and key.is_generated else ""
    return f"{url}/console{fragment}"
