"""The calculations of `headrace fit` (memory of each format, what fits, a recommendation), and its output."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from headrace.core.errors import InsufficientMemory
from headrace.core.sizes import format_size
from headrace.inference.engine.loading.formats import Formats
from headrace.inference.engine.loading.plan import DEFAULT_MAX_MODEL_LEN
from headrace.inference.models.rope import describe_ropes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import Encoding
from headrace.inference.runner.memory import MemoryPlan
from headrace.tools.cli.tables import count_of

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.inference.runner.decode_speed import DecodeBytes

FORMATS = (
    ("bf16", "bf16"),
    ("bf16", "int8"),
    ("w8a16", "bf16"),
    ("w8a8", "int8"),
    ("w4a16", "bf16"),
    ("w4a8", "int8"),
)
"""Formats of weights and KV cache that are worth comparing, best quality first."""
SHORTEST_CONTEXT = 512
Plan = Callable[..., MemoryPlan]
"""`plan(dtype=…, kv_dtype=…, max_model_len=…, max_num_seqs=…)`; raises `InsufficientMemory`."""
_FASTER = {
    "bf16": " --dtype w8a8 reads half the bytes per token, which is faster.",
    "w8a16": " --dtype w8a8 computes prompts and large batches faster, less accurately.",
    "w8a8": " --dtype w4a8 reads fewer bytes per token, which is faster and less accurate.",
    "w4a16": " --dtype w4a8 computes prompts and large batches faster, less accurately.",
}
LENGTHS = (512, 2048, 8192, 32768)
_MAX_LENGTHS = 3
WIDTH = 80
"""Columns of the output, as of a terminal that was not made wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFit:
    """The memory of a format, and what fits on the machine."""

    dtype: str
    kv_dtype: str
    plan: MemoryPlan | None
    """The plan that `headrace serve` would make, or None if it does not fit."""
    room_tokens: int
    """Most tokens of KV cache that fit, beside the states of one sequence and two checkpoints."""
    state_tokens: int = 0
    """Tokens of KV cache as large as the state of a sequence."""
    refusal: str = ""
    """The reason why it does not fit."""

    @property
    def formats(self) -> tuple[str, str]:
        return self.dtype, self.kv_dtype

    def sequences_of(self, num_tokens: int) -> int:
        """Return the number of sequences of that length that fit concurrently."""
        return (self.room_tokens + self.state_tokens) // (num_tokens + self.state_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The recommended format and context length for the server."""

    dtype: str
    kv_dtype: str
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """The facts about a checkpoint that sizing depends on."""

    spec: ModelSpec
    encoding: Encoding
    stored_bits: int
    stored_format: str
    """The file's format and that of its weights, such as `GGUF, Q4_K and Q6_K`."""
    layer_formats: Mapping[str, str] = field(default_factory=dict)


