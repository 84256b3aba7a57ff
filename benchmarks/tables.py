"""Tables and ratios of the docs, computed from the stored results; `scripts/charts.py` writes the tables."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks.cpu_engines.measure import Sample
from benchmarks.cpu_serving.report import Medians, medians
from benchmarks.gateways import pages
from benchmarks.harness.results import RESULTS, page_table
from benchmarks.soak.series import in_words

ENGINE_CELLS = ("n1", "n8", "n64", "prefill")
CLIENTS = (1, 8, 32, 64)
_ATTACKS_SHOWN = 8
_TARGETS_SHOWN = 5


@cache
def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


# ---- engines without HTTP ----


def engine_speed(name: str, cell: str) -> float:
    """Return the median tokens a second of an engine, over undisturbed runs where there are any."""
    (row,) = [row for row in result("cpu-engines")["rows"] if row["name"] == name]
    samples = [Sample(**sample) for sample in row["samples"] if sample["cell"] == cell]
    calm = [sample for sample in samples if not sample.is_disturbed] or samples
    return statistics.median(sample.tokens_per_s for sample in calm if sample.tokens_per_s)


def formats_speed() -> Iterator[str]:
    """Yield the speed of each format of Headrace."""
    rows = (
        [f"`{dtype}`", *(f"{engine_speed(f'Headrace {dtype}', cell):,.0f}" for cell in ENGINE_CELLS)]
        for dtype in ("bf16", "w8a8", "w4a8")
    )
    return page_table(("format", "1 stream", "8 streams", "64 streams", "long prompts"), rows)


PEERS = {
    "OpenVINO GenAI": ("bf16", "int8", "int4"),
    "llama.cpp": ("Q4_0", "bf16"),
    "vLLM": ("bf16", "W8A8"),
}


def performance_engines() -> Iterator[str]:
    """Yield the speed of Headrace's formats beside the best format of each other engine."""
    ours = [
        [f"Headrace {title}", *(f"{engine_speed(f'Headrace {dtype}', cell):,.0f}" for cell in ENGINE_CELLS)]
        for dtype, title in (("w4a8", "W4A8"), ("w8a8", "W8A8"), ("bf16", "bf16"))
    ]
    peers = [
        [
            f"{engine}, best format",
            *(f"{max(engine_speed(f'{engine} {dtype}', cell) for dtype in dtypes):,.0f}" for cell in ENGINE_CELLS),
        ]
        for engine, dtypes in PEERS.items()
    ]
    header = ("tokens a second, engine alone", "1 sequence", "8", "64", "16 prompts of 1,024, in + out")
    return page_table(header, ours + peers)


# ---- over HTTP ----


def serving() -> Medians:
    return medians(result("cpu-serving")["runs"])


def sizing_users() -> Iterator[str]:
    """Yield what users of one server see, by their number."""
    rows = []
    for clients in CLIENTS:
        figures = serving()[f"c{clients}"]["headrace-w8a8"]
        total = figures["output_tokens_per_s"]
        rows.append(
            [str(clients), f"{total:,.0f}", f"{total / clients:,.0f}", f"{figures['ttft_p50_ms']:,.0f} ms"],
        )
    return page_table(
        ("users at once", "tokens/s in all", "for each user", "first token, median"), rows, text_columns=0
    )


def performance_serving() -> Iterator[str]:
    """Yield speed and first token of each server, and the stall that a long prompt causes."""
    servers = {
        "headrace-w8a8": "Headrace W8A8",
        "headrace-w4a8": "Headrace W4A8",
        "llama-q4_0": "llama-server Q4_0",
        "vllm-bf16": "vLLM bf16",
    }
    cells = serving()

    def shown(cell: str, server: str) -> str:
        figures = cells[cell][server]
        return f"{figures['output_tokens_per_s']:,.0f}, {figures['ttft_p50_ms']:,.0f} ms"

    def stall(server: str) -> str:
        return f"{cells['late'][server]['gap_max_ms']:,.0f} ms" if server in cells["late"] else ""

    rows = ([title, *(shown(f"c{n}", server) for n in CLIENTS[:3]), stall(server)] for server, title in servers.items())
    header = ("over HTTP, streamed", "1 client: tok/s, first token", "8", "32")
    return page_table((*header, "longest stall of 8 streams caused by a 4,000-token prompt"), rows)


def ratios_over_http(server: str, cells: Sequence[str]) -> list[float]:
    """Return the ratios of Headrace's W8A8 and W4A8 to a server, in tokens a second."""
    figures = serving()
    return [
        figures[cell][ours]["output_tokens_per_s"] / figures[cell][server]["output_tokens_per_s"]
        for cell in cells
        for ours in ("headrace-w8a8", "headrace-w4a8")
    ]


