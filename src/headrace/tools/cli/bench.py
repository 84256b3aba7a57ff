"""`headrace bench`: measure a running server under load."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from headrace.core.errors import SettingsError
from headrace.tools.bench.dialects import Api
from headrace.tools.bench.measure import Objectives, RequestRecord, parse_objectives
from headrace.tools.bench.report import print_report
from headrace.tools.bench.run import BenchOptions, OnRecord, run_benchmark
from headrace.tools.bench.workload import Arrivals, Dataset, Synthetic, parse_dataset, parse_lengths
from headrace.tools.cli.api_key import api_key_for, ca_bundle_for
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import ABOVE_0, AT_LEAST_0, AT_LEAST_1
from headrace.tools.cli.progress import watching
from headrace.tools.cli.sampling_options import sampling_option

EXAMPLES = """
headrace bench http://127.0.0.1:8080          one user at a time, for 20 s
headrace bench URL -c 1,8,32                  1, 8 and 32 users, a column each
headrace bench URL --rate 2,4 --duration 60   random arrivals, 2 or 4 per s
headrace bench URL -c 8 --prompt-tokens 64-1024 --output-tokens ~200
headrace bench URL --dataset chats.jsonl --slo ttft:500,tpot:50
headrace bench URL -c 8 --json | tail -1 | jq '.levels[0].output_tokens_per_s'
"""


_GROUPS = {
    "Load": ("concurrency", "rate", "arrivals", "num_requests", "duration_s", "warmup_requests"),
    "Requests": (
        *("prompt_tokens", "output_tokens", "shared_prefix_tokens", "dataset", "temperature", "ignore_eos", "seed"),
        "timeout_s",
    ),
    "Server": ("api", "model", "api_key"),
    "Report": ("slo", "price_per_hour", "as_json", "output"),
}
_COMMON = (
    *("concurrency", "rate", "num_requests", "duration_s", "prompt_tokens", "output_tokens", "dataset"),
    *("model", "api_key", "slo", "as_json", "output"),
)


@click.command(cls=HelpfulCommand, examples=EXAMPLES, groups=_GROUPS, common=_COMMON)
@click.argument("url")
@click.option(
    "--concurrency",
    "-c",
    metavar="N[,N…]",
    help="Closed loop: N users; each sends a request when its previous one has ended.  [default: 1]",
)
@click.option("--rate", metavar="R[,R…]", help="Open loop: R requests a second, however many are in flight.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    help="Arrivals with --rate: random, as from independent users, or evenly spaced.",
)
@click.option("--requests", "num_requests", type=AT_LEAST_1, help="Number of requests at each level.")
@click.option(
    "--duration",
    "duration_s",
    type=ABOVE_0,
    help="Seconds for which each level sends.  [default: 20, without --requests]",
)
@click.option(
    "--warmup", "warmup_requests", type=AT_LEAST_0, default=2, help="Warm-up requests before each level, not counted."
)
@click.option(
    "--prompt-tokens",
    default="128",
    metavar="LENGTH",
    help="Prompt length: 128, 64-256 (uniform) or ~200 (exponential, mean 200).",
)
@click.option("--output-tokens", default="128", metavar="LENGTH", help="Maximum answer length, in the same form.")
@click.option(
    "--shared-prefix-tokens", type=AT_LEAST_0, default=0, help="Number of leading tokens that all prompts share."
)
@click.option(
    "--dataset",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='File of JSON lines with "prompt" or "messages", optional "max_tokens", instead of random words.',
)
@click.option(
    "--api", type=click.Choice([api.value for api in Api]), help="API to use.  [default: the first that the server has]"
)
@click.option("--model", metavar="NAME", help="Model to request.  [default: the server's first]")
@click.option(
    "--api-key", envvar="HEADRACE_API_KEY", metavar="KEY", help="API key of the server.  [env: HEADRACE_API_KEY]"
)
@sampling_option("--temperature -t", default=0.0, note="0")
@click.option(
    "--ignore-eos/--respect-eos",
    default=None,
    help="Generate to the full length, or stop at end-of-text.  [default: ignore; respect with --dataset]",
)
@click.option("--seed", type=int, default=0, help="Seed of the load; the same seed gives the same load.")
@click.option(
    "--timeout-s",
    type=ABOVE_0,
    default=600.0,
    help="Seconds after which an unfinished answer counts as failed.",
)
@click.option(
    "--slo",
    metavar="NAME:MS,…",
    help="Report the share of answers within these limits: ttft, tpot, e2e in milliseconds.",
)
@click.option(
    "--price-per-hour",
    type=click.FloatRange(min=0),
    help="Hourly price of the machine, to report the cost of 1,000 tokens.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on the last line of stdout.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Also write the result as JSON to a file."
)
def bench(*, as_json: bool, output: Path | None, **values: Any) -> None:
    """
    Send load to the server at URL and measure what its clients see.

    It reports time to first token, inter-token latency, tokens per second and failures by kind. It works with any
    server that streams by the API of OpenAI, TGI or SageMaker. See docs/bench.md for the method and its limits.
    """
    import uvloop
    from rich.console import Console

    options = _options(values)
    with _showing(options) as on_record, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(run_benchmark(options, on_record))
    print_report(report, Console(width=None if sys.stdout.isatty() else 120))
    value = report.as_json()
    if output is not None:
        output.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(value, ensure_ascii=False))


def _options(values: dict[str, Any]) -> BenchOptions:
    changed: dict[str, Any] = {
        "levels": _levels(values["concurrency"], values["rate"], values["arrivals"]),
        "source": _source(values),
        "api": None if values["api"] is None else Api(values["api"]),
        "api_key": api_key_for(values["url"], values["api_key"], os.environ),
        "ca_bundle": ca_bundle_for(values["url"], os.environ),
        "objectives": parse_objectives(values["slo"]) if values["slo"] else Objectives(),
    }
    if values["duration_s"] is None and values["num_requests"] is None:
        changed["duration_s"] = 20.0
    if values["ignore_eos"] is None:
        changed["ignore_eos"] = values["dataset"] is None
    names = {field.name for field in fields(BenchOptions)}
    return BenchOptions(**{name: value for name, value in values.items() if name in names} | changed)


def _levels(concurrency: str | None, rate: str | None, arrivals: Any) -> tuple[Arrivals, ...]:
    if concurrency is not None and rate is not None:
        raise SettingsError("Give either --concurrency (closed loop) or --rate (open loop), not both.")
    try:
        if rate is not None:
            return tuple(Arrivals(kind=arrivals, rate_per_s=_above_zero(float(part))) for part in rate.split(","))
        users = (concurrency or "1").split(",")
        return tuple(Arrivals(kind="closed", concurrency=int(_above_zero(int(part)))) for part in users)
    except ValueError:
        raise SettingsError(
            "--concurrency expects whole numbers of at least 1, such as 1,8,32; --rate numbers above 0, such as 0.5,2."
        ) from None


def _above_zero(number: float) -> float:
    if not 0 < number < 1e6:
        raise ValueError(number)
    return number


def _source(values: dict[str, Any]) -> Synthetic | Dataset:
    output_tokens = parse_lengths(values["output_tokens"])
    if values["dataset"] is None:
        return Synthetic(
            prompt_tokens=parse_lengths(values["prompt_tokens"]),
            output_tokens=output_tokens,
            shared_prefix_tokens=values["shared_prefix_tokens"],
        )
    with values["dataset"].open(encoding="utf-8") as lines:
        return parse_dataset(lines, output_tokens)


@contextmanager
def _showing(options: BenchOptions) -> Iterator[OnRecord]:
    counts: dict[str, tuple[int, int, int]] = {}
    shown = ["querying the server"]
    total = "" if options.num_requests is None else f" of {options.num_requests}"

    def on_record(label: str, record: RequestRecord) -> None:
        num_done, num_failed, num_tokens = counts.get(label, (0, 0, 0))
        num_failed += record.failure is not None
        counts[label] = (num_done + 1, num_failed, num_tokens + record.num_output_tokens)
        failed = f", {num_failed} failed" if num_failed else ""
        speed = counts[label][2] / max(record.end_s, 1e-9)
        shown[0] = f"{label}: {num_done + 1}{total} answers{failed}, {speed:,.0f} output tokens/s"

    with watching("bench", lambda: shown[0], is_counter=True):
        yield on_record
