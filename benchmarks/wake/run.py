"""
Measure how long a request at zero waits for its first token, and whether any is lost.

Starts a platform, deploys the model, and repeatedly scales it to zero, waits until it is at zero, and sends
several requests at the same moment, streamed and not, by SageMaker's API and OpenAI's.

    python -m benchmarks.wake.run "$(headrace models path smollm2)"
    python -m benchmarks.wake.run MODEL --wake-ups 100 --requests 8

Writes `--output` (JSON, every request) and the same name with `.md` (the table). The last line is one JSON object.
"""

import json
import tempfile
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from threading import Barrier
from time import perf_counter

import httpx
from benchmarks.harness.platforms import TGI_IMAGE, create_endpoint, is_in_service, scale, until
from benchmarks.harness.results import RESULTS, make_parser, tell, write_result
from benchmarks.wake.figures import Request, WakeUp, summary, table

from headrace.testing.local_platform import LocalPlatform, local_platform
from headrace.tools.bench.environment import describe_environment

NAME = "sleeper"
PATIENCE_S = 60.0
_COMPLETION = {"prompt": "The sea is", "max_tokens": 8, "temperature": 0, "model": NAME}
_TGI = {"inputs": "The sea is", "parameters": {"max_new_tokens": 8}}
APIS: dict[str, tuple[str, dict[str, object]]] = {
    "sagemaker stream": (f"/endpoints/{NAME}/invocations-response-stream", {**_TGI, "stream": True}),
    "openai stream": ("/v1/completions", {**_COMPLETION, "stream": True}),
    "sagemaker": (f"/endpoints/{NAME}/invocations", _TGI),
    "openai": (f"/endpoints/{NAME}/openai/v1/completions", _COMPLETION),
}


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("model", help="a file or a folder")
    parser.add_argument("--wake-ups", type=int, default=100)
    parser.add_argument("--requests", type=int, default=4, help="at the same moment; the kinds take turns")
    parser.add_argument("--rest", type=float, default=0.5, help="seconds at zero before the requests")
    parser.add_argument("--output", type=Path, default=RESULTS / "wake.json")
    return parser.parse_args()


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
    if answer.status_code != httpx.codes.OK or b"exception" in content or b'"error"' in content:
        return Request(api=api, first_s=None, error=content[:500].decode("latin-1"))
    return Request(api=api, first_s=first_s)


def wake_up(client: httpx.Client, pool: ThreadPoolExecutor, number: int, num_requests: int) -> WakeUp:
    """Send all requests at the same moment."""
    start, apis = Barrier(num_requests), list(APIS)
    futures = [pool.submit(ask, client, apis[(number + i) % len(apis)], start) for i in range(num_requests)]
    return WakeUp(number=number, requests=tuple(future.result() for future in futures))


def measure(options: Namespace, platform: LocalPlatform) -> list[WakeUp]:
    """Deploy the model, and run all wake-ups, one after the other."""
    headers = {"Authorization": f"Bearer {platform.secret_key}"}
    wakes = []
    with (
        closing(platform.client("sagemaker")) as sagemaker,
        httpx.Client(base_url=platform.url, headers=headers, timeout=PATIENCE_S, trust_env=False) as client,
        ThreadPoolExecutor(options.requests) as pool,
    ):

        def wait_for(count: int) -> None:
            is_there = lambda: is_in_service(sagemaker, NAME, instances=count)  # noqa: E731
            until(is_there, f"the endpoint has {count} instances", PATIENCE_S)

        container = {"Image": TGI_IMAGE, "Environment": {"HF_MODEL_ID": options.model}}
        create_endpoint(sagemaker, NAME, container, instance_type="ml.g5.2xlarge")
        for number in range(options.wake_ups):
            wait_for(1)
            scale(sagemaker, NAME, 0)
            wait_for(0)
            time.sleep(options.rest)
            wakes.append(wake_up(client, pool, number, options.requests))
            errors = [request.error for request in wakes[-1].requests if request.error]
            tell(f"{number} {wakes[-1].first_s} {errors}")
    return wakes


def main() -> None:
    options = parse_arguments()
    started_s = time.time()
    with tempfile.TemporaryDirectory() as folder, local_platform(Path(folder)) as platform:
        wakes = measure(options, platform)
    found = summary(wakes)
    result = {
        "environment": describe_environment(),
        "model": Path(options.model).name,
        "requests_at_once": options.requests,
        "took_s": round(time.time() - started_s),
        "summary": found,
        "wake_ups": [asdict(wake) for wake in wakes],
    }
    write_result(options.output, result, f"# From zero to the first token\n\n{table(found)}\n")
    print(table(found))
    print(json.dumps({"output": str(options.output), "summary": found}))


if __name__ == "__main__":
    main()
