"""Steps through a proxy that the guide to production describes: streams as they arrive, signed requests and uploads."""

import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import boto3
import httpx
from common import MODEL, expect, step

PROGRAM = os.environ["CLIENT_PROGRAM"]
_GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "production.md"
_START_S = 30


def guide_block(language: str) -> str:
    """Return the configuration of a proxy in the guide."""
    found = re.search(rf"```{language} [^\n]*\n(.*?)```", _GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    expect(found, f"a block of {language} in {_GUIDE.name}")
    return str(found and found[1])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def started(arguments: Sequence[str], port: int) -> Iterator[None]:
    """Run the proxy in a folder of its own until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "XDG_CONFIG_HOME": folder, "XDG_DATA_HOME": folder}
        with subprocess.Popen([PROGRAM, *arguments], env=variables, cwd=folder) as process:
            try:
                _wait(process, port)
                yield
            finally:
                process.terminate()


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("expected a proxy that listens")


def run_steps(server: str, platform: str) -> None:
    """Run the steps at the proxy's addresses of a server and of a platform."""
    with step("chat, streamed"):
        body = {"model": MODEL, "max_tokens": 64, "stream": True, "messages": [{"role": "user", "content": "Count."}]}
        with httpx.stream("POST", f"{server}/v1/chat/completions", json=body, timeout=120) as answer:
            parts = [part for part in answer.iter_raw() if part]
        expect(len(parts) > 4 and b"[DONE]" in parts[-1], f"several parts: {len(parts)}")
    with step("signed: invoke_endpoint_with_response_stream"):
        runtime = boto3.client("sagemaker-runtime", endpoint_url=platform)
        sent = json.dumps({"inputs": "The capital of France is", "stream": True})
        streamed = runtime.invoke_endpoint_with_response_stream(
            EndpointName=MODEL, ContentType="application/json", Body=sent
        )
        expect(len([event for event in streamed["Body"] if "PayloadPart" in event]) > 1, "several parts")
    with step("s3, 4 MiB"):
        s3 = boto3.client("s3", endpoint_url=platform)
        content = os.urandom(4 * 2**20)
        s3.create_bucket(Bucket="by-proxy")
        s3.put_object(Bucket="by-proxy", Key="file", Body=content)
        expect(s3.get_object(Bucket="by-proxy", Key="file")["Body"].read() == content, "the same bytes")
        s3.delete_object(Bucket="by-proxy", Key="file")
        s3.delete_bucket(Bucket="by-proxy")
