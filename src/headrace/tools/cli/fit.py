"""`headrace fit`: calculate the memory that a model needs, and recommend settings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headrace.core.errors import SettingsError
from headrace.core.progress import Progress
from headrace.core.sizes import parse_size
from headrace.inference.engine.loading.formats import Machine, choose_formats
from headrace.inference.engine.loading.plan import BLOCK_TOKENS, resolve_limits
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.weights import Encoding, dominant_bits, stored_formats
from headrace.inference.runner.memory import MemoryBudget, MemoryPlan
from headrace.serving.server.engine_config import engine_config
from headrace.serving.settings.server_settings import ServerSettings
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.fit_report import (
    CheckpointFacts,
    Report,
    advice_text,
    advise,
    fit_formats,
    print_report,
)
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.setting_options import engine_settings, setting_options

EXAMPLES = """
headrace fit smollm2                             memory needs on this machine
headrace fit Qwen/Qwen3-8B --memory 32GiB        on a machine with 32 GiB
headrace fit ./model.gguf --max-model-len 32768  with a longer context
headrace fit my/model --rope '{"rope_type": "yarn", "factor": 4}'
headrace fit smollm2 --json | jq .advice
"""
_MIB = 1 << 20
"""A smaller memory is a number whose unit is missing."""


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@click.argument("model")
@click.option(
    "--memory", metavar="SIZE", help="Memory of the machine, such as 16GiB.  [default: what is available here]"
)
@setting_options("revision", "max_model_len", "max_num_seqs", "rope")
@click.option(
    "--bandwidth",
    metavar="SIZE",
    help="Bytes per second that the machine reads from memory, such as 40GB.  [default: measured here]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fit(
    *,
    model: str,
    memory: str | None,
    bandwidth: str | None,
    as_json: bool,
    **requested: object,
) -> None:
    """
    Calculate the memory that a model needs in each format, and recommend settings.

    MODEL is an alias (smollm2), a Hub id, a folder or a .gguf file. Of a Hub model the command downloads only
    config.json. It also reports how many sequences fit, and how fast one decodes at most: the memory bandwidth divided
    by the bytes that a token reads.
    """
    settings = engine_settings(model, requested)
    with showing_progress() as progress:
        facts = read_facts(model, settings.revision, progress, rope=settings.rope)
    from headrace.core.host_memory import available_memory_bytes
    from headrace.inference.runner.decode_speed import measure_bandwidth

    available = available_memory_bytes() if memory is None else _size("--memory", memory, "16GiB", minimum=_MIB)
    bytes_per_s = measure_bandwidth() if bandwidth is None else float(_size("--bandwidth", bandwidth, "40GB"))
    report = _make_report(model, settings, facts, available, bytes_per_s)
    if as_json:
        click.echo(json.dumps(report.values()))
        return
    advice = advice_text(
        model, report.advice, report.auto, report.max_model_len, rope=settings.rope, refusal=report.refusal
    )
    print_report(report, advice)


def _make_report(
    model: str, settings: ServerSettings, facts: CheckpointFacts, available: int, bandwidth: float
) -> Report:
    from headrace.inference.runner.cpu import has_native_bf16, is_fastest_in_w4a8
    from headrace.inference.runner.decode_speed import decode_bytes
    from headrace.inference.runner.packing import LOW_BITS
    from headrace.inference.runner.plan import plan_runner

    served = resolve_limits(engine_config(settings), facts.spec, max_model_len=settings.max_model_len)
    sizes = {"max_model_len": served.max_model_len, "max_num_seqs": served.max_num_seqs}

    def plan(**format_and_size: Any) -> MemoryPlan:
        return plan_runner(
            facts.spec,
            layer_formats=facts.layer_formats,
            block_tokens=BLOCK_TOKENS,
            max_num_batched_tokens=served.max_num_batched_tokens,
            max_draft_tokens=served.max_draft_tokens,
            budget=MemoryBudget(available_bytes=available),
            **format_and_size,
        ).memory

    fits = fit_formats(plan, **sizes, available_bytes=available)
    auto = choose_formats(
        "auto",
        "auto",
        num_parameters=facts.spec.num_parameters,
        stored_bits=facts.stored_bits,
        is_mixed="w8" in facts.layer_formats.values(),
        keeps_low_bits=not LOW_BITS.isdisjoint(facts.layer_formats.values()),
        machine=Machine(
            available_bytes=available, has_native_bf16=has_native_bf16(), is_fastest_in_w4a8=is_fastest_in_w4a8()
        ),
    )
    speeds = [
        decode_bytes(
            facts.spec,
            dtype=fit_.dtype,
            kv_dtype=fit_.kv_dtype,
            max_model_len=served.max_model_len,
            layer_formats=facts.layer_formats,
        )
        for fit_ in fits
    ]
    return Report(
        model=model,
        facts=facts,
        fits=fits,
        speeds=speeds,
        auto=auto,
        advice=advise(plan, fits, auto=(auto.dtype, auto.kv_dtype), **sizes),
        available_bytes=available,
        bandwidth=bandwidth,
        **sizes,
    )


def read_facts(
    model: str, revision: str | None, progress: Progress, *, rope: Mapping[str, object] | None = None
) -> CheckpointFacts:
    """Read the spec and the encoding of a checkpoint with as little I/O as possible."""
    from headrace.inference.models.hub import parse_hub_ref
    from headrace.inference.models.loading import load_model
    from headrace.inference.runner.packing import layer_formats_of

    ref = parse_hub_ref(model)
    if ref is not None and ref.file_name is None and not Path(model).exists():
        return _hub_facts(ref.repo_id, revision, rope)
    loaded = load_model(model, revision=revision, rope=rope, progress=progress)
    shapes = expected_shapes(loaded.spec)
    return CheckpointFacts(
        spec=loaded.spec,
        encoding=loaded.weights.dominant_encoding,
        stored_bits=dominant_bits(loaded.weights, shapes),
        stored_format=f"{'safetensors' if loaded.path.is_dir() else 'GGUF'}, {stored_formats(loaded.weights, shapes)}",
        layer_formats=layer_formats_of(loaded.spec, loaded.weights),
    )


def _hub_facts(repo_id: str, revision: str | None, rope: Mapping[str, object] | None) -> CheckpointFacts:
    from headrace.inference.models.families.registry import from_config
    from headrace.inference.models.fields import json_fields, read_whole
    from headrace.inference.models.hub import fetch_config
    from headrace.inference.models.quantized.registry import promised_bits, promised_format
    from headrace.inference.models.rope_override import override_rope

    config = json_fields(read_whole(fetch_config(repo_id, revision)), f"config.json of {repo_id}")
    spec = from_config(config)[1]
    return CheckpointFacts(
        spec=spec if rope is None else override_rope(spec, rope),
        encoding=Encoding.BF16,
        stored_bits=promised_bits(config),
        stored_format=f"safetensors, {promised_format(config)}",
    )


def _size(flag: str, text: str, example: str, *, minimum: int = 1) -> int:
    try:
        return parse_size(text, minimum=minimum)
    except ValueError:
        raise SettingsError(f"{flag} is {text!r}; expected a size such as {example}.") from None
