"""The gateway on a real platform, with real processes behind it: crashes, draining, weights, sessions, prefixes."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from tests import plain_http
from tests.waiting import WAIT_S

from .component_scene import ROLE, Scene, dumb_up
from .endpoints import workers
from .running import Running, until


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    running = dumb_up(tmp_path_factory.mktemp("gateway") / "data")
    made = Scene(running)
    for name in ("red", "blue"):
        made.model(name)
    yield made
    assert running.stop() == 0, running.log()


@pytest.fixture
def name(scene: Scene, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an endpoint of this test alone, which is deleted with everything on it."""
    name = request.node.name.removeprefix("test_").translate(str.maketrans("_[]", "---")).rstrip("-")[-50:].lstrip("-")
    yield name
    scene.clear(name)


def make_endpoint(scene: Scene, name: str, *variants: dict[str, Any]) -> None:
    """An endpoint whose variants have models, in service."""
    first = {"VariantName": "v", "ModelName": "red", "InitialInstanceCount": 1, "InstanceType": "ml.m5.large"}
    production = [{**first, **variant} for variant in variants or ({},)]
    scene.sagemaker.create_endpoint_config(
        EndpointConfigName=name, ProductionVariants=production, ExecutionRoleArn=ROLE
    )
    scene.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
    until(lambda: scene.endpoint(name)["EndpointStatus"] == "InService", f"{name} is in service")


def scale(scene: Scene, name: str, count: int) -> None:
    scene.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=name, DesiredWeightsAndCapacities=[{"VariantName": "v", "DesiredInstanceCount": count}]
    )


def serving(scene: Scene, name: str) -> int:
    """Instances of the variant, once it has settled."""
    found = scene.endpoint(name)
    is_settled = found["EndpointStatus"] == "InService"
    return int(found["ProductionVariants"][0]["CurrentInstanceCount"]) if is_settled else -1


def ask(scene: Scene, name: str, **parameters: Any) -> tuple[int, str]:
    """The process and the variant that answered."""
    body = parameters.pop("Body", b"{}")
    answer = scene.runtime.invoke_endpoint(EndpointName=name, Body=body, **parameters)
    with answer["Body"] as stream:
        return json.loads(stream.read())["pid"], answer["InvokedProductionVariant"]


class Load:
    """Threads that ask by all APIs; what counts is who failed before they had a byte of an answer."""

    def __init__(self, running: Running, name: str, **target: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._num_ended: Counter[int] = Counter()
        """Requests that have ended, by thread."""
        self._name = name
        self._target = target
        self._runtime = running.client("sagemaker-runtime", max_pool_connections=6)
        base = f"/endpoints/{name}"
        if target:
            base += f"/inference-components/{target['InferenceComponentName']}"
        self._openai = f"{running.url}{base}/openai/v1/completions"
        self._bearer = running.bearer
        self._is_over = threading.Event()

    @contextmanager
    def running(self) -> Iterator["Load"]:
        ways = [self._whole, self._stream, self._complete] * 2
        with ThreadPoolExecutor(len(ways)) as pool:
            asking = [pool.submit(self._again, thread, way) for thread, way in enumerate(ways)]
            try:
                yield self
            finally:
                self._is_over.set()
            for future in asking:
                future.result(WAIT_S)

    def more(self, number: int) -> None:
        """Wait for more answers, and for the end of all requests that run now: the gateway sends none a third time."""
        wanted, ended = self.outcomes["answered"] + number, dict(self._num_ended)
        until(
            lambda: self.outcomes["answered"] >= wanted and all(self._num_ended[task] > ended[task] for task in ended),
            f"{number} more answers; {self.outcomes}",
        )

    def _again(self, thread: int, way: Any) -> None:
        while not self._is_over.is_set():
            try:
                self.outcomes[way()] += 1
            except ClientError as error:
                self.outcomes[f"{way.__name__} {error.response['Error']['Code']} {error}"] += 1
            self._num_ended[thread] += 1

    def _whole(self) -> str:
        body = json.dumps({"wait_s": 0.05})
        answer = self._runtime.invoke_endpoint(EndpointName=self._name, Body=body, **self._target)
        with answer["Body"] as stream:
            stream.read()
        return "answered"

    def _stream(self) -> str:
        body, num_parts = json.dumps({"wait_s": 0.1, "stream": 5}), 0
        answer = self._runtime.invoke_endpoint_with_response_stream(EndpointName=self._name, Body=body, **self._target)
        try:
            for _ in answer["Body"]:
                num_parts += 1
        except EventStreamError:
            return "broke after a byte"
        finally:
            answer["Body"].close()
        return "answered" if num_parts == 5 else f"{num_parts} parts"

    def _complete(self) -> str:
        answer = plain_http.post(self._openai, json={"wait_s": 0.05}, headers=self._bearer, timeout=WAIT_S)
        return "answered" if answer.status_code == 200 else f"openai {answer.status_code} {answer.text}"


def alive(scene: Scene, name: str) -> dict[str, int]:
    """The processes of an endpoint, or a component, by their workers' names; failed ones are in the folder, too."""
    found = workers(scene.running)
    return {
        worker: pid for worker, pid in found.items() if worker.startswith(f"{name}-") and Path(f"/proc/{pid}").exists()
    }


def kill(scene: Scene, name: str) -> None:
    """As the kernel ends a process that takes too much memory."""
    pid = next(iter(alive(scene, name).values()))
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in alive(scene, name).values(), "it is dead")


