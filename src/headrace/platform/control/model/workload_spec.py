"""
The workload of an AI benchmark job: the parameters of AIPerf, and the options of `headrace bench` that they mean. Pure.

Source: SageMaker developer guide, "Set up a workload configuration for generative AI inference recommendations".
"""

import json
import math
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any, Final

from headrace.core.errors import SettingsError
from headrace.platform.state.records import Json
from headrace.serving.settings.documents import read_yaml_mapping

_OPTIONS: Final[Mapping[str, str]] = {
    "concurrency": "--concurrency",
    "request_count": "--requests",
    "request_rate": "--rate",
    "benchmark_duration": "--duration",
    "warmup_request_count": "--warmup",
    "random_seed": "--seed",
    "request_timeout_seconds": "--timeout-s",
    "model": "--model",
}
_APIS: Final = {"chat": "openai-chat", "completions": "openai-completions"}
_LENGTHS: Final = {"prompt_input_tokens": "--prompt-tokens", "output_tokens": "--output-tokens"}
_NO_EFFECT: Final = frozenset({"tokenizer", "streaming"})
"""Tokens are counted by the server that is measured, and answers are always streamed."""
_DATASETS: Final = (None, "single_turn", "openai-chat")
_DEFAULT_TOKENS: Final = 256
_MAX_NUMBER: Final = 1e15
_KNOWN: Final = frozenset(
    {*_OPTIONS, *_NO_EFFECT, "custom_dataset_type", "endpoint_type"}
    | {f"{name}_{part}" for name in _LENGTHS for part in ("mean", "stddev")}
)


class WorkloadInvalid(Exception):
    """The workload cannot be read, or asks for something else than `headrace bench` does; the message says what."""


def read_workload(inline: str) -> Json:
    """Parse and check a `WorkloadSpec`. Raises `WorkloadInvalid`."""
    try:
        spec = read_yaml_mapping(inline, "WorkloadSpec")
    except SettingsError as error:
        raise WorkloadInvalid(error.message) from None
    kind = spec.get("benchmark")
    if not isinstance(kind, dict) or kind.get("type") != "aiperf":
        raise WorkloadInvalid('WorkloadSpec has no {"benchmark": {"type": "aiperf"}}; expected this type.')
    parameters = spec.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise WorkloadInvalid("WorkloadSpec.parameters is not an object.")
    if unknown := [name for name in parameters if name not in _KNOWN]:
        raise WorkloadInvalid(
            f"WorkloadSpec.parameters.{unknown[0]} is not supported by Headrace; expected {', '.join(sorted(_KNOWN))}."
        )
    tooling = spec.get("tooling") or {}
    if not isinstance(tooling, dict) or tooling.get("api_standard", "openai") != "openai":
        raise WorkloadInvalid("WorkloadSpec.tooling.api_standard is not openai, which alone is supported by Headrace.")
    bench_arguments(spec)
    return spec


def bench_arguments(spec: Json) -> list[str]:
    """Return the options of `headrace bench` for a workload. Raises `WorkloadInvalid`."""
    parameters: Mapping[str, Any] = spec.get("parameters") or {}
    if parameters.get("custom_dataset_type") not in _DATASETS:
        raise WorkloadInvalid(
            f"custom_dataset_type is {short(parameters['custom_dataset_type'])}; expected single_turn or openai-chat."
        )
    arguments = []
    for name, option in _OPTIONS.items():
        if name in parameters:
            value = parameters[name]
            if not (isinstance(value, str) if name == "model" else _is_number(value)):
                expected = "text" if name == "model" else "a number"
                raise WorkloadInvalid(f"WorkloadSpec.parameters.{name} is {short(value)}; expected {expected}.")
            arguments += [option, str(value)]
    if "request_rate" in parameters and "concurrency" in parameters:
        at = arguments.index("--concurrency")
        del arguments[at : at + 2]  # AIPerf's limit of requests in flight, which an open loop of ours does not have
    if api := parameters.get("endpoint_type"):
        if not isinstance(api, str) or api not in _APIS:
            raise WorkloadInvalid(
                f"WorkloadSpec.parameters.endpoint_type is {short(api)}; expected {' or '.join(_APIS)}."
            )
        arguments += ["--api", _APIS[api]]
    for name, option in _LENGTHS.items():
        arguments += [option, _length(parameters, name)]
    return arguments


def _length(parameters: Mapping[str, Any], name: str) -> str:
    """Return a length of `headrace bench` with a mean and a standard deviation: fixed, or uniform."""
    mean, deviation = parameters.get(f"{name}_mean", _DEFAULT_TOKENS), parameters.get(f"{name}_stddev") or 0
    if not _is_number(mean) or not _is_number(deviation):
        raise WorkloadInvalid(f"WorkloadSpec.parameters.{name}_mean and _stddev are not numbers.")
    if mean < 1 or deviation < 0:
        raise WorkloadInvalid(f"WorkloadSpec.parameters.{name}_mean is {mean:g}; expected at least 1.")
    half = deviation * math.sqrt(3)  # of a uniform distribution
    return f"{max(1, round(mean - half))}-{round(mean + half)}" if half >= 1 else str(round(mean))


def _is_number(value: object) -> bool:
    """Return whether a value is a number that a float can hold; those of YAML may be infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER


def aiperf_profile(report: Json, *, version: str) -> Json:
    """Return a report of `headrace bench` as AIPerf's `profile_export_aiperf.json`. Times are milliseconds there."""
    (level,) = report["levels"]
    succeeded = max(1, level["num_succeeded"])
    profile = {
        "request_throughput": {"unit": "requests/sec", "avg": level["requests_per_s"]},
        "request_latency": _milliseconds(level["e2e_s"]),
        "time_to_first_token": _milliseconds(level["ttft_s"]),
        "inter_token_latency": _milliseconds(level["tpot_s"]),
        "output_token_throughput": {"unit": "tokens/sec", "avg": level["output_tokens_per_s"]},
        "output_sequence_length": {"unit": "tokens", "avg": level["output_tokens"] / succeeded},
        "request_count": {"unit": "requests", "avg": level["num_succeeded"]},
        "error_request_count": {"unit": "requests", "avg": level["num_requests"] - level["num_succeeded"]},
        "benchmark_duration": {"unit": "sec", "avg": level["duration_s"]},
    }
    if level["prompt_tokens"] is not None:
        profile["input_sequence_length"] = {"unit": "tokens", "avg": level["prompt_tokens"] / succeeded}
    found: Json = {name: value for name, value in profile.items() if value is not None}
    return {**found, "tool_version": f"headrace {version}"}


def _milliseconds(spread: Mapping[str, float] | None) -> Json | None:
    if spread is None:
        return None
    names = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "max": "max"}
    return {"unit": "ms", **{names[name]: value * 1000 for name, value in spread.items()}}


def dataset_lines(content: str) -> str:
    """Return a data set of AIPerf as one of `headrace bench`: `text` is `prompt`. Raises `WorkloadInvalid`."""
    lines = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WorkloadInvalid(f"Line {number} of the data set is not JSON: {error}.") from None
        if isinstance(row, dict) and isinstance(row.get("text"), str):
            row = {"prompt": row["text"], **{name: value for name, value in row.items() if name != "text"}}
        lines.append(json.dumps(row))
    return "\n".join(lines)
