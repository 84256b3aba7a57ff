"""
The runner of inference recommendations jobs: it deploys the model for each test, and sends ever more load to it.

An instance type that is not here is deployed as Headrace deploys it, on the cores of this machine, and its metrics are
estimated by the ratio of the memory bandwidths (accelerators) or of the vCPUs. Results are recorded after each test, so
a job that goes on after a restart repeats at most one.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

from msgspec.structs import replace

from headrace.platform.cluster.instance_prices import accelerator_bandwidth
from headrace.platform.cluster.instance_types import find_instance_type
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.model.jobs import RECOMMENDATIONS_JOB, AnyJob, job_endpoint_name
from headrace.platform.control.model.recommendation import Limits, Measured, levels_of, metrics_of
from headrace.platform.control.model.transform_job import with_environment, workers_spec
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.objects import retry_unavailable
from headrace.platform.gateway.routing import RoutingQuery
from headrace.platform.gateway.service import InvocationService
from headrace.platform.jobs.child import JobLog, measure_bandwidth
from headrace.platform.jobs.inputs import MAX_SAMPLE_BYTES, Objects, read_samples
from headrace.platform.jobs.loop import JobFailed, Jobs
from headrace.platform.jobs.workers import JobWorkers
from headrace.serving.artifacts.archives import unpack
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed, Guard
from headrace.serving.http.client import ClientRequest, send_once
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge
from headrace.serving.wire.aws.errors import AwsError

DEFAULT_PAYLOAD: Final = b'{"inputs": "The sea is", "parameters": {"max_new_tokens": 32}}'
"""The body of requests without a SamplePayloadUrl: LMI and TGI read it."""
_MAX_PAGE_BYTES: Final = 1 << 20
_REQUEST_TIMEOUT_S: Final = 60.0
_UNPACK_S: Final = 60.0
_ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
_CPU: Final = re.compile(rb"^process_cpu_seconds_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_MEMORY: Final = re.compile(rb"^process_resident_memory_bytes(?:\{[^}]*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationsRunner:
    service: InvocationService
    objects: Objects | None
    num_cores: int
    """Cores of this machine, which workers share."""
    logs: PlatformLogs | None = None

    async def run(self, job: AnyJob, folder: Path, jobs: Jobs) -> str:
        plan: dict[str, Any] = job.spec.resolved
        log = await asyncio.to_thread(JobLog.open, job, folder, self.logs)
        started_s = job.status.started_s or jobs.clock()
        await jobs.update(job, lambda status: replace(status, started_s=started_s))
        duration_s = job.spec.members["InputConfig"].get("JobDurationInSeconds")
        end_s = None if duration_s is None else started_s + duration_s
        payloads = await _payloads(plan["payload"], folder, self.objects)
        steps: list[dict[str, Any]] = list(job.status.result.get("steps", []))
        for number, test in enumerate(plan["tests"]):
            if number < len(steps):
                continue
            if end_s is not None and jobs.clock() >= end_s:
                log.write("JobDurationInSeconds is over: the other tests are left out.")
                break
            run = _Test(self, job, jobs, log, payloads, number, test)
            steps.append(await run.step(folder))
            result = {"steps": list(steps)}
            await jobs.update(job, lambda status, result=result: replace(status, result=result))  # type: ignore[misc]
        if not any(step["metrics"] for step in steps):
            raise JobFailed(steps[0]["reason"] if steps else "ClientError: JobDurationInSeconds is over.")
        return ""


@dataclass(slots=True)
class _Test:
    """One deployment of the model, with an instance type and variables."""

    runner: RecommendationsRunner
    job: AnyJob
    jobs: Jobs
    log: JobLog
    payloads: Sequence[bytes]
    number: int
    test: dict[str, Any]
    _workers: JobWorkers = field(init=False)

    def __post_init__(self) -> None:
        name = job_endpoint_name(self.job.name, RECOMMENDATIONS_JOB, self.number)
        self._workers = JobWorkers(store=self.jobs.store, service=self.runner.service, name=name)

    async def step(self, folder: Path) -> dict[str, Any]:
        """Run the test; return what is recorded of it."""
        start_s, basis, reason = self.jobs.clock(), "measured", ""
        metrics: dict[str, Any] = {}
        kind = self.test["instance_type"]
        self.log.write(
            f"Test {self.number + 1}: {kind} with {self.test['environment'] or 'the variables of the model'}."
        )
        try:
            basis, metrics = await self._measure(folder)
            self.log.write(f"Test {self.number + 1} is {basis}: {metrics}")
        except JobFailed as error:
            reason = str(error)
            self.log.write(f"Test {self.number + 1} failed: {reason}")
        await self._workers.remove()  # those of a cancelled test stay, as it goes on
        times = {"start_s": start_s, "end_s": self.jobs.clock()}
        return {**self.test, **times, "number": self.number, "basis": basis, "metrics": metrics, "reason": reason}

    async def _measure(self, folder: Path) -> tuple[str, dict[str, Any]]:
        plan: dict[str, Any] = self.job.spec.resolved
        model = with_environment(plan["model"], self.test["environment"])
        kind = self.test["instance_type"]
        began_s = perf_counter()
        await self._workers.start(workers_spec(self.job.name, plan["model_name"], model, instance_type=kind))
        await self._workers.until_serving()
        facts: dict[str, Any] = {"ModelSetupTime": round(perf_counter() - began_s)}
        limits, members = Limits.of(self.job.spec.members), self.job.spec.members
        await self._invoke(self.payloads[0])  # the first request of a worker is slower
        before_s, _ = await self._usage()
        levels_began_s, measured = perf_counter(), list[Measured]()
        for level in levels_of(members):
            measured.append(await self._load(level.users, level.duration_s))
            self.log.write(f"{level.users} users: {measured[-1].per_minute:.0f} invocations a minute.")
            if limits.has_seen_enough(measured):
                break
        after_s, resident = await self._usage()
        if before_s is not None and after_s is not None:
            facts["CpuUtilization"] = round(100 * (after_s - before_s) / (perf_counter() - levels_began_s), 2)
        known = find_instance_type(kind)
        if resident is not None and known is not None:
            facts["MemoryUtilization"] = round(100 * resident / known.memory_bytes, 2)
        factor = await self._factor(folder)
        return ("measured" if factor == 1 else "estimated"), metrics_of(kind, limits.best(measured), factor, facts)

    async def _factor(self, folder: Path) -> float:
        """Return the speed of the instance type, relative to this machine as its workers use it."""
        known = find_instance_type(self.test["instance_type"])
        if known is None:
            return 1.0
        bandwidth = accelerator_bandwidth(known.name)
        if bandwidth is not None:
            return bandwidth / await measure_bandwidth(folder, self.log)
        return max(1.0, known.vcpus / self.runner.num_cores)

    async def _load(self, users: int, duration_s: float) -> Measured:
        """Send requests by so many users for a while."""
        latencies_s: list[float] = []
        began_s = perf_counter()

        async def user(number: int) -> None:
            while perf_counter() - began_s < duration_s:
                sent_s = perf_counter()
                await self._invoke(self.payloads[(number + len(latencies_s)) % len(self.payloads)])
                latencies_s.append(perf_counter() - sent_s)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(users):
                    group.create_task(user(number))
        except* JobFailed as errors:
            raise errors.exceptions[0] from None
        return Measured(users=users, duration_s=perf_counter() - began_s, latencies_s=latencies_s)

    async def _invoke(self, body: bytes) -> None:
        request_id = str(uuid4())
        record = InvocationRecord(
            request_id=request_id, api="TransformJob", endpoint=self._workers.name, started_s=perf_counter()
        )
        content_type = self.job.spec.resolved["content_type"] or "application/json"
        request = ClientRequest(headers=(("Content-Type", content_type), ("X-Amzn-RequestId", request_id)), body=body)
        service, name = self.runner.service, self._workers.name
        try:
            invoked = service.invoke(name, RoutingQuery(), request, record, timeout_s=_REQUEST_TIMEOUT_S)
            async with invoked as response:
                answer = await response.read(service.config.max_async_response_bytes)
        except (AwsError, TimeoutError, ResponseBroken, ResponseTooLarge) as error:
            raise JobFailed(f"AlgorithmError: the model does not answer: {error or type(error).__name__}") from None
        if response.status != 200:
            said = answer[:300].decode(errors="replace")
            raise JobFailed(f"ClientError: the model answered the sample payload with {response.status}: {said}")

    async def _usage(self) -> tuple[float | None, float | None]:
        """Return the CPU seconds and the memory of a worker; None if its container does not say."""
        replica = await self._workers.replica()
        headers = (("Authorization", f"Bearer {replica.token}"),) if replica.token else ()
        request = ClientRequest(method="GET", path="/metrics", headers=headers)
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S), send_once(replica.url, request) as response:
                page = await response.read(_MAX_PAGE_BYTES)
        except (NoResponse, ResponseBroken, ResponseTooLarge, TimeoutError):
            return None, None
        cpu, memory = _CPU.search(page), _MEMORY.search(page)
        return float(cpu[1]) if cpu else None, float(memory[1]) if memory else None


async def _payloads(uri: str, folder: Path, objects: Objects | None) -> list[bytes]:
    """Return the bodies of requests: the files of an archive, or an object itself."""
    if not uri:
        return [DEFAULT_PAYLOAD]
    if objects is None:
        raise JobFailed("ClientError: SamplePayloadUrl needs an object storage; none is configured.")
    content = await retry_unavailable(partial(objects.get, uri, max_bytes=MAX_SAMPLE_BYTES))
    if not uri.endswith(_ARCHIVES):
        return [content]
    try:
        return await asyncio.to_thread(_unpacked, content, folder / f"payload-{time.monotonic_ns()}", uri)
    except FetchFailed as error:
        raise JobFailed(f"ClientError: {error}") from None


def _unpacked(content: bytes, folder: Path, uri: str) -> list[bytes]:
    folder.mkdir(parents=True)
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        piece = content[position : position + size]
        position += len(piece)
        return piece

    unpack(read, folder, Guard(folder=folder, deadline=Deadline(_UNPACK_S)), name=uri)
    if not (found := read_samples(folder, "*", uri)):
        raise FetchFailed(f"{uri} has no files.")
    return found
