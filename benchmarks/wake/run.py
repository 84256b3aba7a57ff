"""
Measure how long a request at zero waits for its first token, and whether any is lost.

Starts a platform, deploys the model, and repeatedly scales it to zero, waits until it is at zero, and sends
several requests at the same moment, streamed and not, by SageMaker's API and OpenAI's.

    python -m benchmarks.wake.run "$(headrace models path smollm2)"
    python -m benchmarks.wake.run MODEL --wake-ups 100 --requests 8

Writes `--output` (JSON, every request) and the same name with `.md` (the table). The last line is one JSON object.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Barrier
from time import perf_counter
from typing import Any

import boto3
import httpx
from benchmarks.wake.figures import Request, WakeUp, summary, table
from botocore.config import Config

from headrace.platform.host.folders import DataFolder, LocalKey, read_local_key
from headrace.tools.bench.environment import describe_environment

RESULT = Path(__file__).parent.parent / "results" / "wake.json"
NAME = "sleeper"
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311"
PATIENCE_S = 60.0
POLL_S = 0.05
_COMPLETION = {"prompt": "The sea is", "max_tokens": 8, "temperature": 0, "model": NAME}
_TGI = {"inputs": "The sea is", "parameters": {"max_new_tokens": 8}}
APIS: dict[str, tuple[str, dict[str, object]]] = {
    "sagemaker stream": (f"/endpoints/{NAME}/invocations-response-stream", {**_TGI, "stream": True}),
    "openai stream": ("/v1/completions", {**_COMPLETION, "stream": True}),
    "sagemaker": (f"/endpoints/{NAME}/invocations", _TGI),
    "openai": (f"/endpoints/{NAME}/openai/v1/completions", _COMPLETION),
}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a file or a folder")
    parser.add_argument("--wake-ups", type=int, default=100)
    parser.add_argument("--requests", type=int, default=4, help="at the same moment; the kinds take turns")
    parser.add_argument("--rest", type=float, default=0.5, help="seconds at zero before the requests")
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args()


@contextmanager
def platform(folder: Path) -> Iterator[tuple[str, LocalKey]]:
    """Yield the URL of a platform, and its access key."""
    command = shutil.which("headrace", path=str(Path(sys.executable).parent)) or "headrace"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADRACE_UP_"))}
    arguments = [command, "up", "--data-dir", str(folder / "data"), "--port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        running = folder / "data" / "running.json"
        deadline_s = time.monotonic() + PATIENCE_S
        while not running.exists():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(POLL_S)
        key = read_local_key(DataFolder(folder / "data"))
        if key is None:
            raise RuntimeError(f"no access key in {folder}")
        yield json.loads(running.read_text())["url"], key
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


class Sleeper:
    """The endpoint that is scaled to zero."""

    def __init__(self, url: str, key: LocalKey, model: str) -> None:
        self._client: Any = boto3.client(
            "sagemaker",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=key.key_id,
            aws_secret_access_key=key.secret,
            config=Config(proxies={}),
        )
        container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": model}}
        role = "arn:aws:iam::000000000000:role/any"
        variant = {"VariantName": "v", "ModelName": NAME, "InitialInstanceCount": 1, "InstanceType": "ml.g5.2xlarge"}
        self._client.create_model(ModelName=NAME, PrimaryContainer=container, ExecutionRoleArn=role)
        self._client.create_endpoint_config(EndpointConfigName=NAME, ProductionVariants=[variant])
        self._client.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
        self._until(1)

    def sleep(self) -> None:
        """Scale to zero, and wait until no instance serves."""
        self._until(1)
        self._client.update_endpoint_weights_and_capacities(
            EndpointName=NAME, DesiredWeightsAndCapacities=[{"VariantName": "v", "DesiredInstanceCount": 0}]
        )
        self._until(0)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _until(self, count: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            described = self._client.describe_endpoint(EndpointName=NAME)
            (variant,) = described["ProductionVariants"]
            if described["EndpointStatus"] == "InService" and variant["CurrentInstanceCount"] == count:
                return
            if described["EndpointStatus"] == "Failed":
                raise RuntimeError(described["FailureReason"])
            time.sleep(POLL_S)
        raise RuntimeError(f"the endpoint did not come to {count} instances")


def ask(client: httpx.Client, api: str, start: Barrier) -> Request:
    """Send one request and read the whole answer."""
    path, body = APIS[api]
    start.wait()
    started_s = perf_counter()
    try:
        with client.stream("POST", path, json=body) as answer:
            first_s: float | None = None
            content = b""
            for part in answer.iter_raw():
                first_s = first_s if first_s is not None else perf_counter() - started_s
                content += part
    except httpx.HTTPError as error:
        return Request(api=api, first_s=None, error=repr(error))
    is_lost = answer.status_code != httpx.codes.OK or b"exception" in content or b'"error"' in content
    return Request(
        api=api, first_s=None if is_lost else first_s, error=content[:500].decode("latin-1") if is_lost else ""
    )


def wake_up(client: httpx.Client, pool: ThreadPoolExecutor, number: int, num_requests: int) -> WakeUp:
    """Send all requests at the same moment."""
    start, apis = Barrier(num_requests), list(APIS)
    futures = [pool.submit(ask, client, apis[(number + i) % len(apis)], start) for i in range(num_requests)]
    return WakeUp(number=number, requests=tuple(future.result() for future in futures))


def measure(options: argparse.Namespace, url: str, key: LocalKey) -> list[WakeUp]:
    """Run all wake-ups, one after the other."""
    sleeper = Sleeper(url, key, options.model)
    headers = {"Authorization": f"Bearer {key.secret}"}
    wakes = []
    with (
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False) as client,
        ThreadPoolExecutor(options.requests) as pool,
    ):
        for number in range(options.wake_ups):
            sleeper.sleep()
            time.sleep(options.rest)
            wakes.append(wake_up(client, pool, number, options.requests))
            print(
                number,
                wakes[-1].first_s,
                [request.error for request in wakes[-1].requests if request.error],
                file=sys.stderr,
            )
    sleeper.close()
    return wakes


def main() -> None:
    """Measure, write the files, print the table."""
    options = parse_arguments()
    started_s = time.time()
    with tempfile.TemporaryDirectory() as folder, platform(Path(folder)) as (url, key):
        wakes = measure(options, url, key)
    found = summary(wakes)
    result = {
        "environment": describe_environment(),
        "model": Path(options.model).name,
        "requests_at_once": options.requests,
        "took_s": round(time.time() - started_s),
        "summary": found,
        "wake_ups": [asdict(wake) for wake in wakes],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(f"# From zero to the first token\n\n{table(found)}\n")
    print(table(found))
    print(json.dumps({"output": str(options.output), "summary": found}))


if __name__ == "__main__":
    main()
