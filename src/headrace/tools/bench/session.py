"""A whole benchmark: discover the server, calibrate, warm up, run each level of load, report."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from headrace.core.errors import SettingsError
from headrace.tools.bench.client import LoadClient
from headrace.tools.bench.dialects import Api, RequestTemplate
from headrace.tools.bench.environment import describe_environment
from headrace.tools.bench.http1 import HttpClient
from headrace.tools.bench.measure import Objectives, RequestRecord, summarise
from headrace.tools.bench.report import LevelReport, Report
from headrace.tools.bench.run import ServerFacts, calibrate, choose_api, discover, run_level, warm_up
from headrace.tools.bench.workload import Arrivals, Dataset, Synthetic, Workload

SEED_STEP = 7919
"""Seed difference between the levels of a sweep, so that no level finds another's prompts in the prefix cache."""

OnRecord = Callable[[str, RequestRecord], None]
"""Called after each request with the label of its level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of a benchmark; see `headrace bench --help`."""

    url: str
    levels: tuple[Arrivals, ...]
    source: Synthetic | Dataset
    api: Api | None = None
    model: str | None = None
    api_key: str | None = None
    ca_bundle: str | None = None
    """Certificates to trust besides the system's."""
    num_requests: int | None = None
    duration_s: float | None = None
    warmup_requests: int = 2
    seed: int = 0
    temperature: float = 0.0
    ignore_eos: bool = True
    timeout_s: float = 600.0
    objectives: Objectives = field(default_factory=Objectives)
    price_per_hour: float | None = None


async def run_benchmark(options: BenchOptions, on_record: OnRecord) -> Report:
    """
    Run every level in sequence against one server.

    Raises:
        Unavailable: no server answers at the URL.
        UserError: the server refuses a short request, or has no such model.
    """
    headers = {"authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    http = HttpClient(options.url, headers=headers, timeout_s=options.timeout_s, ca_bundle=options.ca_bundle)
    try:
        facts = await discover(http)
        template = _asking(options, facts)
        probe = LoadClient(http, template)
        scale = await calibrate(probe)
        source = replace(options.source, scale=scale) if isinstance(options.source, Synthetic) else options.source
        levels = []
        for number, arrivals in enumerate(options.levels):
            workload = Workload(
                arrivals=arrivals,
                source=source,
                seed=options.seed + number * SEED_STEP,
                num_requests=options.num_requests,
                duration_s=options.duration_s,
            )
            await warm_up(probe, workload, options.warmup_requests)
            levels.append(await _run_level(http, template, workload, options, on_record))
    finally:
        await http.close()
    return Report(
        url=options.url,
        template=template,
        facts=facts,
        settings=_settings(options),
        environment=describe_environment(),
        levels=tuple(levels),
    )


async def _run_level(
    http: HttpClient, template: RequestTemplate, workload: Workload, options: BenchOptions, on_record: OnRecord
) -> LevelReport:
    label = workload.arrivals.label
    result = await run_level(http, template, workload, lambda record: on_record(label, record))
    messages = dict.fromkeys(record.message for record in result.records if record.failure is not None)
    return LevelReport(
        label=label,
        summary=summarise(result.records, objectives=options.objectives, price_per_hour=options.price_per_hour),
        tool_cpu_s=result.tool_cpu_s,
        server_cpu_s=result.server_cpu_s,
        first_failures=tuple(messages)[:3],
    )


def _asking(options: BenchOptions, facts: ServerFacts) -> RequestTemplate:
    if options.model is not None and facts.models and options.model not in facts.models:
        raise SettingsError(f"The server has no model '{options.model}'; it serves {', '.join(facts.models)}.")
    api = options.api or choose_api(facts, options.source)
    model = options.model or next(iter(facts.models), str(facts.info.get("model_id", "")))
    return RequestTemplate(api=api, model=model, temperature=options.temperature, ignore_eos=options.ignore_eos)


def _settings(options: BenchOptions) -> dict[str, object]:
    """Return the settings that reproduce the run."""
    source: dict[str, object] = (
        {"dataset_rows": len(options.source.rows)}
        if isinstance(options.source, Dataset)
        else {
            "prompt_tokens": str(options.source.prompt_tokens),
            "shared_prefix_tokens": options.source.shared_prefix_tokens,
        }
    )
    return {
        **source,
        "output_tokens": str(options.source.output_tokens),
        "num_requests": options.num_requests,
        "duration_s": options.duration_s,
        "warmup_requests": options.warmup_requests,
        "seed": options.seed,
        "timeout_s": options.timeout_s,
        "objectives": asdict(options.objectives),
        "price_per_hour": options.price_per_hour,
    }
