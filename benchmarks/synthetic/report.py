"""The page of the results, from the records of `synthetic.json`."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import results
from benchmarks.synthetic.chat import HEADRACE, HISTORIES, LLAMA_SERVER
from benchmarks.synthetic.steps import CELLS

Record = Mapping[str, Any]

METHOD = """\
Written by `benchmarks/synthetic/run.py`; the [README](../synthetic/README.md) describes the method. Weights are random:
the time of a step depends on shapes and formats, the text is noise. All engines run on the CPU with a thread on each
physical core. Each number is a median over the turns.

The roof of one sequence is the memory bandwidth read beside its steps, over the bytes that a token must read: weights
(of experts only the chosen ones), state (read and written) and the KV cache at that length. `doctor` is the bandwidth
that `headrace doctor` measures in the same run, the best of many short reads. The roof of a prompt is the int8 peak
over the work of all layers. Layers that store nothing, as in Gemma 4 E2B, run only for rows whose logits are needed, so
that prompts can exceed it.
`ends` stands where a peer's program ended with an error.
"""
CHAT_METHOD = """\
The same {num_turns} turns with both servers, streamed. `new` are the tokens of a prompt that no earlier prompt or
answer of the chat has, `again` those that a server computed beyond them. The history has the answers as they were
generated, or another text in their place, as clients of models that reason send it.
"""
CHAT_COLUMNS = (
    *("turn", "prompt", "new", "Headrace again", "llama-server again"),
    *("Headrace TTFT ms", "llama-server TTFT ms"),
)


def page(result: Record) -> str:
    """Return the page of all models that were ever measured into a result."""
    machine = result["machine"]
    head = f"# Models of known shapes\n\n{machine['cpu']}, {machine['physical_cores']} cores."
    sections = [table(name, model) for name, model in result["models"].items()]
    chats = [chat_section(name, model) for name, model in result.get("chats", {}).items()]
    return "\n".join([f"{head}\n\n{METHOD}", *sections, *chats])


def table(name: str, model: Record) -> str:
    """Return the table of one model: medians, and of Headrace the shares of the roof and the ratios to each peer."""
    by_engine: dict[str, list[Record]] = {}
    for turn in model["turns"]:
        by_engine.setdefault(turn["engine"], []).append(turn)
    ours = [engine for engine, turns in by_engine.items() if turns[0]["bandwidth_share"] is not None]
    peers = {engine: medians(turns) for engine, turns in by_engine.items() if engine not in ours}
    cells = [cell for cell in CELLS if any(cell in turn["tokens_per_s"] for turn in model["turns"])]
    rows = []
    for engine, turns in by_engine.items():
        speeds, shares = medians(turns), shares_of(model, turns) if engine in ours else {}
        rows.append([engine, *(_cell(cell, speeds, shares, peers if engine in ours else {}) for cell in cells)])
    rows += [[engine, reason, *[""] * (len(cells) - 1)] for engine, reason in model.get("refusals", {}).items()]
    return f"{_heading(name, model)}\n{results.table(['tokens/s', *cells], rows, text_columns=1 + len(cells))}\n"


def _heading(name: str, model: Record) -> str:
    work, ours = model["work"], [turn for turn in model["turns"] if turn["bandwidth_share"] is not None]
    read = statistics.median(turn["read_bytes_per_s"] for turn in ours)
    doctor = [turn["doctor_bytes_per_s"] for turn in ours if turn.get("doctor_bytes_per_s")]
    measured = f" (`doctor`: {statistics.median(doctor) / 1e9:.0f})" if doctor else ""
    parts = {"state": work.get("state_bytes", 0), "KV": work.get("kv_bytes", 0)}
    more = "".join(f", {size / 1e6:.1f} MB of {part}" for part, size in parts.items() if size)
    foreign = max(turn["foreign_cores"] for turn in model["turns"])
    return (
        f"## {name}, {model['layers']} of {model['of_layers']} layers\n\n"
        f"A token reads {work['decode_bytes'] / 1e9:.2f} GB of weights{more} and takes "
        f"{work['operations'] / 1e9:.2f} G operations in layers.\n"
        f"The roof is {read / 1e9:.0f} GB/s{measured} and {_peak(model) / 1e9:.0f} G int8 operations/s.\n"
        f"Other programs used at most {foreign:.2f} cores. {_origin(model)}\n"
    )


def _origin(model: Record) -> str:
    versions = " and ".join(f"{name} {version}" for name, version in model["versions"].items())
    return f"Measured on {model['date']}" + (f" beside {versions}." if versions else ".")


def medians(turns: Sequence[Record]) -> dict[str, float]:
    """Return the median speed of each cell that the engine ran in all turns."""
    ran = [cell for cell in CELLS if all(cell in turn["tokens_per_s"] for turn in turns)]
    return {cell: statistics.median(turn["tokens_per_s"][cell] for turn in turns) for cell in ran}


def shares_of(model: Record, turns: Sequence[Record]) -> dict[str, str]:
    """Return the shares of what the hardware allows, by cell."""
    beside = f"{statistics.median(turn['bandwidth_share'] for turn in turns):.0%} of the roof"
    of_doctor = [
        turn["tokens_per_s"]["decode 1"] * turn["token_bytes"] / turn["doctor_bytes_per_s"]
        for turn in turns
        if turn.get("token_bytes")
    ]
    doctor = f", {statistics.median(of_doctor):.0%} of `doctor`" if of_doctor else ""
    prefill = medians(turns)["prefill 512"] * model["work"]["operations"] / _peak(model)
    return {"decode 1": beside + doctor, "prefill 512": f"{prefill:.0%} of the roof"}


def _peak(model: Record) -> float:
    """Return the best int8 peak beside our own turns, which have the instruction set that was asked for."""
    return max(turn["operations_per_s"] for turn in model["turns"] if turn["bandwidth_share"] is not None)


def _cell(
    cell: str, speeds: Mapping[str, float], shares: Mapping[str, str], peers: Mapping[str, Mapping[str, float]]
) -> str:
    if cell not in speeds:
        return "ends"
    ratios = [f"{speeds[cell] / theirs[cell]:.2f}x {peer}" for peer, theirs in peers.items() if cell in theirs]
    notes = ", ".join([shares[cell], *ratios] if cell in shares else ratios)
    return f"{speeds[cell]:.1f}" + (f" ({notes})" if notes else "")


def chat_section(name: str, model: Record) -> str:
    """Return the tables of a chat, one for each kind of history."""
    num_turns = max(turn["turn"] for turn in model["turns"])
    head = f"## Chat of {num_turns} turns: {name}, {model['layers']} of {model['of_layers']} layers\n\n"
    tables = [
        f"History: {history}.\n\n{results.table(CHAT_COLUMNS, chat_rows(model['turns'], history))}\n"
        for history in HISTORIES
    ]
    return head + "\n".join([f"{CHAT_METHOD.format(num_turns=num_turns)}{_origin(model)}\n", *tables])


def chat_rows(turns: Sequence[Record], history: str) -> Iterator[list[str]]:
    """Yield a row for each turn, then the sums of tokens and the medians of times from the second turn on."""
    mine = [turn for turn in turns if turn["history"] == history]
    by_turn: dict[int, dict[str, list[Record]]] = {}
    for turn in mine:
        by_turn.setdefault(turn["turn"], {}).setdefault(turn["server"], []).append(turn)
    for number, servers in sorted(by_turn.items()):
        first = servers[HEADRACE][0]
        yield [
            str(number),
            f"{first['prompt_tokens']:,}",
            f"{first['new_tokens']:,}",
            *(f"{_median(servers[name], 'recomputed_tokens'):,.0f}" for name in (HEADRACE, LLAMA_SERVER)),
            *(f"{1e3 * _median(servers[name], 'ttft_s'):,.0f}" for name in (HEADRACE, LLAMA_SERVER)),
        ]
    later = [turn for turn in mine if turn["turn"] > 1]
    by_server = [[turn for turn in later if turn["server"] == name] for name in (HEADRACE, LLAMA_SERVER)]
    yield [
        "2 and later, median",
        "",
        f"{_median(by_server[0], 'new_tokens'):,.0f}",
        *(f"{_median(own, 'recomputed_tokens'):,.0f}" for own in by_server),
        *(f"{1e3 * _median(own, 'ttft_s'):,.0f}" for own in by_server),
    ]


def _median(turns: Sequence[Record], figure: str) -> float:
    return statistics.median(turn[figure] for turn in turns)
