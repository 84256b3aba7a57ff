"""The runner of AI benchmark jobs: `headrace bench` on an endpoint of this platform, as any client would send it."""

import asyncio
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from headrace import __version__
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.model.jobs import AnyJob
from headrace.platform.control.model.workload_spec import WorkloadInvalid, aiperf_profile, dataset_lines
from headrace.platform.gateway.objects import retry_unavailable
from headrace.platform.jobs.child import JobLog, run_child
from headrace.platform.jobs.inputs import Objects, read_samples
from headrace.platform.jobs.loop import JobFailed, Jobs
from headrace.platform.jobs.model_files import fetch_prefix
from headrace.platform.state.records import Json

ARCHIVE: Final = "output/output.tar.gz"
"""Below the output of the job. Source: `sagemaker.serve.ai_inference_recommender.result` of the SDK 3.x."""
PROFILE: Final = "profile_export_aiperf.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRunner:
    objects: Objects | None
    address: Callable[[], str]
    """Returns the URL of this platform."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables by which a command finds the access key of this platform."""
    logs: PlatformLogs | None = None

    async def run(self, job: AnyJob, folder: Path, jobs: Jobs) -> str:
        if self.objects is None:
            raise JobFailed("ClientError: an AI benchmark job needs an object storage; none is configured.")
        plan: Json = job.spec.resolved
        log = await asyncio.to_thread(JobLog.open, job, folder, self.logs)
        started_s = job.status.started_s or jobs.clock()
        await jobs.update(job, lambda status: replace(status, started_s=started_s))
        report = folder / "report.json"
        if not report.exists():
            options = [*plan["arguments"], *await _dataset(plan["dataset"], folder, self.objects)]
            url = f"{self.address()}{plan['path']}"
            log.write(f"Running headrace bench {url} {' '.join(options)}.")
            await run_child(
                *("bench", url, *options, "--output", str(report)),
                marker=report,
                log=log,
                environment=self.environment,
            )
        found: Json = json.loads(await asyncio.to_thread(report.read_bytes))
        (level,) = found["levels"]
        if not level["num_succeeded"]:
            raise JobFailed(f"ClientError: no request was answered: {'; '.join(level['first_failures'])}")
        archive = _archive({PROFILE: aiperf_profile(found, version=__version__), "headrace_bench.json": found})
        target = f"{plan['output']}/{ARCHIVE}"
        await retry_unavailable(partial(self.objects.put, target, archive, content_type="application/gzip"))
        log.write(f"Stored the results in {target}.")
        return ""


async def _dataset(uri: str, folder: Path, objects: Objects) -> list[str]:
    """Fetch a data set of JSON lines; return the option that names it."""
    if not uri:
        return []
    files = folder / "dataset"
    await fetch_prefix(objects, uri, files)

    def gather() -> Path:
        found = read_samples(files, "*.jsonl", uri)
        gathered = folder / "dataset.jsonl"
        gathered.write_text("\n".join(dataset_lines(content.decode("utf-8")) for content in found), encoding="utf-8")
        return gathered

    try:
        return ["--dataset", str(await asyncio.to_thread(gather))]
    except (WorkloadInvalid, UnicodeDecodeError) as error:
        raise JobFailed(f"ClientError: the data set under {uri}: {error}") from None


def _archive(files: Mapping[str, Json]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, value in files.items():
            content = json.dumps(value, indent=1).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
