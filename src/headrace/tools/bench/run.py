"""Run a load against a server: discover its API, warm it up, run a level, collect records."""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from headrace.core.errors import Unavailable, UserError
from headrace.tools.bench import local_process
from headrace.tools.bench.client import LoadClient
from headrace.tools.bench.dialects import Api, RequestTemplate
from headrace.tools.bench.http1 import CertificateRefused, ConnectionFailed, HttpClient, Truncated
from headrace.tools.bench.measure import RequestRecord
from headrace.tools.bench.workload import (
    Dataset,
    PlannedRequest,
    Question,
    Synthetic,
    WordScale,
    Workload,
    fit_word_scale,
    make_text,
)

OnRecord = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The models and routes that the server reports."""

    models: tuple[str, ...] = ()
    info: dict[str, object] = field(default_factory=dict)
    software: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """The records and CPU times of one level of load."""

    records: tuple[RequestRecord, ...]
    tool_cpu_s: float
    """CPU time of the load tool itself."""
    server_cpu_s: float | None
    """CPU time of the server, if known."""


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


async def run_level(
    http: HttpClient, template: RequestTemplate, workload: Workload, on_record: OnRecord
) -> LevelResult:
    """Run one level of load to its end."""
    server_before_s = await server_cpu_s(http)
    tool_before_s = time.process_time()
    client = LoadClient(http, template)
    records: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        records.append(record)
        on_record(record)

    if workload.arrivals.kind == "closed":
        await _closed_loop(client, workload, keep)
    else:
        await _open_loop(client, workload, keep)
    tool_cpu_s = time.process_time() - tool_before_s
    server_after_s = await server_cpu_s(http)
    known = server_before_s is not None and server_after_s is not None
    return LevelResult(
        records=tuple(sorted(records, key=lambda record: record.index)),
        tool_cpu_s=tool_cpu_s,
        server_cpu_s=(server_after_s or 0) - (server_before_s or 0) if known else None,
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


async def _closed_loop(client: LoadClient, workload: Workload, keep: OnRecord) -> None:
    requests = workload.requests()
    async with asyncio.TaskGroup() as group:
        for _ in range(workload.arrivals.concurrency):
            group.create_task(_one_user(client, requests, workload.duration_s, keep))


async def _one_user(
    client: LoadClient, requests: Iterator[PlannedRequest], duration_s: float | None, keep: OnRecord
) -> None:
    while duration_s is None or client.now_s() < duration_s:
        planned = next(requests, None)
        if planned is None:
            return
        keep(await client.send(planned, due_s=client.now_s()))


async def _open_loop(client: LoadClient, workload: Workload, keep: OnRecord) -> None:
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
