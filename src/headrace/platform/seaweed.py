"""
One SeaweedFS process: starting, finding, probing and stopping it. Methods block; call them from a thread.

Keys, ports and process id outlive the platform in `state.json` beside the data.
"""

import os
import signal
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

import msgspec

from headrace.cluster.ports import PLATFORM_PORTS, free_ports, is_free
from headrace.core.processes import ProcessId, is_running, kill_session, reap, send_signal, spawn
from headrace.platform.s3_access import S3Access
from headrace.platform.s3_signing import UNSIGNED_PAYLOAD, signed_headers

LISTENERS = (
    *("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc"),
    *("filer", "filer_grpc", "admin", "admin_grpc"),
)
"""SeaweedFS's listeners, each with a port."""
_ADMIN_GRPC_OFFSET = 10_000
"""Offset at which its maintenance worker expects the admin server's gRPC; it ignores `-admin.port.grpc` (4.48)."""
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


class _Rack(msgspec.Struct):
    """A rack in a master's topology, where empty lists are null."""

    nodes: list[dict[str, Any]] | None = msgspec.field(default=None, name="DataNodes")


class _Center(msgspec.Struct):
    racks: list[_Rack] | None = msgspec.field(default=None, name="Racks")


class _Topology(msgspec.Struct):
    centers: list[_Center] | None = msgspec.field(default=None, name="DataCenters")


class _Status(msgspec.Struct):
    topology: _Topology = msgspec.field(name="Topology")


class Seaweed:
    """A SeaweedFS process and its folder."""

    def __init__(self, binary: str, folder: Path, *, region: str, new_secret: Callable[[int], str]) -> None:
        """
        Configure a process; nothing is started.

        Args:
            binary: the program `weed`.
            folder: the folder for its data, log and state; created on first use.
            region: the region in signatures.
            new_secret: returns random text made from a number of random bytes.
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
        """The id of the process, dead or alive."""
        return self._state.process.pid if self._state is not None and self._state.process is not None else None

    def prepare(self) -> None:
        """Choose keys and ports: the earlier ones, unless another program has taken a port in the meantime."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = self._read_state() or _State(
            access_key=self._new_secret(12), secret_key=self._new_secret(30), ports=_free_ports()
        )
        self._state = state
        if not self.is_alive() and not all(is_free(port) for port in state.ports.values()):
            state = replace(state, ports=_free_ports())
        if state != self._read_state():
            self._write_state(state)

    def start(self) -> None:
        """
        Start the process, unless it runs, on its earlier ports; internal ports that are taken are replaced.

        Raises:
            OSError: the program cannot be run, or another program has taken the port that clients know.
        """
        assert self._state is not None, "prepare first"
        if self.is_alive():
            return
        self._replace_taken_ports(self._state)
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        self.log_path.write_bytes(b"")
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._folder),  # without the configuration of the user
            "AWS_ACCESS_KEY_ID": self._state.access_key,
            "AWS_SECRET_ACCESS_KEY": self._state.secret_key,
        }
        process = spawn([self._binary, *_flags(data, self._state.ports)], environment, self.log_path)
        self._write_state(replace(self._state, process=process))

    def _replace_taken_ports(self, state: _State) -> None:
        """Replace internal ports that were taken while the process was down; it would exit at once with them."""
        if not is_free(state.ports["s3"]):
            raise OSError(f"port {state.ports['s3']}, which its clients know, is taken by another program")
        if not all(is_free(port) for port in state.ports.values()):
            self._write_state(replace(state, ports={**_free_ports(), "s3": state.ports["s3"]}))

    def is_alive(self) -> bool:
        """Return whether the process runs, started by this platform or an earlier one."""
        if self._state is None or self._state.process is None:
            return False
        reap(self._state.process)
        return is_running(self._state.process)

    def answers(self) -> bool:
        """
        Return whether objects can be read and written: S3 lists buckets, and the master knows a volume server.

        Volumes register up to five seconds after S3 answers; until then every object is an InternalError. The request
        to S3 is signed, because another server on the port does not know the keys.
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
            return _has_volumes(_get(f"http://127.0.0.1:{self._state.ports['master']}/dir/status", {}))
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
        _remove_sockets(self._state.ports)
        with suppress(OSError):  # on a full disk the file stays, but the process that it names has ended
            self._write_state(replace(self._state, process=None))

    def _read_state(self) -> _State | None:
        try:
            state = msgspec.json.decode((self._folder / "state.json").read_bytes(), type=_State)
        except (OSError, msgspec.DecodeError):
            return None
        return state if set(state.ports) == set(LISTENERS) else None

    def _write_state(self, state: _State) -> None:
        self._state = state
        partial = self._folder / "state.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 -- a descriptor
            file.write(msgspec.json.encode(state))
        partial.replace(self._folder / "state.json")


def _get(url: str, headers: dict[str, str]) -> bytes:
    """Return the body of a successful response. Raises `OSError` and `HTTPException`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 -- http, on loopback
    with opener.open(request, timeout=_PROBE_TIMEOUT_S) as response:
        body: bytes = response.read()
        return body


def _has_volumes(status: bytes) -> bool:
    """Return whether a master knows a volume server, even one without volumes yet."""
    try:
        topology = msgspec.json.decode(status, type=_Status).topology
    except msgspec.DecodeError:
        return False
    return any(rack.nodes for center in topology.centers or () for rack in center.racks or ())


def _flags(data: Path, ports: dict[str, int]) -> list[str]:
    """Return flags: loopback only; no admin page, WebDAV, catalogues or telemetry; buckets as strict as AWS's."""
    listeners = [
        f"-{name.removesuffix('_grpc')}.port{'.grpc' if name.endswith('_grpc') else ''}={ports[name]}"
        for name in LISTENERS
    ]
    return [
        "-logtostderr=true",
        "mini",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.lance=0",
        "-s3.port.iceberg=0",
        "-s3.allowedOrigins=",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-master.telemetry=false",
        *listeners,
    ]


def _remove_sockets(ports: dict[str, int]) -> None:
    """Remove the sockets that SeaweedFS leaves in /tmp under names that cannot be configured."""
    for name, port in ports.items():
        path = Path(f"/tmp/seaweedfs-{name.replace('_', '-')}-{port}.sock")  # noqa: S108 -- its own choice
        with suppress(OSError):
            if path.is_socket() and not path.is_symlink():
                path.unlink()


def _free_ports() -> dict[str, int]:
    """
    Return a free port for each listener.

    Raises:
        OSError: there are not enough.
    """
    free = free_ports(PLATFORM_PORTS)
    admin = next((port for port in free if is_free(port + _ADMIN_GRPC_OFFSET)), None)
    ports = dict(zip(LISTENERS[:-2], free, strict=False))
    if admin is None or len(ports) < len(LISTENERS) - 2:
        raise OSError(f"No free ports were found between {PLATFORM_PORTS.start} and {PLATFORM_PORTS.stop}.")
    return {**ports, "admin": admin, "admin_grpc": admin + _ADMIN_GRPC_OFFSET}
