"""`headrace up` as a user starts it, and clients for it."""

import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config

from headrace.platform.host.folders import DataFolder, LocalKey, read_local_key
from tests.e2e.conftest import ending_with_us, free_port, headrace_command
from tests.waiting import WAIT_S, pauses

_TAIL_CHARACTERS = 8000
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311"


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what points AWS's tools, or Headrace, somewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADRACE_UP_"))}
    return {**kept, "AWS_EC2_METADATA_DISABLED": "true", **more}


@dataclass
class Running:
    """A platform process."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]
    log_path: Path
    certificate: Path | None = None
    """What clients trust, if the platform has TLS."""
    clients: list[Any] = field(default_factory=list)

    @property
    def key(self) -> LocalKey:
        """The access key that the platform has written for programs of its user; an open platform accepts any."""
        return read_local_key(DataFolder(self.folder)) or LocalKey(key_id="any", secret="thing")

    @property
    def bearer(self) -> dict[str, str]:
        """The headers of a request that is not signed."""
        return {"Authorization": f"Bearer {self.key.secret}"}

    def client(self, service: str, **config: Any) -> Any:
        made = boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.key.key_id,
            aws_secret_access_key=self.key.secret,
            verify=None if self.certificate is None else str(self.certificate),
            config=Config(read_timeout=WAIT_S, retries={"total_max_attempts": 1}, proxies={}, **config),
        )
        self.clients.append(made)
        return made

    def headrace(
        self, *arguments: str, stdin: str | None = None, env: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        """A command of ours, in a shell of its own."""
        return subprocess.run(
            [headrace_command(), *arguments],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            input=stdin,
            env=clean_environment(HEADRACE_UP_DATA_DIR=str(self.folder), **env),
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=WAIT_S)

    def close(self) -> None:
        while self.clients:
            self.clients.pop().close()

    def log(self) -> str:
        return self.log_path.read_text()

    def until_in_service(self, *names: str) -> None:
        """Wait until endpoints are in service; a failure shows its reason and the logs of the platform and of Ray."""
        client = self.client("sagemaker")
        until(
            lambda: all(self._is_in_service(client, name) for name in names),
            lambda: f"{names} in service\n{self._logs()}",
        )

    def _is_in_service(self, client: Any, name: str) -> bool:
        found = client.describe_endpoint(EndpointName=name)
        assert found["EndpointStatus"] != "Failed", f"{name}: {found.get('FailureReason')}\n{self._logs()}"
        return bool(found["EndpointStatus"] == "InService")

    def _logs(self) -> str:
        """The ends of the logs, the platform's last."""
        found = [path for path in (self.folder / "ray.log", self.folder / "ray" / "log.txt") if path.exists()]
        ends = [path.read_text(errors="replace")[-_TAIL_CHARACTERS:] for path in (*found, self.log_path)]
        return "\n".join(ends)


def up(
    folder: Path,
    *flags: str,
    env: Mapping[str, str] = {},
    inside: Sequence[str] = (),
    program: Sequence[str] | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    host: str = "127.0.0.1",
) -> Running:
    """
    Start a platform and wait until it answers; its log lies beside its folder.

    `inside`: what runs the command. `program`: the `headrace` of another environment.
    `certificate`, `key`: files for TLS. `host`: where it listens, by its flags.
    """
    port = free_port()
    log_path = folder.parent / f"{folder.name}-{port}.log"
    command = [
        *ending_with_us(),
        *inside,
        *(program or (headrace_command(),)),
        "up",
        "--data-dir",
        str(folder),
        "--port",
        str(port),
        *flags,
    ]
    if certificate is not None:
        command += ["--tls-cert", str(certificate), "--tls-key", str(key)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(PYTHONFAULTHANDLER="1", **env),
            umask=0,  # the worst that a shell may have
        )
    scheme = "http" if certificate is None else "https"
    running = Running(f"{scheme}://{host}:{port}", folder, process, log_path, certificate)
    trust = False if certificate is None else ssl.create_default_context(cafile=certificate)
    deadline_s = time.monotonic() + WAIT_S
    for pause_s in pauses(0.05):
        if time.monotonic() > deadline_s or process.poll() is not None:
            break
        try:
            if httpx.get(f"{running.url}/health", verify=trust, trust_env=False, timeout=WAIT_S).status_code == 200:
                return running
        except httpx.TransportError:
            pass
        time.sleep(pause_s)
    process.send_signal(signal.SIGABRT)  # the log then has the stack of each thread
    process.wait()
    raise AssertionError(f"no platform: {running.log()}")


def until(fact: Callable[[], object], what: str | Callable[[], str], timeout_s: float = WAIT_S) -> Any:
    """Wait for a true result; `what` describes it, or what is known about it at the end."""
    deadline_s, pause_s = time.monotonic() + timeout_s, pauses(0.05)
    while not (found := fact()):
        assert time.monotonic() < deadline_s, f"never happened: {what if isinstance(what, str) else what()}"
        time.sleep(next(pause_s))
    return found
