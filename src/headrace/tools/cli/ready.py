"""The message of `headrace serve` when it is ready, and prompts that the smallest model answers well, to be copied."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.core.generation import EngineStats, ModelInfo
from headrace.core.sampling_defaults import describe_defaults
from headrace.tools.cli.tables import count_of, wrapped

if TYPE_CHECKING:
    from headrace.serving.handlers.spec import HandlerSpec

QUESTION = "How does rain form?"
"""Short, for narrow terminals; benchmarks/first_answer measures it."""
BEGINNING = "The sea is"
"""Begins a text, for base models."""
_JSON = "application/json"
_CONTRACTS = {
    "djl": "a handler for DJL",
    "torchserve": "a handler for TorchServe",
    "sagemaker": "functions for a SageMaker toolkit",
}


def prompt_for(models: Iterable[Mapping[str, Any]]) -> str:
    """Return the prompt to suggest for a server, by the models that it lists."""
    is_base = any(model.get("has_chat_template") is False for model in models)
    return BEGINNING if is_base else QUESTION


def print_ready(url: str, info: ModelInfo, stats: EngineStats) -> None:
    """Print the message to a terminal; logs have a line about it already."""
    if sys.stderr.isatty():
        click.echo(ready_text(url, info, stats), err=True)


def print_models_ready(url: str, specs: "Sequence[HandlerSpec]", side_urls: Mapping[str, str]) -> None:
    if sys.stderr.isatty():
        rows = [
            *(("model", f"{url}/predictions/{spec.model_name}") for spec in specs),
            ("health", f"{url}/ping"),
            *side_urls.items(),
        ]
        click.echo(f"\n{_table(rows, 12)}\n\n  Ctrl-C stops the server.\n", err=True)


def print_code_ready(url: str, spec: "HandlerSpec") -> None:
    if sys.stderr.isatty():
        click.echo(code_ready_text(url, spec), err=True)


def code_ready_text(url: str, spec: "HandlerSpec") -> str:
    """Return the message for a model's own code; only its author knows what a request is, so the body is a guess."""
    least, most = spec.min_workers, spec.max_workers
    workers = f"{least} to {most} processes" if most > least else f"{most} process{'es' if most > 1 else ''}"
    rows = [
        ("model", f"{spec.model_name}, served by its own code ({_CONTRACTS[spec.contract]})"),
        ("workers", workers),
        ("SageMaker", f"{url}/invocations  {url}/ping"),
        ("metrics", f"{url}/metrics"),
    ]
    path = "invocations"
    if spec.contract == "torchserve":
        path = f"predictions/{spec.model_name}"
        rows.insert(3, ("TorchServe", f"{url}/{path}"))
    is_table = spec.load.options.get("profile") in ("sklearn", "xgboost")
    example = _curl(f"{url}/{path}", *(("1,2,3", "text/csv") if is_table else ('{"inputs": "Hello"}', _JSON)))
    return f"""
{_table(rows, 12)}

  A request, if this is what the code reads:
  {example}

  Ctrl-C stops the server.
"""


def ready_text(url: str, info: ModelInfo, stats: EngineStats) -> str:
    """Return the message: facts, addresses and commands to copy."""
    route, value = "chat/completions", '"messages": [{"role": "user", "content": "Tell me a joke."}]'
    if info.is_base:
        route, value = "completions", f'"prompt": "{BEGINNING}"'
    example = f'{{"model": "{info.name}", "stream": true, {value}}}'
    generate = f'{{"inputs": "{BEGINNING}", "parameters": {{"max_new_tokens": 40}}}}'
    rows = [
        *_facts(info, stats),
        ("chat page", f"{url}/"),
        ("OpenAI", f"{url}/v1"),
        ("SageMaker", f"{url}/invocations  {url}/ping"),
        ("TGI", f"{url}/generate  {url}/generate_stream"),
        ("metrics", f"{url}/metrics"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return f"""
{_table(rows, width)}

  {_curl(f"{url}/v1/{route}", example)}

  {_curl(f"{url}/generate_stream", generate)}

  headrace chat --url {url}
  headrace bench {url}

  Ctrl-C stops the server; running requests may finish.
"""


def _table(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Return a line for each row, wrapped between words on a terminal."""
    return "\n".join(wrapped(f"  {name:<{width}}{value}", width + 2, stream=sys.stderr) for name, value in rows)


def _facts(info: ModelInfo, stats: EngineStats) -> list[tuple[str, str]]:
    capacity = stats.num_blocks * stats.block_tokens
    facts = [
        ("model", f"{info.name} ({info.family}, {info.num_parameters / 1e6:,.0f} M parameters)"),
        ("format", f"{info.dtype} weights, {info.kv_dtype} KV cache, on {info.device}"),
        ("backend", f"{info.backend}: {info.backend_reason}" if info.backend_reason else info.backend),
        ("context", f"{info.max_model_len:,} tokens; {count_of(info.max_num_seqs, 'sequence')} at once"),
    ]
    if info.generates:
        facts.append(("sampling", describe_defaults(info.sampling_defaults)))
    if info.is_base:
        facts.insert(1, ("chats", "refused: a base model, which continues text (--chat-template changes that)"))
    if info.rope:
        facts.append(("rope", info.rope))
    if info.format_reason:
        facts.insert(2, ("why", info.format_reason))
    if capacity:
        facts.append(("KV cache", f"{capacity:,} tokens"))
    return facts


def _curl(url: str, body: str, content_type: str = _JSON) -> str:
    return f"curl -N {url} -H 'Content-Type: {content_type}' \\\n    -d {shlex.quote(body)}"
