"""Platforms and PostgreSQL servers of a run, and their AWS clients."""

import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3
from benchmarks.harness.proc import children, is_alive
from benchmarks.harness.servers import HOST, headrace_command
from botocore.config import Config

PATIENCE_S: Final = 120.0
ROLE: Final = "arn:aws:iam::000000000000:role/any"
TGI_IMAGE: Final = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311"
)
VARIANT: Final = "v"
_POLL_S = 0.05
_ROOT = Path("/")


def until(fact: Callable[[], object], what: str, timeout_s: float = PATIENCE_S, *, poll_s: float = _POLL_S) -> None:
    """Wait for a true result; an OSError counts as false. RuntimeError after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with suppress(OSError):
            if fact():
                return
        time.sleep(poll_s)
    raise RuntimeError(f"Not within {timeout_s:.0f} s: {what}.")


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process if it runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


# ---- AWS ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The address of a platform, and an access key for it."""

    port: int
    host: str = HOST
    key: tuple[str, str] = ("any", "thing")
    read_timeout_s: float = 70.0
    keeps_connections: bool = True
    """False: each request has a connection of its own, as none may be kept to a machine that goes."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def client(self, service: str) -> Any:
        client = aws_client(service, self.port, host=self.host, key=self.key, read_timeout_s=self.read_timeout_s)
        if not self.keeps_connections:
            client.meta.events.register("before-send", lambda request, **_: request.headers.update(Connection="close"))
        return client


def aws_client(
    service: str,
    port: int,
    *,
    host: str = HOST,
    key: tuple[str, str] = ("any", "thing"),
    connect_timeout_s: float = 5.0,
    read_timeout_s: float = 70.0,
) -> Any:
    """Return a client of the platform on a port; it sends each request once, because a retry would hide a failure."""
    config = Config(
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"total_max_attempts": 1},
        proxies={},
        max_pool_connections=16,
    )
    return boto3.client(
        service,
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=config,
    )


def create_endpoint(
    sagemaker: Any, name: str, container: Mapping[str, Any], *, instance_type: str = "ml.m5.large", **config: Any
) -> None:
    """Create a model, a configuration with one instance, and an endpoint, all with the same name."""
    sagemaker.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)
    variant = {"VariantName": VARIANT, "ModelName": name, "InitialInstanceCount": 1, "InstanceType": instance_type}
    sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], **config)
    sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)


def scale(sagemaker: Any, name: str, count: int) -> None:
    wanted = [{"VariantName": VARIANT, "DesiredInstanceCount": count}]
    sagemaker.update_endpoint_weights_and_capacities(EndpointName=name, DesiredWeightsAndCapacities=wanted)


def is_in_service(sagemaker: Any, name: str, *, instances: int | None = None) -> bool:
    """Return whether an endpoint serves, with a number of instances if one is given; RuntimeError if it has failed."""
    found = sagemaker.describe_endpoint(EndpointName=name)
    if found["EndpointStatus"] == "Failed":
        raise RuntimeError(found["FailureReason"])
    counts = [variant.get("CurrentInstanceCount") for variant in found["ProductionVariants"]]
    return found["EndpointStatus"] == "InService" and instances in (None, *counts)


# ---- processes ----


@dataclass
class Platform:
    """A `headrace up` on a port of its own, started again after a kill."""

    name: str
    folder: Path
    port: int
    log: Path
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    inside: Sequence[str] = ()
    """What runs the command, such as `nsenter`."""
    host: str = HOST
    is_open: bool = True
    """False if its clients need a key."""
    process: "subprocess.Popen[bytes] | None" = None
    _lock: threading.RLock = field(default_factory=threading.RLock)
    """Between the thread that kills it and the one that watches it."""

    def start(self) -> None:
        """Start it for the first time or after a kill; it may not answer yet."""
        with self._lock:
            if self.process is None:
                self._start()

    def _start(self) -> None:
        place = ("--data-dir", str(self.folder), "--port", str(self.port), "--host", self.host)
        access = ("--open",) if self.is_open else ()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADRACE_UP_"))}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.inside, headrace_command(), "up", *access, *place, *self.flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, "PYTHONFAULTHANDLER": "1", **self.environment},
            )

    def start_and_wait(self) -> None:
        """Start it, and wait for its health; RuntimeError if it ends, or after some patience."""
        self.start()
        until(lambda: self.exit_code is not None or self.answers(), f"{self.name} answers")
        if self.exit_code is not None:
            raise RuntimeError(f"{self.name} ended with {self.exit_code}:\n{self.log.read_text()[-4000:]}")

    def answers(self, *, timeout_s: float = 5.0) -> bool:
        """Return whether it is healthy."""
        url = f"http://{self.host}:{self.port}/health"
        with suppress(OSError), urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
        return False

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs, and before its start."""
        return self.process.poll() if self.process is not None else None

    def kill(self) -> None:
        with self._lock:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self.process = None

    def restart_if_ended(self) -> int | None:
        """Start it again if it ended without a kill; return its exit code in that case."""
        with self._lock:
            code = self.exit_code
            if code is not None:
                self._start()
            return code

    def stop(self) -> int:
        """SIGTERM; return its exit code, or kill it after some patience. It can be started again."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


class PostgreSQL:
    """A server of our own on a TCP port, run by another user than root, or by the command `inside` as it is."""

    def __init__(self, folder: Path, port: int, *, host: str = HOST, inside: Sequence[str] = ()) -> None:
        self.port = port
        self.host = host
        self._inside = inside
        self._folder = folder
        self._programs = _postgresql_folder()
        self._user = _unprivileged_user() if os.geteuid() == 0 and not inside else {}
        folder.mkdir()
        folder.chmod(0o755)
        if self._user:
            folder.parent.chmod(0o711)  # that user must reach its folder
            os.chown(folder, self._user["user"], self._user["group"])
        self._run("initdb", "-U", "headrace", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        if host != HOST:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        self.start()

    @property
    def pid(self) -> int | None:
        """Its first process, whose death ends all others; None while it does not run."""
        with suppress(OSError, ValueError, IndexError):
            pid = int((self._folder / "data" / "postmaster.pid").read_text().splitlines()[0])
            return pid if is_alive(pid) else None  # a killed server leaves its file
        return None

    def start(self) -> None:
        """Start it if it does not run, and wait until it accepts connections; recovery after a kill takes a moment."""
        if self.pid is not None:
            return
        options = f"-c listen_addresses={self.host} -p {self.port} -k {self._folder} -c max_connections=100"
        self._run("pg_ctl", "-l", str(self._folder / "log"), "-w", "-o", options, "start")

    def create(self, name: str) -> str:
        """Create a database; return its URL."""
        client = shutil.which("psql") or str(self._programs / "psql")
        address = ("-h", self.host, "-p", str(self.port), "-U", "headrace", "-d", "postgres")
        subprocess.run([client, *address, "-q", "-c", f"CREATE DATABASE {name}"], check=True)
        return f"postgresql://headrace@{self.host}:{self.port}/{name}"

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        if (pid := self.pid) is not None:
            pids = [pid, *children(pid)]
            for process in pids:
                signal_process(process, signal.SIGKILL)
            until(lambda: not any(is_alive(process) for process in pids), "PostgreSQL is dead")
            for lock in (self._folder / "data" / "postmaster.pid", *self._folder.glob(".s.PGSQL.*.lock")):
                lock.unlink()  # a zombie that nothing reaps counts as a server

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        if (pid := self.pid) is not None:
            for process in [pid, *children(pid)]:
                signal_process(process, number)

    def restart(self) -> None:
        self.signal(signal.SIGCONT)
        self._run("pg_ctl", "-m", "fast", "-w", "stop")
        self.start()

    def close(self) -> None:
        with suppress(RuntimeError):
            self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        output = self._folder / f"{program}.out"  # no pipe: the server keeps its end open
        with output.open("wb") as file:
            done = subprocess.run(
                [*self._inside, self._programs / program, "-D", self._folder / "data", *arguments],
                check=False,
                cwd=self._folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                **self._user,  # type: ignore[call-overload]
            )
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}: {output.read_text()[-1000:]}")


def _postgresql_folder() -> Path:
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    for path in sorted(_ROOT.glob("usr/lib/postgresql/*/bin/initdb"), reverse=True):
        return path.parent
    raise RuntimeError("PostgreSQL's server is not installed. Install it (Debian: apt-get install postgresql).")


def _unprivileged_user() -> dict[str, int]:
    """Return a user to run PostgreSQL as, which refuses to run as root."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "daemon")
    return {"user": user.pw_uid, "group": user.pw_gid}
