"""
The runner of optimization jobs: fetch the model, quantize it and pack its weights in child processes, store the result.

A job that goes on after a restart finds the files that were fetched, and the quantized model if it was complete.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.model.jobs import AnyJob
from headrace.platform.jobs.child import JobLog, run_child
from headrace.platform.jobs.inputs import Objects
from headrace.platform.jobs.loop import JobFailed, Jobs
from headrace.platform.jobs.model_files import fetch_prefix, store_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationRunner:
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
            await run_child("quantize", source, str(result), *options, marker=result, log=log)
    if plan["packs"]:
        log.write("Packing the weights for the CPU of this machine, by loading the model once.")
        await run_child("generate", str(result), "x", "--completion", "--max-new-tokens", "1", marker=result, log=log)
    target = job.spec.members["OutputConfig"]["S3OutputLocation"]
    count = await store_folder(objects, result, target)
    log.write(f"Stored {count} files below {target}.")
