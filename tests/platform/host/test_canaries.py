"""Secrets and prompts that are sent to a real platform are looked for in every place that others may read."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests import plain_http
from tests.waiting import WAIT_S

from .conftest import PLATFORM_SECRET
from .endpoints import workers
from .running import Running, until

pytestmark = pytest.mark.model

PROMPT, TOKEN, KEY = "canary of a prompt", "canary-of-a-hub-token", "canary-of-a-bearer-key"
PAGES = ("/metrics", "/metrics/targets", "/openapi.json", "/health", "/console/api/home", "/console/api/models")


@pytest.fixture(scope="module")
def used(platform: Running, endpoint: str) -> Running:
    """The platform after requests with canaries: answered, streamed and refused ones; all are in its logs."""
    chat = {"model": endpoint, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    for body in (chat, {**chat, "stream": True}, {**chat, "temperature": PROMPT}, {**chat, PROMPT: 1, "n": 0}):
        for headers in (platform.bearer, {"authorization": f"Bearer {KEY}"}):
            plain_http.post(f"{platform.url}/v1/chat/completions", json=body, headers=headers, timeout=WAIT_S)
    client = platform.client("sagemaker")
    container = {"Image": "x/headrace:1", "Environment": {"HF_TOKEN": TOKEN}}
    client.create_model(ModelName="canary", PrimaryContainer=container, ExecutionRoleArn="arn:aws:iam::0:role/any")
    client.delete_model(ModelName="canary")
    runtime = platform.client("sagemaker-runtime")
    with pytest.raises(ClientError):
        runtime.invoke_endpoint(EndpointName=endpoint, Body='{"inputs": "' + PROMPT)
    answer = runtime.invoke_endpoint(EndpointName=endpoint, Body=json.dumps({"inputs": PROMPT}), InferenceId="canary")
    answer["Body"].close()
    logs = [platform.log_path, *platform.folder.glob("workers/*/log.txt")]
    until(lambda: sum('"inference_id": "canary"' in path.read_text() for path in logs) >= 2, "the log of the request")
    return platform


def test_no_log_has_a_prompt_or_a_secret_at_any_level(used: Running) -> None:
    for path in (used.log_path, *used.folder.glob("*/log.txt"), *used.folder.glob("workers/*/log.txt")):
        text = path.read_text()
        canaries = (PROMPT, TOKEN, KEY, PLATFORM_SECRET, used.key.secret)
        assert [canary for canary in canaries if canary in text] == [], path


def test_no_file_has_a_prompt_or_a_key_of_a_client(used: Running) -> None:
    for path in below(used.folder):
        if path.is_file() and (used.folder / "s3") not in path.parents:
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                assert [canary for canary in (PROMPT, KEY, PLATFORM_SECRET) if canary.encode() in content] == [], path


def test_other_users_may_neither_read_nor_write_the_data_folder(used: Running) -> None:
    """The platform was started with umask 000."""
    assert [path.name for path in used.folder.iterdir() if path.stat().st_mode & 0o077] == []
    for path in below(used.folder):
        with suppress(FileNotFoundError):
            assert path.is_symlink() or not path.stat().st_mode & 0o022, path


def test_no_process_list_shows_a_secret(used: Running) -> None:
    canaries = (PROMPT, TOKEN, KEY, PLATFORM_SECRET)
    assert PLATFORM_SECRET in facts_of(used.process.pid, "environ"), "the test reads what it should"
    for pid in of_platform(used):
        assert [canary for canary in (*canaries, used.key.secret) if canary in facts_of(pid, "cmdline")] == []
        if pid != used.process.pid:
            assert [canary for canary in canaries if canary in facts_of(pid, "environ")] == []


def test_no_process_leaves_a_core_file(used: Running) -> None:
    """It would hold prompts and keys."""
    for pid in of_platform(used):
        limits = [line for line in facts_of(pid, "limits").splitlines() if line.startswith("Max core file size")]
        assert all(line.split()[4] == "0" for line in limits)


@pytest.mark.parametrize("path", PAGES)
def test_no_page_of_the_platform_has_a_prompt_or_a_secret(used: Running, path: str) -> None:
    answer = plain_http.get(used.url + path, headers=used.bearer, timeout=WAIT_S)
    assert answer.status_code == 200
    canaries = (PROMPT, TOKEN, KEY, PLATFORM_SECRET, used.key.secret)
    assert [canary for canary in canaries if canary in answer.text] == []


def below(folder: Path) -> Iterator[Path]:
    """Everything in a folder, parts of which may be deleted meanwhile."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent) / name for name in (*folders, *files))


def of_platform(running: Running) -> Iterator[int]:
    """The platform, its object storage and its workers."""
    yield running.process.pid
    yield json.loads((running.folder / "s3" / "state.json").read_bytes())["process"]["pid"]
    yield from workers(running).values()


def facts_of(pid: int, name: str) -> str:
    """A file of `/proc`; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except FileNotFoundError:
        return ""
