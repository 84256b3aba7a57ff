"""
A disk that is full under the whole platform: what was there serves on, what is new is refused in a sentence, nothing
is lost, and all of it works again as soon as there is room.

The disk is a small tmpfs in its own mount namespace, invisible to other processes.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests import plain_http
from tests.waiting import WAIT_S

from .endpoints import answered, delete_endpoint, make_endpoint
from .running import IMAGE, Running, until, up

pytestmark = pytest.mark.model

SIZE_MIB = 64
_HOLD_S = 600
_NAMESPACE = ("--mount",) if os.geteuid() == 0 else ("--mount", "--user", "--map-root-user")


@dataclass(frozen=True)
class SmallDisk:
    """A disk that only those see who are started with `inside`."""

    folder: Path
    holder: int
    """Process id that keeps the namespace alive."""

    @property
    def inside(self) -> tuple[str, ...]:
        """Before a command: run it where the disk is."""
        user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
        return ("nsenter", "--target", str(self.holder), "--mount", *user, "--")

    @property
    def seen(self) -> Path:
        """Its folder as this process reaches it."""
        return Path(f"/proc/{self.holder}/root{self.folder}")

    def fill(self) -> None:
        """Not one block is left."""
        with (self.seen / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def empty(self) -> None:
        (self.seen / "ballast").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    script = f'mount -t tmpfs -o size={SIZE_MIB}m headrace "$0" && echo mounted && exec sleep {_HOLD_S}'
    command = ["unshare", *_NAMESPACE, "sh", "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "mounted\n":
                why = f"no small disk can be mounted here: {holder.stderr.read()}"
                if os.environ.get("CI"):
                    pytest.fail(why)
                pytest.skip(why)
            yield SmallDisk(folder, holder.pid)
        finally:
            holder.kill()


def refusal(call: Any, **parameters: Any) -> tuple[int, str]:
    """Status and message of a call that is refused."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"].get("Message", "")


def pids(disk: SmallDisk) -> set[int]:
    """The workers that the platform has started."""
    handles = disk.seen.glob("data/workers/*/handle.json")
    return {json.loads(path.read_text())["facts"]["process"]["pid"] for path in handles}


def test_a_full_disk_stops_no_worker_and_loses_no_record(disk: SmallDisk, smollm2_path: Path) -> None:
    platform = up(disk.folder / "data", "--open", inside=disk.inside)
    try:
        check_full_disk(platform, disk, {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    finally:
        code = platform.stop()
    assert code == 0, platform.log()


def check_full_disk(platform: Running, disk: SmallDisk, container: dict[str, Any]) -> None:
    client, s3 = platform.client("sagemaker"), platform.client("s3")
    make_endpoint(platform, "kept", container)
    platform.until_in_service("kept")
    for bucket in ("another", "bucket"):  # a small disk has room for many buckets
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key="before", Body=b"content")
    answer = answered(platform, "kept")
    disk.fill()

    assert answered(platform, "kept") == answer
    assert client.describe_endpoint(EndpointName="kept")["EndpointStatus"] == "InService"
    with s3.get_object(Bucket="bucket", Key="before")["Body"] as body:
        assert body.read() == b"content"
    until(lambda: health(platform)[0] == 503, "the full disk is noticed")
    assert "is full: " in health(platform)[1]
    status, message = refusal(client.create_model, ModelName="new", PrimaryContainer=container)
    assert (status, "full" in message) == (503, True), message
    status, message = refusal(s3.put_object, Bucket="bucket", Key="new", Body=os.urandom(8 * 1024 * 1024))
    assert (status, "is full: " in message) == (507, True), message
    s3.delete_object(Bucket="bucket", Key="before")
    assert answered(platform, "kept") == answer

    disk.empty()
    until(lambda: health(platform) == (200, ""), "the room is noticed")
    until(lambda: stored(s3), "objects are stored again")
    client.create_model(ModelName="new", PrimaryContainer=container)
    (worker,) = pids(disk)
    os.kill(worker, signal.SIGKILL)
    until(lambda: pids(disk) - {worker}, "the worker is replaced")
    platform.until_in_service("kept")
    until(lambda: answers(platform, "kept"), "the new worker answers")
    assert answered(platform, "kept") == answer
    delete_endpoint(platform, "kept")


def health(platform: Running) -> tuple[int, str]:
    answer = plain_http.get(f"{platform.url}/health", timeout=WAIT_S)
    return answer.status_code, answer.json().get("reason", "")


def stored(s3: Any) -> bool:
    with suppress(ClientError):
        s3.put_object(Bucket="bucket", Key="after", Body=b"content")
        return True
    return False


def answers(platform: Running, name: str) -> bool:
    with suppress(ClientError):
        return bool(answered(platform, name))
    return False


def test_a_platform_killed_on_a_full_disk_restarts_on_it(disk: SmallDisk, smollm2_path: Path) -> None:
    folder = disk.folder / "data"
    platform = up(folder, "--open", inside=disk.inside)
    make_endpoint(platform, "kept", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    platform.until_in_service("kept")
    answer = answered(platform, "kept")
    disk.fill()
    platform.close()
    platform.kill()
    platform = up(folder, "--open", inside=disk.inside)
    try:
        until(lambda: answers(platform, "kept"), "the worker is adopted")
        assert answered(platform, "kept") == answer
    finally:
        disk.empty()
        code = platform.stop()
    assert code == 0, platform.log()
