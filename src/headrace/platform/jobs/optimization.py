"""
The runner of optimization jobs: fetch the model, quantize it in a child process, store the result, pack its weights.

A job that goes on after a restart finds the files that were fetched, and the quantized model if it was complete. To
pack the weights, the result is served for a moment as an endpoint would serve it: both then find the same files in the
caches of this machine.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.model.jobs import OPTIMIZATION_JOB, AnyJob, job_endpoint_name
from headrace.platform.control.model.transform_job import workers_spec
from headrace.platform.gateway.service import InvocationService
from headrace.platform.jobs.child import BACKGROUND, JobLog, run_child
from headrace.platform.jobs.inputs import Objects
from headrace.platform.jobs.loop import JobFailed, Jobs
from headrace.platform.jobs.model_files import fetch_prefix, store_folder
from headrace.platform.jobs.workers import JobWorkers


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationRunner:
    service: InvocationService
    objects: Objects | None
    logs: PlatformLogs | None = None

    async def run(self, job: AnyJob, folder: Path, jobs: Jobs) -> str:
        if self.objects is None:
            raise JobFailed("ClientError: an optimization job needs an object storage; none is configured.")
        plan: dict[str, Any] = job.spec.resolved
        log = await asyncio.to_thread(JobLog.open, job, folder, self.logs)
        started_s = job.status.started_s or jobs.clock()
        await jobs.update(job, lambda status: replace(status, started_s=started_s))
        try:
            async with asyncio.timeout(max(0.0, started_s + plan["max_runtime_s"] - jobs.clock())):
                await _optimize(job, folder, self.objects, log)
                if plan["packs"]:
                    log.write("Packing the weights for the CPU of this machine, by serving the model for a moment.")
                    name = job_endpoint_name(job.name, OPTIMIZATION_JOB)
                    await _serve_once(job, JobWorkers(store=jobs.store, service=self.service, name=name))
        except TimeoutError:
            raise JobFailed(f"ClientError: MaxRuntimeInSeconds is over: {plan['max_runtime_s']} s.") from None
        return ""


async def _optimize(job: AnyJob, folder: Path, objects: Objects, log: JobLog) -> None:
    plan: dict[str, Any] = job.spec.resolved
    source: str = plan["source"]
    if source.startswith("s3://"):
        count, num_bytes = await fetch_prefix(objects, source, folder / "source")
        log.write(f"Fetched {count} files with {num_bytes} bytes from {source}.")
        source = str(folder / "source")
    result = Path(source)
    if plan["bits"] is not None:
        result = folder / "model"
        if not result.exists():
            alpha = ("--alpha", plan["alpha"]) if plan["alpha"] else ()
            options = ("--bits", str(plan["bits"]), *alpha)
            log.write(f"Running headrace quantize {' '.join(options)}.")
            await run_child("quantize", source, str(result), *options, marker=result, log=log, command=BACKGROUND)
    target = job.spec.members["OutputConfig"]["S3OutputLocation"]
    count = await store_folder(objects, result, target)
    log.write(f"Stored {count} files below {target}.")


async def _serve_once(job: AnyJob, workers: JobWorkers) -> None:
    """Start a worker of the result, wait until it serves, and remove it. Raises `JobFailed`: it does not start."""
    members, plan = job.spec.members, job.spec.resolved
    uri = members["OutputConfig"]["S3OutputLocation"]
    source = {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {
        "Image": plan["image"],
        "ModelDataSource": {"S3DataSource": source},
        "Environment": plan["environment"],
    }
    model, kind = {"PrimaryContainer": container}, members["DeploymentInstanceType"]
    await workers.start(workers_spec(job.name, "optimised", model, instance_type=kind))
    await workers.until_serving()
    await workers.remove()
