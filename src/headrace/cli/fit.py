"""`headrace fit`: calculate the memory that a model needs, and recommend settings."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from headrace.cli.group import Examples
from headrace.cli.progress import showing_progress
from headrace.cli.sizing import Advice, FormatFit, Plan, advise, fit_formats
from headrace.core.errors import BrokenModel, SettingsError
from headrace.core.progress import Progress
from headrace.core.sizes import format_size, parse_size
from headrace.engine.config import EngineLimits
from headrace.engine.loading.formats import Formats, Machine, choose_formats
from headrace.engine.loading.plan import BLOCK_TOKENS, DEFAULT_MAX_MODEL_LEN, resolve_limits
from headrace.models.shapes import expected_shapes
from headrace.models.spec import ModelSpec
from headrace.models.weights import Encoding, dominant_bits
from headrace.server.engine_config import engine_config
from headrace.settings.server_settings import ServerSettings

EXAMPLES = """
headrace fit smollm2                                memory needs on this machine
headrace fit Qwen/Qwen3-8B --memory 32GiB           on a machine with 32 GiB; only config.json is downloaded
headrace fit ./model.gguf --max-model-len 32768     with a longer context
headrace fit smollm2 --json | jq .advice
"""

_FASTER = {
    "bf16": " --dtype w8a8 reads half the bytes per token, which is faster.",
    "w8a16": " --dtype w8a8 computes prompts and large batches faster, less accurately.",
    "w8a8": " --dtype w4a8 reads fewer bytes per token, which is faster and less accurate.",
    "w4a16": " --dtype w4a8 computes prompts and large batches faster, less accurately.",
}
LENGTHS = (512, 2048, 8192, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """The facts about a checkpoint that sizing depends on."""

    spec: ModelSpec
    encoding: Encoding
    stored_bits: int
    w8_matrices: tuple[str, ...] = ()


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("model")
@click.option("--revision", help="Branch, tag or commit of a Hub model.")
@click.option(
    "--memory", metavar="SIZE", help="Memory of the machine, such as 16GiB.  [default: what is available here]"
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=32),
    help="Context length: prompt and answer, tokens.  [default: as serve]",
)
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Concurrent sequences.  [default: as serve]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fit(*, model: str, revision: str | None, memory: str | None, as_json: bool, **limits: Any) -> None:
    """
    Calculate the memory MODEL needs in each format, and how many sequences fit; recommend the settings to use.

    No weights are loaded; for a Hub model only config.json is downloaded.
    """
    with showing_progress() as progress:
        facts = read_facts(model, revision, progress)
    from headrace.runner.cpu import has_native_bf16
    from headrace.runner.memory import available_memory_bytes

    available = available_memory_bytes() if memory is None else _size(memory)
    requested = {name: value for name, value in limits.items() if value is not None}
    settings = ServerSettings(model=model, **requested)
    served = resolve_limits(engine_config(settings), facts.spec, max_model_len=settings.max_model_len)
    max_model_len, max_num_seqs = served.max_model_len, served.max_num_seqs
    plan = _planner(facts, served, available)
    fits = fit_formats(plan, max_model_len=max_model_len, max_num_seqs=max_num_seqs, available_bytes=available)
    formats = choose_formats(
        "auto",
        "auto",
        num_parameters=facts.spec.num_parameters,
        stored_bits=facts.stored_bits,
        is_mixed=bool(facts.w8_matrices),
        machine=Machine(available_bytes=available, has_native_bf16=has_native_bf16()),
    )
    auto = (formats.dtype, formats.kv_dtype)
    advice = advise(plan, fits, auto=auto, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
    if as_json:
        click.echo(json.dumps(_values(model, facts, fits, formats, advice, available, max_model_len, max_num_seqs)))
        return
    click.echo(_head(model, facts, available, max_model_len, max_num_seqs))
    _print_table(fits, max_model_len)
    click.echo(advice_text(model, advice, formats, max_model_len))


def read_facts(model: str, revision: str | None, progress: Progress) -> CheckpointFacts:
    """Read the spec and the encoding of a checkpoint with as little I/O as possible."""
    from headrace.models.hub import parse_hub_ref
    from headrace.models.loading import load_model
    from headrace.runner.packing import eight_bit_matrices

    ref = parse_hub_ref(model)
    if ref is not None and ref.file_name is None and not Path(model).exists():
        return CheckpointFacts(spec=_hub_spec(ref.repo_id, revision), encoding=Encoding.BF16, stored_bits=16)
    loaded = load_model(model, revision=revision, progress=progress)
    return CheckpointFacts(
        spec=loaded.spec,
        encoding=loaded.weights.dominant_encoding,
        stored_bits=dominant_bits(loaded.weights, expected_shapes(loaded.spec)),
        w8_matrices=eight_bit_matrices(loaded.spec, loaded.weights),
    )


def _hub_spec(repo_id: str, revision: str | None) -> ModelSpec:
    from huggingface_hub import hf_hub_download

    from headrace.models.families.registry import from_config
    from headrace.models.fields import Fields
    from headrace.models.hub import translate

    try:
        path = hf_hub_download(repo_id, "config.json", revision=revision)
    except Exception as exc:
        raise translate(exc, repo_id, revision) from exc
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as exc:
        raise BrokenModel(f"config.json of {repo_id} is not JSON: {exc}.") from exc
    return from_config(Fields(values, f"config.json of {repo_id}"))[1]


def _planner(facts: CheckpointFacts, served: EngineLimits, available_bytes: int) -> Plan:
    from headrace.runner.memory import MemoryBudget, MemoryPlan
    from headrace.runner.plan import plan_runner

    def plan(**format_and_size: Any) -> MemoryPlan:
        return plan_runner(
            facts.spec,
            w8_matrices=facts.w8_matrices,
            block_tokens=BLOCK_TOKENS,
            max_num_batched_tokens=served.max_num_batched_tokens,
            budget=MemoryBudget(available_bytes=available_bytes),
            **format_and_size,
        ).memory

    return plan


def _size(text: str) -> int:
    try:
        return parse_size(text, minimum=1)
    except ValueError:
        raise SettingsError(f"--memory is {text!r}; expected a size such as 16GiB.") from None


def _head(model: str, facts: CheckpointFacts, available: int, max_model_len: int, max_num_seqs: int) -> str:
    spec = facts.spec
    return (
        f"{model}: {spec.family}, {spec.num_parameters / 1e6:,.0f} M parameters, {spec.num_layers} layers, "
        f"{spec.num_heads} heads ({spec.num_kv_heads} for KV), supports {spec.max_positions:,} tokens; "
        f"stored with {facts.stored_bits} bits per weight.\n"
        f"{format_size(available)} of memory; contexts of {max_model_len:,} tokens, {max_num_seqs} sequences at once."
    )


def _print_table(fits: Sequence[FormatFit], max_model_len: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    lengths = sorted({min(length, max_model_len) for length in LENGTHS})
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("weights", "KV", "weights", "KV per token", "workspace", "as served", "KV tokens that fit"):
        table.add_column(name, justify="right")
    for length in lengths:
        table.add_column(f"x {length:,}", justify="right")
    for fit_ in fits:
        counts = [f"{fit_.sequences_of(length):,}" for length in lengths]
        table.add_row(fit_.dtype, fit_.kv_dtype, *_sizes(fit_), *counts)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print("x N: concurrent sequences of N tokens that fit if all memory is used.", highlight=False)


def _sizes(fit_: FormatFit) -> list[str]:
    plan = fit_.plan
    if plan is None:
        return ["does not fit", "", "", "", ""]
    sizes = (plan.weights_bytes, plan.kv_bytes_per_token, plan.workspace_bytes, plan.total_bytes)
    weights, *others = map(format_size, sizes)
    if plan.mapping == "required":
        weights = f"{weights}, part on disk"
    return [weights, *others, f"{fit_.room_tokens:,}"]


def advice_text(model: str, advice: Advice | None, auto: Formats, max_model_len: int) -> str:
    """Return the recommended command to start the server, and the reason."""
    if advice is None:
        return (
            "The model does not fit here in any format, even with a short context. Use a smaller model or more memory."
        )
    command = ["headrace", "serve", model]
    why = f"The default format fits: {auto.reason}."
    if (advice.dtype, advice.kv_dtype) != (auto.dtype, auto.kv_dtype):
        command += ["--dtype", advice.dtype, "--kv-dtype", advice.kv_dtype]
        why = "The default format does not fit; this is the best one that does."
    if advice.max_model_len != max_model_len or max_model_len > DEFAULT_MAX_MODEL_LEN:
        command += ["--max-model-len", str(advice.max_model_len)]
    if advice.max_model_len != max_model_len:
        why = f"A context of {max_model_len:,} tokens fits in no format; this is the longest that fits."
    hint = _FASTER.get(advice.dtype, "")
    return f"{why}{hint}\n  {shlex.join(command)}"


def _values(
    model: str,
    facts: CheckpointFacts,
    fits: Sequence[FormatFit],
    auto: Formats,
    advice: Advice | None,
    available: int,
    max_model_len: int,
    max_num_seqs: int,
) -> dict[str, object]:
    return {
        "model": model,
        "family": facts.spec.family,
        "num_parameters": facts.spec.num_parameters,
        "encoding": facts.encoding,
        "stored_bits": facts.stored_bits,
        "available_bytes": available,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "default": asdict(auto),
        "formats": [asdict(fit_) for fit_ in fits],
        "advice": None if advice is None else asdict(advice),
    }
