"""A benchmark of one server: discover its API, calibrate, warm it up, run each level of load, report."""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from headrace.core.errors import SettingsError, Unavailable, UserError
from headrace.tools.bench import local_process
from headrace.tools.bench.client import LoadClient
from headrace.tools.bench.dialects import Api, RequestTemplate
from headrace.tools.bench.environment import describe_environment
from headrace.tools.bench.http1 import CertificateRefused, ConnectionFailed, HttpClient, Truncated
from headrace.tools.bench.measure import Objectives, RequestRecord, summarise
from headrace.tools.bench.report import LevelReport, Report, ServerFacts
from headrace.tools.bench.workload import (
    Arrivals,
    Dataset,
    PlannedRequest,
    Question,
    Synthetic,
    WordScale,
    Workload,
    fit_word_scale,
    make_text,
)

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
        template = _template(options, facts)
        probe = LoadClient(http, template)
        # Prompts are words; two short requests tell how many tokens a word is on this server.
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


async def discover(http: HttpClient) -> ServerFacts:
    """
    Query `/v1/models` and `/info`; a server may lack both.

    Raises:
        Unavailable: no server answers.
    """
    try:
        models = await _get_json(http, "/v1/models")
        info = await _get_json(http, "/info")
        version = await _get_json(http, "/version")
    except CertificateRefused as error:
        raise Unavailable(str(error)) from error
    except (ConnectionFailed, Truncated, TimeoutError) as error:
        raise Unavailable(f"No server answers: {error}. Is it running, and is the URL right?") from error
    rows = models.get("data")
    names = tuple(str(row["id"]) for row in rows if "id" in row) if isinstance(rows, list) else ()
    return ServerFacts(models=names, info=info, software=str(version.get("version", "")))


def choose_api(facts: ServerFacts, source: Synthetic | Dataset) -> Api:
    """Return the default dialect for a server: OpenAI if it is served, else TGI, else SageMaker."""
    if facts.models:
        has_messages = isinstance(source, Dataset) and any(question.messages for question, _ in source.rows)
        return Api.CHAT if has_messages else Api.COMPLETIONS
    return Api.TGI if "model_id" in facts.info else Api.SAGEMAKER


async def calibrate(client: LoadClient) -> WordScale:
    """
    Measure the tokens per word with two short requests whose prompt the server counts; they warm it up too.

    For a server that reports no counts a word is one token.

    Raises:
        UserError: the server refuses these requests, so nothing can be measured.
    """
    counts: list[tuple[int, int]] = []
    for num_words in (32, 96):
        planned = PlannedRequest(
            index=-1, arrival_s=0, question=Question(text=make_text(num_words, random.Random(num_words))), max_tokens=2
        )
        record = await client.send(planned, due_s=client.now_s())
        if record.failure is not None:
            raise UserError(f"The server refused a short request ({record.failure}): {record.message}")
        if record.prompt_tokens is None:
            return WordScale()
        counts.append((num_words, record.prompt_tokens))
    return fit_word_scale(*counts)


async def _run_level(
    http: HttpClient, template: RequestTemplate, workload: Workload, options: BenchOptions, on_record: OnRecord
) -> LevelReport:
    """Run one level of load to its end."""
    label = workload.arrivals.label
    server_before_s = await server_cpu_s(http)
    tool_before_s = time.process_time()
    client = LoadClient(http, template)
    records: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        records.append(record)
        on_record(label, record)

    await (_closed_loop if workload.arrivals.kind == "closed" else _open_loop)(client, workload, keep)
    tool_cpu_s = time.process_time() - tool_before_s
    server_after_s = await server_cpu_s(http)
    records.sort(key=lambda record: record.index)
    messages = dict.fromkeys(record.message for record in records if record.failure is not None)
    is_known = server_before_s is not None and server_after_s is not None
    return LevelReport(
        label=label,
        summary=summarise(records, objectives=options.objectives, price_per_hour=options.price_per_hour),
        tool_cpu_s=tool_cpu_s,
        server_cpu_s=(server_after_s or 0) - (server_before_s or 0) if is_known else None,
        first_failures=tuple(messages)[:3],
    )


async def warm_up(client: LoadClient, workload: Workload, num_requests: int) -> None:
    """Send a few requests of the same kind with another seed, and discard their records."""
    other = replace(workload, seed=workload.seed + 1_000_003, num_requests=num_requests, duration_s=None)
    await asyncio.gather(*(client.send(planned, due_s=client.now_s()) for planned in other.requests()))


async def server_cpu_s(http: HttpClient) -> float | None:
    """Return the CPU time of the server: of its local process, else from its Prometheus metrics, else None."""
    if http.is_loopback and (seen_s := local_process.server_cpu_s(http.port)) is not None:
        return seen_s
    try:
        exchange = await http.fetch("GET", "/metrics")
    except (ConnectionFailed, Truncated, TimeoutError):
        return None
    found = re.search(rb"^process_cpu_seconds_total(?:\{[^}]*\})? (\S+)", exchange.content(), re.MULTILINE)
    return float(found[1]) if exchange.status == 200 and found else None


async def _closed_loop(client: LoadClient, workload: Workload, keep: Callable[[RequestRecord], None]) -> None:
    requests = workload.requests()

    async def user() -> None:
        while workload.duration_s is None or client.now_s() < workload.duration_s:
            planned = next(requests, None)
            if planned is None:
                return
            keep(await client.send(planned, due_s=client.now_s()))

    async with asyncio.TaskGroup() as group:
        for _ in range(workload.arrivals.concurrency):
            group.create_task(user())


async def _open_loop(client: LoadClient, workload: Workload, keep: Callable[[RequestRecord], None]) -> None:
    async def send(planned: PlannedRequest) -> None:
        keep(await client.send(planned, due_s=planned.arrival_s))

    async with asyncio.TaskGroup() as group:
        for planned in workload.requests():
            await asyncio.sleep(planned.arrival_s - client.now_s())
            group.create_task(send(planned))


async def _get_json(http: HttpClient, path: str) -> dict[str, object]:
    exchange = await http.fetch("GET", path)
    try:
        value = json.loads(exchange.content()) if exchange.status == 200 else {}
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}


def _template(options: BenchOptions, facts: ServerFacts) -> RequestTemplate:
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
