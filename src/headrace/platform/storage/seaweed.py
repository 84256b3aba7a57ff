"""
One SeaweedFS process: starting, finding, probing and stopping it. Methods block; call them from a thread.

Keys, ports and process id outlive the platform in `state.json` beside the data.
"""

import fcntl
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError

import msgspec

from headrace.core.processes import (
    ProcessId,
    is_running,
    kill_session,
    processes_with_argument,
    reap,
    send_signal,
    spawn,
    until_ended,
)
from headrace.platform.cluster.ports import PLATFORM_PORTS, free_ports, is_free
from headrace.platform.cluster.worker_files import write_atomically
from headrace.platform.storage.s3_signing import UNSIGNED_PAYLOAD, S3Access, signed_headers

LISTENERS = (
    *("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc"),
    *("filer", "filer_grpc", "admin", "admin_grpc"),
)
"""SeaweedFS's listeners, each with a port."""
_ADMIN_GRPC_OFFSET = 10_000
"""Offset at which its maintenance worker expects the admin server's gRPC; it ignores `-admin.port.grpc` (4.48)."""
_MAX_VOLUMES = 10_000
"""
Volumes that may exist; AWS allows as many buckets. Each bucket takes a volume and the filer's log takes one, after a
minute. By default SeaweedFS counts a gigabyte of free disk for each (64 MB on a small disk), although an empty volume
takes no space, and answers InternalError for the first object of the next bucket.
"""
_GO_GARBAGE_PERCENT = 10
"""
Garbage that its heap may hold, in percent of what is in use; Go's default is 100.

At its start it reserves 236 MiB, nearly all of it untouched: 16 MiB for each of the filer's eight LevelDBs and 10
buffers of 8 MiB for its logs. Go counts them as in use, so that by default 236 MiB of garbage pile up. After 45 s of
uploads it had 278 MiB of memory of its own by default and 67 MiB with 10 %, for 7.0 and 7.5 ms of CPU time an upload.
`GOMEMLIMIT` is no remedy: below the reservation it collects garbage without end (20 to 28 ms).
"""
_TOKENS = ("signing", "signing.read", "filer_signing", "filer_signing.read")
"""Without them its volume server reads, writes and deletes for every program and web page on this machine."""
_PROBE_TIMEOUT_S = 2.0
_END_GRACE_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """State that outlives the platform, stored in `state.json`."""

    access_key: str
    secret_key: str
    ports: dict[str, int]
    """Listener → port."""
    process: ProcessId | None = None