def test_a_killed_worker_fails_no_request_without_a_first_byte(scene: Scene, name: str) -> None:
    make_endpoint(scene, name)
    with Load(scene.running, name).running() as load:
        for _ in range(3):
            load.more(20)
            kill(scene, name)
            until(lambda: alive(scene, name), "a replacement was started")
        load.more(20)
    assert set(load.outcomes) <= {"answered", "broke after a byte"}, load.outcomes


def test_a_killed_copy_fails_no_request_without_a_first_byte(scene: Scene, name: str) -> None:
    scene.host(name)
    scene.create(name, name, "red", copies=2)
    scene.until_up(name, 2)
    with Load(scene.running, name, InferenceComponentName=name).running() as load:
        load.more(20)
        kill(scene, name)
        load.more(60)
    assert set(load.outcomes) <= {"answered", "broke after a byte"}, load.outcomes


@pytest.mark.parametrize("is_component", [False, True], ids=["variant", "component"])
def test_a_stream_on_a_worker_that_is_scaled_in_completes(scene: Scene, name: str, is_component: bool) -> None:
    target = {}
    if is_component:
        scene.host(name)
        scene.create(name, name, "red", copies=2)
        scene.until_up(name, 2)
        target = {"InferenceComponentName": name}
    else:
        make_endpoint(scene, name, {"InitialInstanceCount": 2})
    streams = [open_stream(scene, name, target) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        firsts = list(pool.map(next, streams))
    if is_component:
        scene.scale(name, 1)
    else:
        scale(scene, name, 1)
    until(lambda: len({ask(scene, name, **target)[0] for _ in range(8)}) == 1, "one gets all new requests")
    lines = [first + b"".join(stream) for first, stream in zip(firsts, streams, strict=True)]
    assert [text.count(b"\n") for text in lines] == [6] * 8
    until(lambda: len(alive(scene, name)) == 1, "the other one has ended")


def open_stream(scene: Scene, name: str, target: dict[str, str]) -> Iterator[bytes]:
    answer = scene.runtime.invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps({"stream": 6, "wait_s": 3.0}), **target
    )
    try:
        for event in answer["Body"]:
            yield event["PayloadPart"]["Bytes"]
    finally:
        answer["Body"].close()


def test_variants_get_requests_by_their_weights(scene: Scene, name: str) -> None:
    make_endpoint(
        scene,
        name,
        {"VariantName": "a", "InitialVariantWeight": 3.0},
        {"VariantName": "b", "InitialVariantWeight": 1.0, "ModelName": "blue"},
    )
    asked = Counter(ask(scene, name)[1] for _ in range(100))
    assert 50 < asked["a"] < 98, asked  # five standard deviations
    assert ask(scene, name, TargetVariant="b")[1] == "b"
    scene.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=name,
        DesiredWeightsAndCapacities=[
            {"VariantName": "a", "DesiredWeight": 0.0},
            {"VariantName": "b", "DesiredWeight": 1.0},
        ],
    )
    until(lambda: {ask(scene, name)[1] for _ in range(20)} == {"b"}, "the other one gets all")


def test_sessions_stay_with_their_copy(scene: Scene, name: str) -> None:
    scene.host(name)
    scene.create(name, name, "red", copies=3)
    scene.until_up(name, 3)
    target = {"InferenceComponentName": name}
    sessions = [f"session-{number}" for number in range(30)]
    first = {session: ask(scene, name, SessionId=session, **target)[0] for session in sessions}
    assert len(set(first.values())) == 3, "they are spread"
    assert {session: ask(scene, name, SessionId=session, **target)[0] for session in sessions} == first
    scene.scale(name, 4)
    scene.until_up(name, 4)
    after = {session: ask(scene, name, SessionId=session, **target)[0] for session in sessions}
    moved = {session for session in sessions if after[session] != first[session]}
    assert {after[session] for session in moved} <= set(after.values()) - set(first.values()), (
        "only to the one that came"
    )
    assert len(moved) < 20


@pytest.mark.parametrize("is_component", [False, True], ids=["variant", "component"])
def test_requests_with_the_same_prefix_stay_with_one_replica(scene: Scene, name: str, is_component: bool) -> None:
    routing = {"RoutingConfig": {"RoutingStrategy": "PREFIX_AWARE"}}
    target = {}
    if is_component:
        scene.host(name, **routing)
        scene.create(name, name, "red", copies=2)
        scene.until_up(name, 2)
        target = {"InferenceComponentName": name}
    else:
        make_endpoint(scene, name, {"InitialInstanceCount": 2, **routing})

    def who(prefix: int, end: int) -> int:
        return ask(scene, name, Body=json.dumps({"text": f"{prefix} " * 1000, "end": end}), **target)[0]

    first = [who(prefix, 0) for prefix in range(12)]
    assert len(set(first)) == 2, "they are spread"
    for end in range(1, 4):
        assert [who(prefix, end) for prefix in range(12)] == first
