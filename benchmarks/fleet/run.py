"""
Estimate 1,000 nodes and 100,000 requests a second for the gateway: sums, measurements, and a simulation.

    python -m benchmarks.fleet.run

Writes `--output` (JSON) and the same name with `.md`. The last line is one JSON object.
"""

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from benchmarks.fleet.balance import RULES, Fleet, Rule, simulate
from benchmarks.harness.results import RESULTS, make_parser, table, write_result

from headrace.platform.gateway.routing import RoutingQuery, choose
from headrace.platform.state.routes import Fleet as RouteFleet
from headrace.platform.state.routes import Replica, Route, VariantRoute
from headrace.tools.bench.environment import describe_environment

NODES, REQUESTS_PER_S, PIECES, SLOTS, LOAD = 1000, 100_000, 128, 8, 0.8
HOST_REPLICAS, HOST_GATEWAYS = 4, 4
STRATEGIES = ("RANDOM", "LEAST_OUTSTANDING_REQUESTS")
HOST_RULES: tuple[Rule, ...] = ("random", "own least", "shared least", "true least")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "fleet.json")
    parser.add_argument("--requests", type=int, default=300_000)
    options = parser.parse_args()
    results = {
        "environment": describe_environment(),
        "routing": [measure_routing(count) for count in (10, 100, NODES)],
        "cores": gateway_cores(json.loads((RESULTS / "gateway.json").read_text(encoding="utf-8"))["summary"]),
        "balance": balance(options.requests),
        "one_host": one_host(),
    }
    write_result(options.output, results, tables(results))
    print(tables(results))
    print(json.dumps({"output": str(options.output), "cores": results["cores"]}))


def measure_routing(num_replicas: int) -> dict[str, Any]:
    """Measure an endpoint with this number of replicas: bytes of its route, decoding it, choosing by each strategy."""
    urls = [f"http://10.0.{i // 256}.{i % 256}:8080" for i in range(num_replicas)]
    replicas = tuple(Replica(worker=f"worker-{i:06d}", url=url) for i, url in enumerate(urls))
    rng = random.Random(0)
    loads = {replica.worker: rng.randrange(SLOTS) for replica in replicas}
    found: dict[str, Any] = {"replicas": num_replicas}
    for strategy in STRATEGIES:
        fleet = RouteFleet(generation=1, share=1.0, replicas=replicas)
        variant = VariantRoute(name="v", weight=1.0, fleets=(fleet,), strategy=strategy)
        route = Route(
            endpoint="e", endpoint_arn="a", endpoint_uid="u", created_s=0.0, status="InService", variants=(variant,)
        )
        found[f"choose_us {strategy}"] = timed_us(partial(choose, route, RoutingQuery(), loads, rng.random))
    raw = msgspec.json.encode(route)
    found["route_bytes"] = len(raw)
    found["read_route_us"] = timed_us(lambda: msgspec.convert(msgspec.json.decode(raw), Route))
    return found


def timed_us(call: Callable[[], object], *, budget_s: float = 0.3) -> float:
    """Return the best of five means, microseconds."""
    begun = perf_counter()
    call()
    count = max(1, int(budget_s / 5 / max(perf_counter() - begun, 1e-7)))
    means = []
    for _ in range(5):
        begun = perf_counter()
        for _ in range(count):
            call()
        means.append((perf_counter() - begun) / count)
    return min(means) * 1e6


def gateway_cores(summary: list[dict[str, Any]]) -> dict[str, float]:
    """Return the cores that the gateways need, from the CPU time of a streamed piece with 32 streams."""
    costs = {row["api"]: row["gateway_cpu_us_a_piece"] for row in summary if row["streams"] == 32}
    return {api: cost * 1e-6 * PIECES * REQUESTS_PER_S for api, cost in costs.items()}


def balance(num_requests: int) -> list[dict[str, Any]]:
    """Return the waits for a slot, for one gateway and for many."""
    rows = []
    for gateways in (1, 16, 512):
        fleet = Fleet(
            replicas=NODES,
            gateways=gateways,
            slots=SLOTS,
            service_s=LOAD * NODES * SLOTS / REQUESTS_PER_S,
            requests_per_s=REQUESTS_PER_S,
        )
        for rule in RULES:
            if rule == "shared least" or (gateways > 1 and not rule.startswith("own")):
                continue  # for one host, see `one_host`; or it does not depend on the sender
            waits = simulate(fleet, rule, num_requests=num_requests, seed=1)
            rows.append({"gateways": gateways, "rule": rule, "service_s": fleet.service_s, **asdict(waits)})
    return rows


def one_host(num_requests: int = 20_000) -> list[dict[str, Any]]:
    """Return the waits behind the gateways of one host, which report their requests to each other."""
    rows = []
    for service_s in (0.05, 0.2, 1.0, 5.0):
        rate = LOAD * HOST_REPLICAS * SLOTS / service_s
        fleet = Fleet(
            replicas=HOST_REPLICAS, gateways=HOST_GATEWAYS, slots=SLOTS, service_s=service_s, requests_per_s=rate
        )
        for rule in HOST_RULES:
            waits = simulate(fleet, rule, num_requests=num_requests, seed=1)
            rows.append({"rule": rule, "service_s": service_s, **asdict(waits)})
    return rows


def tables(results: dict[str, Any]) -> str:
    routing = [
        [
            *(str(row["replicas"]), f"{row['route_bytes']:,}", f"{row['read_route_us']:,.0f}"),
            *(f"{row[f'choose_us {strategy}']:,.1f}" for strategy in STRATEGIES),
        ]
        for row in results["routing"]
    ]
    balanced = [
        [str(row["gateways"]), row["rule"], f"{row['mean_s'] * 1e3:.2f}", f"{row['p99_s'] * 1e3:.1f}"]
        for row in results["balance"]
    ]
    shares: dict[float, list[str]] = {}
    for row in results["one_host"]:
        shares.setdefault(row["service_s"], []).append(f"{row['mean_s'] / row['service_s']:.0%}")
    header = ("replicas", "route, bytes", "read it, µs", "choose at random, µs", "choose the least loaded, µs")
    parts = (
        "# A thousand nodes, on paper and simulated",
        table(header, routing),
        table(("API", "gateway cores"), [[api, f"{cores:,.0f}"] for api, cores in results["cores"].items()]),
        table(("gateways", "rule", "mean wait, ms", "p99 wait, ms"), balanced),
        f"{HOST_GATEWAYS} gateways, {HOST_REPLICAS} replicas, mean wait as a share of the answer's time:",
        table(("answer", *HOST_RULES), [[f"{service_s:g} s", *means] for service_s, means in shares.items()]),
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
