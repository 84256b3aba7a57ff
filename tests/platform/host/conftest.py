"""One platform with the real small model for the session."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import ROOT
from tests.otlp_receiver import Receiver, http_receiver
from tests.postgresql import new_database, postgresql_server
from tests.service_models import parsed_service_models

from .running import Running, clean_environment, up
from .sdk_scripts import SDK_2, SDK_3, SDK_BUCKET, Command, warm_python

__all__ = ["new_database", "parsed_service_models", "postgresql_server"]

PLATFORM_SECRET = "canary-of-the-platform"
"""A credential of the platform, which nothing else may get: `test_canaries.py` looks for it."""


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    """A receiver of the traces of the platform and its workers."""
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Running]:
    """It records the spans of requests whose client samples them, and of no others."""
    traced = {"OTEL_TRACES_SAMPLER": "parentbased_always_off", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    secret = {"AWS_SECRET_ACCESS_KEY": PLATFORM_SECRET}
    flags = ("--otlp-traces-endpoint", receiver.url, "--log-level", "debug")
    running = up(tmp_path_factory.mktemp("platform") / "data", *flags, env={**traced, **secret})
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="session")
def endpoint(platform: Running, smollm2_path: Path) -> str:
    """An endpoint that is in service, made by `headrace deploy`."""
    done = platform.headrace("deploy", str(smollm2_path), "--name", "shared")
    assert done.returncode == 0, done.stderr + platform.log()
    return "shared"


@pytest.fixture(scope="session")
def shell(platform: Running) -> dict[str, str]:
    return shell_for(platform)


@pytest.fixture(scope="session")
def sdk2(shell: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The command that runs a script with the SageMaker SDK 2.x."""
    with warm_python(sys.executable, SDK_2, shell, tmp_path_factory.mktemp("sdk2")) as command:
        yield command


@pytest.fixture(scope="session")
def sdk3_python() -> str:
    """A Python with the SDK; making it takes a minute the first time, and the network."""
    made = subprocess.run(
        [ROOT / "scripts" / "environment", "sdk3"], env=clean_environment(), capture_output=True, text=True
    )
    if made.returncode != 0:
        why = f"the SDK 3.x cannot be installed: {made.stderr[-1000:]}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return made.stdout.strip()


@pytest.fixture(scope="session")
def sdk3(sdk3_python: str, shell: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The command that runs a script with the SageMaker SDK 3.x."""
    with warm_python(sdk3_python, SDK_3, shell, tmp_path_factory.mktemp("sdk3")) as command:
        yield command


def shell_for(platform: Running) -> dict[str, str]:
    """The environment of a shell after `eval "$(headrace env)"`, and the bucket that SDKs would make in it."""
    # NOTE: several SDK 2.x scripts that start together see that it is not there, and all but one fail to make it.
    platform.client("s3").create_bucket(Bucket=SDK_BUCKET)
    script = platform.headrace("env", "--url", platform.url).stdout + "\nenv -0"
    done = subprocess.run(["bash", "-c", script], env=clean_environment(), capture_output=True, check=True)
    lines = done.stdout.decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)
