"""
A local SageMaker for tests: `headrace up` as a child process with a port and a data folder of its own.

The fixtures of `headrace.pytest` are built on it; other test frameworks use it directly:

    with local_platform(folder) as platform, platform.deployed("smollm2") as endpoint, platform.environment():
        boto3.client("sagemaker-runtime").invoke_endpoint(EndpointName=endpoint, ...)
"""

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.platform.host.environment import SHELL_FOLDER, Target, variables
from headrace.platform.host.folders import DataFolder
from headrace.tools.cli.deploy import endpoint_name
from headrace.tools.cli.group import Failed
from headrace.tools.cli.platform_client import Platform, platform_at

DEFAULT_TIMEOUT_S = 300.0
_POLL_S = 0.05
_STOP_S = 30.0
"""Longest wait for an orderly shutdown; the platform gives its workers 10 s."""
_LOG_CHARACTERS = 8000
_DEFAULTS = ("--port", "0", "--log-format", "console", "--shutdown-grace-s", "2")


class LocalPlatformFailed(HeadraceError):
    """The platform did not start or stop, or one of its endpoints could not be created or deleted."""

    code = "local_platform_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlatform:
    """A platform that runs as a child process; `local_platform` starts and stops it."""

    url: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)
    """Also the API key of OpenAI's clients."""
    ca_bundle: str | None
    """File with the certificate to trust, if the platform has a self-signed one."""
    log_path: Path
    """The platform's log; the logs of models are read with `headrace logs` or CloudWatch Logs."""
    timeout_s: float
    """Longest wait for a deployment or a response."""

    def client(self, service: str) -> Any:
        """Return a boto3 client for a service; it needs no environment variables."""
        platform = Platform(self.url, self.region, self.access_key, self.secret_key, self.ca_bundle)
        return platform.client(service, read_timeout_s=self.timeout_s)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """
        Point AWS code of this process and of its children at the platform until the block ends.

        The block has the variables of `headrace env`, a new default session of boto3, and new clients with an address
        of AWS redirected, such as the SageMaker SDKs' for STS. Existing clients keep their address.
        """
        with _set(variables(self._target(), os.environ)), _new_default_session(), _redirected_clients():
            yield

    def deploy(self, model: str | Path, *options: str, name: str | None = None, env: Mapping[str, str] = {}) -> str:
        """
        Deploy a model by `headrace deploy`, and wait until its endpoint is in service.

        Args:
            model: an alias such as smollm2, a Hub id, a folder, a .gguf file, or s3://.
            options: further options of the command, such as `--instances`, `2`.
            name: name of the endpoint; None: a unique one derived from the model's.
            env: environment variables of the container.

        Returns:
            The name of the endpoint.

        Raises:
            LocalPlatformFailed: with the reason and the end of the model's log; nothing of the endpoint is left.
        """
        chosen = name or f"{endpoint_name(str(model))[:54]}-{secrets.token_hex(4)}"
        settings = [part for key, value in env.items() for part in ("--env", f"{key}={value}")]
        waiting = ("--timeout-s", str(self.timeout_s))
        done = self._headrace("deploy", str(model), "--name", chosen, *waiting, *settings, *options)
        if done.returncode != 0:
            self._headrace("rm", chosen)
            raise LocalPlatformFailed(f"{model} was not deployed: {done.stderr.strip()}")
        return chosen

    def delete(self, name: str) -> None:
        """Delete an endpoint with all that `deploy` created for it, and wait until its workers have ended."""
        done = self._headrace("rm", name)
        if done.returncode != 0:
            raise LocalPlatformFailed(f"{name} was not deleted: {done.stderr.strip()}")

    @contextmanager
    def deployed(
        self, model: str | Path, *options: str, name: str | None = None, env: Mapping[str, str] = {}
    ) -> Iterator[str]:
        """Deploy a model as `deploy` does, yield the endpoint's name, and delete it at the end of the block."""
        chosen = self.deploy(model, *options, name=name, env=env)
        try:
            yield chosen
        finally:
            self.delete(chosen)

    def log_tail(self) -> str:
        """Return the end of the platform's log."""
        return _tail(self.log_path)

    def _target(self) -> Target:
        return Target(
            url=self.url,
            region=self.region,
            access_key=self.access_key,
            secret_key=self.secret_key,
            ca_bundle=self.ca_bundle,
        )

    def _headrace(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        outer = _own_environment()
        pointed = {name: value for name, value in variables(self._target(), outer).items() if value is not None}
        return subprocess.run(  # noqa: S603 -- this Python
            [sys.executable, "-P", "-m", "headrace", command, *arguments, "--url", self.url],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**outer, **pointed},
        )