def span(values: Sequence[float]) -> str:
    """Return the least and the largest value with one decimal: `1.5 to 1.8`."""
    return f"{min(values):.1f} to {max(values):.1f}"


# ---- quality ----


def signed(percent: float) -> str:
    """Return a change in percent with its sign: `+0.27 %`."""
    return f"{percent:+.2f} %"


def divergence(name: str) -> list[Mapping[str, Any]]:
    """Return the rows of a result of `benchmarks/fidelity/divergence.py`."""
    rows: list[Mapping[str, Any]] = result(name)["results"]
    return rows


def quality_cells(row: Mapping[str, Any]) -> list[str]:
    """Return size, distance and agreement of a format."""
    return [
        f"{row['weights_bytes'] / 2**20:.0f} MiB",
        f"{row['kl_nats']:.4f}",
        f"{row['same_token_percent']:.1f} %",
    ]


def formats_quality() -> Iterator[str]:
    """Yield the quality of the formats that the guide compares."""
    titles = {
        "bf16/bf16": "`bf16`",
        "w8a16/bf16": "`w8a16`",
        "w8a8/bf16": "`w8a8`",
        "w4a16/bf16": "`w4a16` (`auto`)",
        "w4a8/bf16": "`w4a8`",
        "w4a8/int8": "`w4a8`, KV cache int8",
    }
    rows = (
        [titles[row["format"]], *quality_cells(row), signed(row["perplexity_change_percent"])]
        for row in divergence("divergence-smollm2")
        if row["format"] in titles
    )
    return page_table(("SmolLM2-135M (a file of 4 bits)", "size", "KL", "same next token", "perplexity"), rows)


def fidelity(name: str) -> Iterator[str]:
    rows = (
        [
            *row["format"].split("/"),
            *quality_cells(row),
            f"{row['perplexity']:.3f}",
            signed(row["perplexity_change_percent"]),
        ]
        for row in divergence(name)
    )
    header = ("weights", "KV", "size", "KL, nats", "same token", "perplexity", "change")
    return page_table(header, rows, text_columns=2)


# ---- models of known shapes ----


def shape_speed(model: str, cell: str, engine: str) -> float:
    """Return the median tokens a second of an engine with a model of a known shape."""
    turns = result("synthetic")["models"][model]["turns"]
    return statistics.median(turn["tokens_per_s"][cell] for turn in turns if turn["engine"] == engine)


SHAPES = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "mixtral-8x7b")
"""The transformers that the page on speed speaks of."""


def shape_ratios(model: str, cell: str, peer: str) -> float:
    """Return the ratio of Headrace's median speed to that of another engine."""
    return shape_speed(model, cell, "Headrace w4a8") / shape_speed(model, cell, peer)


def synthetic_ratios() -> Iterator[str]:
    """Yield the ratios to the other engines by shape, and the share of the bandwidth that one sequence reaches."""
    columns = [
        (cell, peer) for cell in ("decode 1", "decode 8", "prefill 512") for peer in ("llama.cpp", "ik_llama.cpp")
    ]
    models = result("synthetic")["models"]
    rows = []
    for name, model in models.items():
        ran = {(cell, turn["engine"]) for turn in model["turns"] for cell in turn["tokens_per_s"]}
        ratios = [f"{shape_ratios(name, *column):.2f}" if column in ran else "" for column in columns]
        rows.append([shape_title(name, model), shape_share(model), *ratios])
    header = ("", "decode 1, of the bandwidth", "to llama.cpp", "to ik_llama.cpp", "decode 8", "", "prefill 512", "")
    return page_table(header, rows)


def shape_title(name: str, model: Mapping[str, Any]) -> str:
    """Return the name of a model, with its layers if they are not all."""
    is_whole = model["layers"] == model["of_layers"]
    return name if is_whole else f"{name}, {model['layers']} of {model['of_layers']} layers"


def shape_share(model: Mapping[str, Any]) -> str:
    """Return the share of the bandwidth beside it that decoding one sequence reaches."""
    shares = [turn["bandwidth_share"] for turn in model["turns"] if turn["engine"] == "Headrace w4a8"]
    return f"{statistics.median(shares):.0%}"


# ---- soak ----


def soak(name: str) -> Iterator[str]:
    """Yield what was run, and the series that the verdict depends on; of memory, what is resident."""
    rows, run = [], result(name)
    num_actions, num_failed = sum(run["summary"]["activities"].values()), run["summary"]["failed"]
    yield (
        f"\nThis run took {run['minutes']:g} minutes, of which the first {run['warm_up_minutes']:g} are the warm-up, "
        f"with {num_actions:,} actions of clients; {num_failed} ended in another way than expected."
    )
    for series, found in run["series"].items():
        if found["verdict"] == "watched" or not found["drift"] or series.endswith((" pss", " anonymous")):
            continue
        level, change = found["drift"]["level"], found["drift"]["change"]
        share = f"{100 * change / level:+.1f} %" if level else "0 %"
        cells = (in_words(level, found["unit"]), in_words(found["maximum"], found["unit"]), share)
        rows.append([series, *cells, found["verdict"]])
    yield from page_table(("series", "level", "most", "drift", "verdict"), rows)