class Seaweed:
    def __init__(self, binary: str, folder: Path, *, region: str, new_secret: Callable[[int], str]) -> None:
        """
        Configure a process of the program `binary`; nothing is started.

        `folder` has its data, log and state, and is created on first use; `region` is that of signatures; `new_secret`
        returns random text made from a number of random bytes.
        """
        self._binary = binary
        self._folder = folder
        self._region = region
        self._new_secret = new_secret
        self._state: _State | None = None

    @property
    def log_path(self) -> Path:
        """The file with the output of the process since its last start."""
        return self._folder / "log.txt"

    @property
    def access(self) -> S3Access | None:
        """Address and keys, after `prepare`."""
        if self._state is None:
            return None
        return S3Access(
            endpoint_url=f"http://127.0.0.1:{self._state.ports['s3']}",
            access_key=self._state.access_key,
            secret_key=self._state.secret_key,
            region=self._region,
        )

    @property
    def pid(self) -> int | None:
        return self._state.process.pid if self._state is not None and self._state.process is not None else None

    def prepare(self) -> None:
        """Choose keys and ports: the earlier ones, unless another program has taken a port in the meantime."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            state = self._read_state() or _State(
                access_key=self._new_secret(12), secret_key=self._new_secret(30), ports=unused_ports()
            )
            self._state = state
            if not self.is_alive():
                self._end_strays()
                if not all(is_free(port) for port in state.ports.values()):
                    state = replace(state, ports=unused_ports())
            if state != self._read_state():
                self._write_state(state)

    def find(self) -> bool:
        """Adopt the process that another platform has started in this folder; return whether it runs."""
        self._state = self._read_state() or self._state
        return self.is_alive()

    def start(self) -> None:
        """
        Start the process, unless it runs, on its earlier ports; internal ports that are taken are replaced.

        Raises `OSError` if it cannot be run, or another program has taken the port that clients know.
        """
        assert self._state is not None, "prepare first"
        with self._locked():
            if not self.find():
                self._start()

    def _start(self) -> None:
        assert self._state is not None, "prepare first"
        self._end_strays()
        # Internal ports may have been taken while the process was down; it would exit at once with them.
        ports = self._state.ports
        if not is_free(ports["s3"]):
            raise OSError(f"port {ports['s3']}, which its clients know, is taken by another program")
        if not all(is_free(port) for port in ports.values()):
            self._write_state(replace(self._state, ports={**unused_ports(), "s3": ports["s3"]}))
        data = self._data
        data.mkdir(mode=0o700, exist_ok=True)
        self.log_path.write_bytes(b"")
        sections = [f'[jwt.{name}]\nkey = "{self._new_secret(30)}"\n' for name in _TOKENS]
        home = self._folder / ".seaweedfs"
        home.mkdir(mode=0o700, exist_ok=True)
        write_atomically(home / "security.toml", "\n".join(sections).encode())
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._folder),  # without the configuration of the user
            "GOGC": str(_GO_GARBAGE_PERCENT),
            "AWS_ACCESS_KEY_ID": self._state.access_key,
            "AWS_SECRET_ACCESS_KEY": self._state.secret_key,
        }
        process = spawn([self._binary, *server_flags(data, self._state.ports)], environment, self.log_path)
        try:
            self._write_state(replace(self._state, process=process))
        except OSError:  # a full disk: without the file no platform would find the process again
            kill_session(process)
            raise

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _end_strays(self) -> None:
        """End processes on the same data, started by a platform that was killed before it noted them; they lock it."""
        for process in processes_with_argument(f"-dir={self._data}"):
            kill_session(process)
            while is_running(process):
                reap(process)
                time.sleep(_POLL_S)

    def is_alive(self) -> bool:
        """Return whether the process runs, started by this platform or an earlier one."""
        if self._state is None or self._state.process is None:
            return False
        reap(self._state.process)
        return is_running(self._state.process)

    async def until_ended(self) -> None:
        """Wait until the process ends; return at once if none was started."""
        if self._state is not None and self._state.process is not None:
            await until_ended(self._state.process)

    def answers(self) -> bool:
        """
        Return whether objects can be read and written: S3 lists buckets, and the master knows a volume server.

        Volumes register up to five seconds after S3 answers; until then every object is an InternalError. The master's
        page, its only answer without HTTP, links to them. The request to S3 is signed, because another server on the
        port does not know the keys.
        """
        assert self._state is not None, "prepare first"
        assert self.access is not None, "the keys are stored with the state"
        host = self.access.endpoint_url.removeprefix("http://")
        signed = signed_headers(
            self.access,
            method="GET",
            host=host,
            path="/",
            query="",
            headers={},
            payload_hash=UNSIGNED_PAYLOAD,
            now_s=time.time(),
        )
        try:
            _get(f"http://{host}/", signed)
            page = _get(f"http://127.0.0.1:{self._state.ports['master']}/", {})
            return f"127.0.0.1:{self._state.ports['volume']}<".encode() in page
        except (URLError, OSError, HTTPException):
            return False

    def end(self) -> None:
        """Send SIGTERM, then SIGKILL after a grace period; return when the process is gone."""
        if self._state is None or self._state.process is None:
            return
        process = self._state.process
        send_signal(process, signal.SIGTERM)
        deadline_s = time.monotonic() + _END_GRACE_S
        while self.is_alive() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        kill_session(process)
        while self.is_alive():
            time.sleep(_POLL_S)
        for name, port in self._state.ports.items():  # it leaves sockets under names that cannot be configured
            path = Path(f"/tmp/seaweedfs-{name.replace('_', '-')}-{port}.sock")  # noqa: S108 -- its own choice
            with suppress(OSError):
                if path.is_socket() and not path.is_symlink():
                    path.unlink()
        with suppress(OSError):  # on a full disk the file stays, but the process that it names has ended
            self._write_state(replace(self._state, process=None))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude the other processes of the platform."""
        with (self._folder / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read_state(self) -> _State | None:
        try:
            state = msgspec.json.decode((self._folder / "state.json").read_bytes(), type=_State)
        except (OSError, msgspec.DecodeError):
            return None
        return state if set(state.ports) == set(LISTENERS) else None

    def _write_state(self, state: _State) -> None:
        self._state = state
        write_atomically(self._folder / "state.json", msgspec.json.encode(state))


def _get(url: str, headers: dict[str, str]) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 -- http, on loopback
    with opener.open(request, timeout=_PROBE_TIMEOUT_S) as response:
        body: bytes = response.read()
        return body


def server_flags(data: Path, ports: dict[str, int], *, host: str = "127.0.0.1") -> list[str]:
    """
    Return flags: one address only; no admin page, WebDAV, catalogues or telemetry; buckets as strict as AWS's.

    `-disableHttp` is for master and filer, which would answer any web page: `GET /col/delete` deletes a bucket, and the
    filer lets pages of all origins read, write and delete objects.
    """
    listeners = [
        f"-{name.removesuffix('_grpc')}.port{'.grpc' if name.endswith('_grpc') else ''}={ports[name]}"
        for name in LISTENERS
    ]
    return [
        "-logtostderr=true",
        "mini",
        f"-dir={data}",
        f"-ip={host}",
        f"-ip.bind={host}",
        "-disableHttp=true",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.lance=0",
        "-s3.port.iceberg=0",
        "-s3.allowedOrigins=",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-master.telemetry=false",
        f"-volume.max={_MAX_VOLUMES}",
        *listeners,
    ]


def unused_ports() -> dict[str, int]:
    """Return a free port for each listener; raise `OSError` if there are not enough."""
    free = free_ports(PLATFORM_PORTS)
    admin = next((port for port in free if is_free(port + _ADMIN_GRPC_OFFSET)), None)
    ports = dict(zip(LISTENERS[:-2], free, strict=False))
    if admin is None or len(ports) < len(LISTENERS) - 2:
        raise OSError(f"No free ports were found between {PLATFORM_PORTS.start} and {PLATFORM_PORTS.stop}.")
    return {**ports, "admin": admin, "admin_grpc": admin + _ADMIN_GRPC_OFFSET}