@contextmanager
def local_platform(folder: Path, *options: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[LocalPlatform]:
    """
    Run a platform on a free port until the block ends.

    The platform also shuts down in order if this process ends before the end of the block, even by SIGKILL; enter the
    block on a thread that lives as long as the platform.

    Args:
        folder: where the log is kept, and the platform's data until its end; created if it does not exist.
        options: options of `headrace up`.
        timeout_s: longest wait for the platform, for a deployment and for a response.

    Raises:
        LocalPlatformFailed: it did not start; the message has the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, log_path = DataFolder(folder / "data"), folder / "platform.log"
    tied = [sys.executable, "-P", "-m", "headrace.testing.tied_process", str(os.getpid())]
    with log_path.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 -- this Python
            [*tied, "up", *_DEFAULTS, *options, "--data-dir", str(data.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_own_environment(),
            start_new_session=True,  # Ctrl-C ends the tests, whose end stops the platform
        )
    try:
        yield _when_ready(process, data, log_path, timeout_s)
    finally:
        _stop(process, log_path)
        shutil.rmtree(data.root, ignore_errors=True)


def _when_ready(
    process: "subprocess.Popen[bytes]", data: DataFolder, log_path: Path, timeout_s: float
) -> LocalPlatform:
    deadline_s = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline_s:
        address = data.running_address()
        if address is not None:
            with suppress(Failed):  # the port is bound, but the platform is not ready
                platform = platform_at(address, data, {})
                return LocalPlatform(
                    url=address.url,
                    region=str(platform.health()["region"]),
                    access_key=platform.access_key,
                    secret_key=platform.secret_key,
                    ca_bundle=address.ca_bundle,
                    log_path=log_path,
                    timeout_s=timeout_s,
                )
        time.sleep(_POLL_S)
    code = process.poll()
    what = f"is not ready after {timeout_s:.0f} s" if code is None else f"ended with exit code {code}"
    raise LocalPlatformFailed(f"`headrace up` {what}. Its log:\n{_tail(log_path)}")


def _stop(process: "subprocess.Popen[bytes]", log_path: Path) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        message = f"`headrace up` did not stop within {_STOP_S:.0f} s and was killed. Its log:\n{_tail(log_path)}"
        raise LocalPlatformFailed(message) from None


def _own_environment() -> dict[str, str]:
    """Return this process's environment without credentials for AWS and settings of another platform."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADRACE_UP_"))}


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_LOG_CHARACTERS:]


@contextmanager
def _set(values: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    _apply(values)
    try:
        yield
    finally:
        _apply(before)


def _apply(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _new_default_session() -> Iterator[None]:
    """Let `boto3.client` read the environment again: its default session keeps the credentials of its first use."""
    import boto3

    before, boto3.DEFAULT_SESSION = boto3.DEFAULT_SESSION, None
    try:
        yield
    finally:
        boto3.DEFAULT_SESSION = before


@contextmanager
def _redirected_clients() -> Iterator[None]:
    """Redirect clients with an address of AWS, whether botocore is imported already or will be."""
    shell = _sitecustomize()
    if shell.MODULE in sys.modules:
        shell.redirect(sys.modules[shell.MODULE])
    sys.meta_path.insert(0, shell.EndpointRedirect)
    try:
        yield
    finally:
        sys.meta_path.remove(shell.EndpointRedirect)


@cache
def _sitecustomize() -> ModuleType:
    """Return, under another name, the module that programs of a platform's shell load at their start."""
    spec = spec_from_file_location("headrace_endpoint_redirect", SHELL_FOLDER / "sitecustomize.py")
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
