"""The runner of batch transform jobs: it starts workers, lists the inputs once, and sends them (`transform_run`)."""

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from headrace.core.telemetry import get_logger
from headrace.platform.control.model.jobs import AnyJob, job_endpoint_name
from headrace.platform.control.model.transform_job import (
    ExecutionParameters,
    asks_container,
    job_endpoint_spec,
    resolve_parameters,
)
from headrace.platform.gateway.objects import retry_unavailable
from headrace.platform.gateway.service import InvocationService
from headrace.platform.jobs.batch_capture import MANIFEST_TYPE, manifests
from headrace.platform.jobs.inputs import InputFile, Objects, find_inputs
from headrace.platform.jobs.loop import JobFailed, Jobs
from headrace.platform.jobs.spool import JobFolder
from headrace.platform.jobs.transform_run import TransformRun
from headrace.platform.jobs.workers import REPLICA_POLL_S, JobWorkers
from headrace.serving.http.client import ClientRequest, send_once
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge

_PARAMETERS_TIMEOUT_S: Final = 5.0
_MAX_ASKED: Final = 3
_MAX_PARAMETERS_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRunner:
    service: InvocationService
    objects: Objects | None

    async def run(self, job: AnyJob, folder: Path, jobs: Jobs) -> str:
        if self.objects is None:
            raise JobFailed("ClientError: batch transform needs an object storage; none is configured.")
        workers = JobWorkers(store=jobs.store, service=self.service, name=job_endpoint_name(job.name))
        await workers.start(job_endpoint_spec(job))
        progress = JobFolder(jobs.files, folder)
        inputs = await _inputs(job, progress, self.objects)
        await workers.until_serving()
        started_s = jobs.clock() if job.status.started_s is None else job.status.started_s
        parameters = await _parameters(job, workers, jobs, started_s)
        run = TransformRun(
            endpoint=workers.name,
            members=job.spec.members,
            parameters=parameters,
            started_s=started_s,
            service=self.service,
            objects=self.objects,
            folder=progress,
        )
        failure = await run.run(inputs)
        ended = await asyncio.to_thread(progress.ended)
        for uri, manifest in manifests(job.name, job.spec.members, inputs, ended, started_s=started_s).items():
            await retry_unavailable(partial(self.objects.put, uri, manifest, content_type=MANIFEST_TYPE))
        return failure


async def _inputs(job: AnyJob, folder: JobFolder, objects: Objects) -> list[InputFile]:
    """Return the inputs, which are listed once: an object that comes later is no input."""
    inputs = await asyncio.to_thread(folder.read_inputs)
    if inputs is None:
        inputs = await find_inputs(job.spec.members, objects)
        await asyncio.to_thread(folder.write_inputs, inputs)
    return inputs


async def _parameters(job: AnyJob, workers: JobWorkers, jobs: Jobs, started_s: float) -> ExecutionParameters:
    """Return the parameters of a job, which are recorded before its first request."""
    recorded: ExecutionParameters | None = job.status.parameters
    if recorded is not None:
        return recorded
    members = job.spec.members
    answer = await _ask(workers) if asks_container(members) else None
    parameters = resolve_parameters(members, answer)
    await jobs.update(job, lambda status: replace(status, parameters=parameters, started_s=started_s))
    get_logger().info(
        "transform.started", job=job.name, max_concurrent=parameters.max_concurrent, multi=parameters.is_multi_record
    )
    return parameters


async def _ask(workers: JobWorkers) -> Any:
    """Return what a worker answers to `/execution-parameters`; None if it has no such page, or does not answer."""
    for _ in range(_MAX_ASKED):
        replica = await workers.replica()
        headers = (("Authorization", f"Bearer {replica.token}"),) if replica.token else ()
        request = ClientRequest(method="GET", path="/execution-parameters", headers=headers)
        try:
            async with asyncio.timeout(_PARAMETERS_TIMEOUT_S), send_once(replica.url, request) as response:
                page = await response.read(_MAX_PARAMETERS_BYTES)
                return json.loads(page) if response.status == 200 else None
        except (NoResponse, ResponseBroken, TimeoutError):
            await asyncio.sleep(REPLICA_POLL_S)
        except (ResponseTooLarge, ValueError, RecursionError):
            return None
    return None