def _most(counts: Iterable[int]) -> str:
    """Return a count that all layers have, or the largest."""
    found = set(counts)
    return f"up to {max(found)}" if len(found) > 1 else str(found.pop())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that the command prints."""

    model: str
    facts: CheckpointFacts
    fits: Sequence[FormatFit]
    speeds: "Sequence[DecodeBytes]"
    """Of the formats in `fits`."""
    auto: Formats
    advice: Advice | None
    available_bytes: int
    bandwidth: float
    """Bytes per second."""
    max_model_len: int
    max_num_seqs: int

    @property
    def refusal(self) -> str:
        """The error of `headrace serve` with the default format; empty if it fits."""
        auto = (self.auto.dtype, self.auto.kv_dtype)
        return next((fit_.refusal for fit_ in self.fits if fit_.formats == auto), "")

    def head(self) -> str:
        spec, moe = self.facts.spec, self.facts.spec.moe
        experts = ""
        if moe is not None:
            active = _active_parameters(spec) / 1e6
            experts = f" ({moe.top_k} of {moe.num_experts} experts a token: {active:,.0f} M active)"
        shapes = [spec.attention(layer) for layer in range(spec.num_layers)]
        heads, kv_heads = _most(shape.num_heads for shape in shapes), _most(shape.num_kv_heads for shape in shapes)
        return (
            f"{self.model}: {spec.family}, {spec.num_parameters / 1e6:,.0f} M parameters{experts}, "
            f"{spec.num_layers} layers, {heads} heads ({kv_heads} for KV), "
            f"supports {spec.max_positions:,} tokens.\n"
            f"stored: {self.facts.stored_format}; runs by default as {self.auto.dtype}, KV cache {self.auto.kv_dtype}\n"
            f"rope: {describe_ropes(spec, self.max_model_len)}\n"
            f"{format_size(self.available_bytes)} of memory, read at {self.bandwidth / 1e9:.1f} GB/s; "
            f"contexts of {self.max_model_len:,} tokens, {count_of(self.max_num_seqs, 'sequence')} at once."
        )

    def values(self) -> dict[str, object]:
        spec = self.facts.spec
        return {
            "model": self.model,
            "family": spec.family,
            "num_parameters": spec.num_parameters,
            "num_active_parameters": _active_parameters(spec),
            "rope": describe_ropes(spec, self.max_model_len),
            "encoding": self.facts.encoding,
            "stored_bits": self.facts.stored_bits,
            "stored_format": self.facts.stored_format,
            "available_bytes": self.available_bytes,
            "bandwidth_bytes_per_s": round(self.bandwidth),
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "default": asdict(self.auto),
            "formats": [
                asdict(fit_)
                | {
                    "weight_bytes_per_token": speed.weights,
                    "state_bytes_per_token": speed.state,
                    "kv_bytes_per_token_at_max_model_len": speed.kv_at_max_model_len,
                    "tokens_per_s": round(speed.tokens_per_s(self.bandwidth), 2),
                    "tokens_per_s_at_max_model_len": round(speed.tokens_per_s(self.bandwidth, is_full=True), 2),
                }
                for fit_, speed in zip(self.fits, self.speeds, strict=True)
            ],
            "advice": None if self.advice is None else asdict(self.advice),
            "refusal": self.refusal,
        }


def fit_formats(plan: Plan, *, max_model_len: int, max_num_seqs: int, available_bytes: int) -> list[FormatFit]:
    fits = []
    for dtype, kv_dtype in FORMATS:
        try:
            served = plan(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
        except InsufficientMemory as error:
            fits.append(FormatFit(dtype=dtype, kv_dtype=kv_dtype, plan=None, room_tokens=0, refusal=error.message))
            continue
        # Plan for one sequence more than all memory could hold: the cache becomes as large as the memory allows.
        token_bytes = max(1, served.kv_bytes_per_token)
        enough = max(max_num_seqs, available_bytes // (token_bytes * max_model_len) + 1)
        most = plan(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len, max_num_seqs=enough)
        slot_bytes = most.states.slot_bytes
        room_bytes = most.kv_cache_bytes + most.states.total_bytes - 3 * slot_bytes
        fits.append(
            FormatFit(
                dtype=dtype,
                kv_dtype=kv_dtype,
                plan=served,
                room_tokens=room_bytes // token_bytes,
                state_tokens=slot_bytes // token_bytes,
            )
        )
    return fits


def advise(
    plan: Plan, fits: Sequence[FormatFit], *, auto: tuple[str, str], max_model_len: int, max_num_seqs: int
) -> Advice | None:
    """
    Recommend the default format if it fits, else the best that fits, else the smallest with the longest context.

    Formats whose weights have to stay on disk in part count only if no other fits. `auto` has the default formats of
    weights and KV cache.
    """
    planned = [fit for fit in fits if fit.plan is not None]
    in_memory = [fit for fit in planned if fit.plan is not None and fit.plan.mapping != "required"]
    fitting = [fit.formats for fit in in_memory or planned]
    if fitting:
        dtype, kv_dtype = auto if auto in fitting else fitting[0]
        return Advice(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len)
    dtype, kv_dtype = FORMATS[-1]
    while (max_model_len := max_model_len // 2) >= SHORTEST_CONTEXT:
        try:
            plan(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
        except InsufficientMemory:
            continue
        return Advice(dtype=dtype, kv_dtype=kv_dtype, max_model_len=max_model_len)
    return None


def _active_parameters(spec: ModelSpec) -> int:
    """Return the weights in matrices that a token uses: all but those of the experts that it does not choose."""
    routed = [moe for layer in range(spec.num_layers) if (moe := spec.experts(layer)) is not None]
    idle = sum(
        (moe.num_experts - moe.top_k) * moe.expert_size * (moe.latent_size or spec.hidden_size) for moe in routed
    )
    return spec.num_parameters - spec.mlp_matrices * idle


def print_report(report: Report, advice: str) -> None:
    """Print the facts, memory and speed of each format in tables of at most 80 columns, and the advice."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else WIDTH, highlight=False, markup=False)

    def write(text: str) -> None:
        """Print text, between words wrapped on a terminal; an indented line is a command and stays whole."""
        for line in text.splitlines():
            console.print(line, soft_wrap=not is_terminal or line.startswith(" "))

    write(f"{report.head()}\n\n")
    lengths = sorted({min(length, report.max_model_len) for length in LENGTHS})[-_MAX_LENGTHS:]
    memory = [
        (*fit_.formats, *_sizes(fit_), *(f"{fit_.sequences_of(length):,}" for length in lengths))
        for fit_ in report.fits
    ]
    heads = ("dtype", "KV", "weights", "KV per token", "as served")
    console.print(_table((*heads, *(f"x {length:,}" for length in lengths)), memory))
    write("x N: concurrent sequences of N tokens that fit if all memory is used.")
    for text in _state_facts(report.fits):
        write(text)
    if any("*" in row[2] for row in memory):
        write("*: part of the weights stays on disk.")
    if report.facts.spec.is_causal:
        console.print()
        console.print(_speed_table(report))
        write("tokens/s: upper bound for one sequence, by the memory bandwidth; full: at the end of its context.")
    write(f"\n{advice}")


