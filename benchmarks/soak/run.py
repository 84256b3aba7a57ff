"""
Soak a platform, or one server, under a mixed load, and tell which of its series grow.

Starts `headrace up` in a folder of its own, deploys the model, and streams, cancels, sends errors, invokes
asynchronously, deploys, scales, uploads and reads until the time is over. Every few seconds it records memory,
descriptors, threads and CPU of each kind of process, and the sizes of files.

    python -m benchmarks.soak.run --minutes 60
    python -m benchmarks.soak.run --minutes 60 --server
    python -m benchmarks.soak.run --minutes 85 --warm-up-minutes 25
    python -m benchmarks.soak.run --minutes 5 --pace 0.5 --output /tmp/soak.json -- --processes 2

Options behind `--` go to `headrace up` or `headrace serve`. Writes `--output` (JSON), and the same name with
`.md` (the table) and `.svg` (the picture). The last line is one JSON object. Exits with 1 if a series grows by
2 % or more after the warm-up, if a request ends in another way than it must, or if a process is left.
"""

import json
import sys
import tempfile
import time
from argparse import Namespace
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
from benchmarks.harness.results import RESULTS, make_parser, tell
from benchmarks.soak.aws import Team
from benchmarks.soak.load import Load
from benchmarks.soak.picture import LIGHT, Picture, svg
from benchmarks.soak.requests import TIMEOUT_S, ModelClient
from benchmarks.soak.series import RULES, WARM_UP_SHARE, Series, as_json, judge, table
from benchmarks.soak.target import Target, left_processes, platform, server

from headrace.tools.bench.environment import describe_environment

_SAMPLES_A_LINE = 6
"""Samples between two lines of progress."""


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="an alias, a folder or a file")
    parser.add_argument("--minutes", type=float, default=60.0, help="duration of the load, the warm-up included")
    parser.add_argument("--warm-up-minutes", type=float, help="the part that is not judged; default: a quarter")
    parser.add_argument("--server", action="store_true", help="soak one model server instead of a platform")
    parser.add_argument("--pace", type=float, default=1.0, help="factor on the rate of all activities")
    parser.add_argument("--every-s", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--seed", type=int, default=0, help="of the pauses and of the requests")
    parser.add_argument("--output", type=Path, help="default: soak.json or soak-server.json in benchmarks/results")
    parser.add_argument("options", nargs="*", help="options of the platform or the server, behind --")
    options = parser.parse_args()
    if options.warm_up_minutes is None:
        options.warm_up_minutes = WARM_UP_SHARE * options.minutes
    if not 0 <= options.warm_up_minutes < options.minutes:
        minutes = f"{options.warm_up_minutes:g}; expected less than --minutes ({options.minutes:g})"
        parser.error(f"--warm-up-minutes is {minutes}.")
    return options


def soak(target: Target, load: Load, options: Namespace) -> None:
    """Run the load, and sample until the time is over."""
    load.start()
    number = 0
    while load.elapsed_s() < 60 * options.minutes:
        target.sample(load.elapsed_s())
        number += 1
        if number % _SAMPLES_A_LINE == 0:
            memory = [series for name, series in target.series.items() if name.endswith(" rss")]
            sizes = ", ".join(f"{series.name} {series.points[-1][1] / 2**20:.0f} MiB" for series in memory)
            note = f"{sum(load.counts.values())} done, {load.num_failures} failed, {sizes}"
            tell(f"{load.elapsed_s() / 60:.1f} of {options.minutes:g} min: {note}")
        time.sleep(max(0.0, number * options.every_s - load.elapsed_s()))
    load.stop()


def soak_platform(options: Namespace, folder: Path) -> tuple[Target, Load]:
    """Soak a platform, and delete what it serves."""
    with platform(folder, options.options) as target, _client(target) as http:
        assert target.key is not None, "a platform for this machine has a key"
        team = Team(http, target.key, options.model)
        team.set_up()
        load = Load(team.activities(), seed=options.seed, pace=options.pace)
        soak(target, load, options)
        team.tear_down()
    return target, load


def soak_server(options: Namespace, folder: Path) -> tuple[Target, Load]:
    with server(folder, options.model, options.options) as target, _client(target) as http:
        client = ModelClient(http=http, model=target.mark, invocations="/invocations")
        load = Load(client.activities(), seed=options.seed, pace=options.pace)
        soak(target, load, options)
    return target, load


def _client(target: Target) -> AbstractContextManager[httpx.Client]:
    headers = {"Authorization": f"Bearer {target.key[1]}"} if target.key is not None else {}
    return httpx.Client(base_url=target.url, headers=headers, timeout=TIMEOUT_S, trust_env=False)


def report(target: Target, load: Load, options: Namespace, *, left: int) -> bool:
    """Write the files and print the table; return whether the soak has succeeded."""
    latencies = [
        Series(name=f"{name} latency", rule=RULES["latency"], points=points)
        for name, points in sorted(load.latencies().items())
    ]
    from_s, to_s = 60 * options.warm_up_minutes, 60 * options.minutes
    findings = [judge(series, from_s=from_s, to_s=to_s) for series in (*target.series.values(), *latencies)]
    growing = [finding.name for finding in findings if finding.is_failure]
    is_good = not growing and not load.num_failures and not left
    summary = {
        "is_good": is_good,
        "growing": growing,
        "activities": dict(sorted(load.counts.items())),
        "failed": load.num_failures,
        "processes_left": left,
    }
    result = {
        "environment": describe_environment(),
        "target": "server" if options.server else "platform",
        "minutes": options.minutes,
        "warm_up_minutes": options.warm_up_minutes,
        "options": options.options,
        **{name: getattr(options, name) for name in ("model", "pace", "seed", "every_s")},
        "summary": summary,
        "failures": load.failures,
        "series": {finding.name: as_json(finding) for finding in findings},
        "samples": {
            name: [(round(time_s, 1), round(value, 3)) for time_s, value in series.points]
            for name, series in target.series.items()
        },
    }
    page = table(findings, hours=(options.minutes - options.warm_up_minutes) / 60)
    title = f"# {options.minutes:g} minutes of mixed load on one {result['target']}"
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, separators=(",", ":")) + "\n")  # thousands of samples
    options.output.with_suffix(".md").write_text(f"{title}\n\n{page}\n")
    options.output.with_suffix(".svg").write_text(svg(Picture.of(result), LIGHT))
    print(page)
    print("\n".join(load.failures))
    print(json.dumps({"output": str(options.output), **summary}))
    return is_good


def main() -> int:
    options = parse_arguments()
    options.output = options.output or RESULTS / ("soak-server.json" if options.server else "soak.json")
    run = soak_server if options.server else soak_platform
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        target, load = run(options, Path(folder))
        left = left_processes(target)
    return 0 if report(target, load, options, left=left) else 1


if __name__ == "__main__":
    sys.exit(main())
