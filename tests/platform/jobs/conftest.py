"""A control plane that runs batch transform jobs, on played workers for which one server on its loop answers."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.core.files import Files
from headrace.platform.control.model.jobs import OPTIMIZATION_JOB, RECOMMENDATIONS_JOB
from headrace.platform.control.model.transform_job import TRANSFORM_JOB
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.errors import GatewayConfig
from headrace.platform.jobs.loop import Jobs
from headrace.platform.jobs.optimization import OptimizationRunner
from headrace.platform.jobs.recommendations import RecommendationsRunner
from headrace.platform.jobs.transform_jobs import TransformRunner
from headrace.platform.state.store import Store
from headrace.testing.fake_launcher import FakeMachine
from tests.platform.control.calls import make_model
from tests.platform.control.support import AWS_SCOPE, Platform, running_platform
from tests.platform.gateway.async_parts import MemoryObjects
from tests.platform.gateway.workers import Exchange, Script, Worker, echo
from tests.service_models import parsed_service_models
from tests.waiting import WAIT_S, pauses

__all__ = ["parsed_service_models"]


@dataclass
class Scene:
    """A control plane, its objects and its worker; `script` answers the requests of all jobs."""

    folder: Path
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    worker: Worker = field(default_factory=Worker)
    parameters: bytes | None = None
    """What the container answers to `/execution-parameters`; None: 404."""
    script: Script = echo
    platform: Platform = field(init=False)
    client: Any = field(init=False)
    loop: asyncio.AbstractEventLoop = field(init=False)
    gateway: Gateway = field(init=False)
    num_starts: int = 0
    """Processes of the platform that have run jobs."""
    _killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self, store: Store, machine: FakeMachine) -> None:
        """Run jobs, again after each kill."""
        self.loop = asyncio.get_running_loop()
        self.worker.script = self._answer
        await self.worker.start()
        machine.url = self.worker.url
        gateway = self.gateway = Gateway(store, GatewayConfig(account=AWS_SCOPE.account, region=AWS_SCOPE.region))
        await gateway.start()
        try:
            while True:
                self._killed.clear()
                runners = {
                    TRANSFORM_JOB: TransformRunner(service=gateway.invocations, objects=self.objects),
                    OPTIMIZATION_JOB: OptimizationRunner(service=gateway.invocations, objects=self.objects),
                    RECOMMENDATIONS_JOB: RecommendationsRunner(
                        service=gateway.invocations, objects=self.objects, num_cores=2
                    ),
                }
                jobs = Jobs(store=store, runners=runners, files=Files(self.folder / "transforms"))
                running = asyncio.create_task(jobs.run())
                self.num_starts += 1
                try:
                    await self._killed.wait()
                finally:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
        finally:
            await gateway.close()
            await self.worker.stop()

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.asked.path != "/execution-parameters":
            await self.script(exchange)
        elif self.parameters is None:
            exchange.whole(b"", status="404 Not Found")
        else:
            exchange.whole(self.parameters)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of all requests so far."""
        return [asked.body for asked in self.worker.asked if asked.path == "/invocations"]

    def kill(self) -> None:
        """End the process that runs jobs, and start another one."""
        before = self.num_starts
        self.loop.call_soon_threadsafe(self._killed.set)
        self.until(lambda: self.num_starts > before, "another process runs jobs")

    def put(self, **contents: bytes) -> None:
        """Write the objects of `s3://in/`."""
        self.objects.objects |= {f"s3://in/{key.replace('__', '/')}": (body, "") for key, body in contents.items()}

    def outputs(self, job: str) -> dict[str, bytes]:
        start = f"s3://out/{job}/"
        found = {uri: body for uri, (body, _) in self.objects.objects.items() if uri.startswith(start)}
        return {uri.removeprefix(start): body for uri, body in found.items()}

    def start(self, job: str, prefix: str = "s3://in/", **more: Any) -> dict[str, Any]:
        """Create a job on lines of JSON; the members of inputs and outputs are put where they belong."""
        kind = more.pop("S3DataType", "S3Prefix")
        source = {"DataSource": {"S3DataSource": {"S3DataType": kind, "S3Uri": prefix}}, "SplitType": "Line"}
        output = {"S3OutputPath": f"s3://out/{job}", "AssembleWith": "Line"}
        for member in ("SplitType", "ContentType", "CompressionType"):
            source |= {member: more.pop(member)} if member in more else {}
        for member in ("Accept", "AssembleWith"):
            output |= {member: more.pop(member)} if member in more else {}
        created: dict[str, Any] = self.client.create_transform_job(
            TransformJobName=job,
            **{
                "ModelName": "m",
                "TransformInput": source,
                "TransformOutput": output,
                "TransformResources": {"InstanceType": "ml.m5.large", "InstanceCount": 1},
                "BatchStrategy": "SingleRecord",
                **more,
            },
        )
        return created

    def ended(self, job: str, state: str = "Completed") -> dict[str, Any]:
        """Wait for the end of a job, and return its description."""

        def described() -> dict[str, Any] | None:
            found: dict[str, Any] = self.client.describe_transform_job(TransformJobName=job)
            return found if found["TransformJobStatus"] in {"Completed", "Failed", "Stopped"} else None

        found = self.until(described, f"the end of {job}")
        assert found["TransformJobStatus"] == state, found
        return found

    def until(self, fact: Callable[[], Any], what: str) -> Any:
        deadline_s, pause_s = time.monotonic() + WAIT_S, pauses()
        while not (found := fact()):
            assert time.monotonic() < deadline_s, f"never happened: {what}"
            time.sleep(next(pause_s))
        return found


@contextmanager
def running_scene(folder: Path) -> Iterator[Scene]:
    scene = Scene(folder=folder)
    with running_platform(also=scene.live) as platform:
        scene.platform, scene.client = platform, platform.client("sagemaker")
        make_model(scene.client)
        scene.until(lambda: scene.num_starts, "jobs are run")
        yield scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with running_scene(tmp_path) as scene:
        yield scene


@pytest.fixture(scope="module")
def shared_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One scene for calls that are refused."""
    with running_scene(tmp_path_factory.mktemp("jobs")) as scene:
        yield scene