def _state_facts(fits: Sequence[FormatFit]) -> Iterator[str]:
    """Yield the memory of states, which is the same in all formats, and what the first one that fits has room for."""
    states = next((fit_.plan.states for fit_ in fits if fit_.plan is not None), None)
    if states is not None and states.slot_bytes:
        checkpoints = count_of(states.num_slots - states.max_num_seqs, "checkpoint")
        yield (
            f"States: {format_size(states.slot_bytes)} for each sequence beside its KV; served: "
            f"{count_of(states.max_num_seqs, 'sequence')} at once and {checkpoints} of prefixes."
        )


def _speed_table(report: Report) -> "Table":
    """Return how fast each format decodes; an encoder does not."""
    speeds = [
        (
            *fit_.formats,
            format_size(read.weights + read.state),
            *(f"{read.tokens_per_s(report.bandwidth, is_full=is_full):,.1f}" for is_full in (False, True)),
        )
        for fit_, read in zip(report.fits, report.speeds, strict=True)
    ]
    return _table(("dtype", "KV", "read per token", "tokens/s", "full"), speeds)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _sizes(fit_: FormatFit) -> list[str]:
    plan = fit_.plan
    if plan is None:
        return ["does not fit", "", ""]
    weights, *others = map(format_size, (plan.weights_bytes, plan.kv_bytes_per_token, plan.total_bytes))
    return [f"{weights}*" if plan.mapping == "required" else weights, *others]


def advice_text(
    model: str,
    advice: Advice | None,
    auto: Formats,
    max_model_len: int,
    *,
    rope: Mapping[str, object] | None = None,
    refusal: str = "",
) -> str:
    """Return the recommended command to start the server, and the reason; `refusal` is its error by default."""
    refused = f"`headrace serve {model}` would refuse: {refusal}\n" if refusal else ""
    if advice is None:
        return (
            f"{refused}The model does not fit here in any format, even with a short context. "
            "Use a smaller model or more memory."
        )
    command = ["headrace", "serve", model, *([] if rope is None else ["--rope", json.dumps(rope)])]
    why = f"The default format fits: {auto.reason}."
    if (advice.dtype, advice.kv_dtype) != (auto.dtype, auto.kv_dtype):
        command += ["--dtype", advice.dtype, "--kv-dtype", advice.kv_dtype]
        why = "The default format does not fit; this is the best one that does."
    if advice.max_model_len != max_model_len or max_model_len > DEFAULT_MAX_MODEL_LEN:
        command += ["--max-model-len", str(advice.max_model_len)]
    if advice.max_model_len != max_model_len:
        why = f"A context of {max_model_len:,} tokens fits in no format; this is the longest that fits."
    hint = _FASTER.get(advice.dtype, "")
    return f"{refused}{why}{hint}\n  {shlex.join(command)}"