def attacks(name: str) -> Iterator[str]:
    """Yield the attacks that held the event loop longest, and the control."""
    rows = result(name)["attacks"]
    control = [row for row in rows if row["name"] == "nothing"]
    longest = sorted((row for row in rows if row not in control), key=lambda row: -row["longest_hold_ms"])
    cells = (
        [
            row["name"],
            f"{row['num_attacks']:,}",
            row["first_answer"].partition(" ")[0],
            f"{row['longest_gap_ms']:.0f} ms",
            f"{row['longest_hold_ms']:.0f} ms",
        ]
        for row in [*longest[:_ATTACKS_SHOWN], *control]
    )
    yield from page_table(("attack", "times", "answer", "longest gap", "loop held"), cells)
    load = result(name)["load"]
    yield f"Of {len(longest)} attacks, those that held the event loop longest. Load of the machine: {load:.0f}.\n"


def fuzzed() -> Iterator[str]:
    """Yield the sums over all targets in runs by hand, the slowest targets, and the edges of guided runs."""
    records = result("fuzz")
    rows = {name: row for name, row in records.items() if "inputs" in row}
    guided = {name: row["guided"] for name, row in records.items() if "guided" in row}
    slowest = sorted(rows.items(), key=lambda item: -item[1]["slowest_ms"])[:_TARGETS_SHOWN]
    cells = (
        [
            f"`{name}`",
            f"{row['inputs']:,.0f}",
            f"{row['accepted'] / max(1, row['inputs']):.0%}",
            f"{row['slowest_ms']} ms",
        ]
        for name, row in slowest
    )
    total, cpu_s = sum(row["inputs"] for row in rows.values()), sum(row["cpu_s"] for row in rows.values())
    yield f"\n{len(rows)} targets, {total:,.0f} inputs, {cpu_s / 60:.0f} minutes of CPU in the parsers. The slowest:"
    yield from page_table(("target", "inputs", "accepted", "slowest"), cells)
    native = {name: row for name, row in guided.items() if name.startswith("native-")}
    yield from _guided({name: row for name, row in guided.items() if name not in native}, "parsers in Python")
    yield from _guided(native, "native targets")


def _guided(rows: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Yield the sum of guided runs, and the targets that reached the most edges beyond those of their seeds."""
    if not rows:
        return
    inputs, hours = sum(row["inputs"] for row in rows.values()), sum(row["cpu_s"] for row in rows.values()) / 3600
    seeds, edges = sum(row["seed_edges"] for row in rows.values()), sum(row["edges"] for row in rows.values())
    yield (
        f"{len(rows)} {kind}, guided by coverage: {inputs:,.0f} inputs in {hours:.2f} CPU hours reached "
        f"{edges:,.0f} edges, their seeds {seeds:,.0f}. The most beyond their seeds:"
    )
    best = sorted(rows.items(), key=lambda item: item[1]["seed_edges"] - item[1]["edges"])[:_TARGETS_SHOWN]
    cells = ((f"`{name}`", f"{row['inputs']:,.0f}", str(row["seed_edges"]), str(row["edges"])) for name, row in best)
    yield from page_table(("target", "inputs", "edges of the seeds", "edges"), cells)


def if_stored(name: str, lines: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    """Yield the lines of a result, or that there is none yet."""
    if (RESULTS / f"{name}.json").exists():
        yield from lines(result(name))
    else:
        yield "\n(No run on a quiet machine is stored yet.)\n"


TABLES = {
    "docs/guides/formats.md": {"formats-quality": formats_quality, "formats-speed": formats_speed},
    "docs/guides/sizing.md": {"sizing-users": sizing_users},
    "docs/verification.md": {
        "soak": lambda: soak("soak"),
        "soak-server": lambda: soak("soak-server"),
        "failover": lambda: if_stored("failover", pages.failover),
        "upgrade": lambda: if_stored("upgrade", pages.upgrade),
        "gateways": lambda: if_stored("gateways", pages.gateways),
        "attacks": lambda: attacks("attack"),
        "attacks-platform": lambda: attacks("attack-platform"),
        "fuzzed": fuzzed,
    },
    "docs/performance.md": {"engines": performance_engines, "servers": performance_serving},
    "benchmarks/fidelity/README.md": {
        "divergence-smollm2": lambda: fidelity("divergence-smollm2"),
        "divergence-gemma3-270m": lambda: fidelity("divergence-gemma3-270m"),
    },
    "benchmarks/synthetic/README.md": {"ratios": synthetic_ratios},
}
"""The tables of each page, by the name in the comments around them."""
