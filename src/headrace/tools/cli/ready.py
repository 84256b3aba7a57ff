"""The message of `headrace serve` when it is ready, and prompts that the smallest model answers well, to be copied."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.core.engine_stats import EngineStats
from headrace.core.generation import ModelInfo
from headrace.tools.cli.tables import wrapped

if TYPE_CHECKING:
    from headrace.platform.cluster.many_models.presets import ModelPreset
    from headrace.serving.handlers.spec import HandlerSpec
    from headrace.serving.settings.server_settings import ServerSettings

QUESTION = "How does rain form?"
"""Short, for narrow terminals; benchmarks/first_answer measures it."""
BEGINNING = "The sea is"
"""Begins a text, for base models."""
_SHOWN_MODELS = 8
_JSON = "application/json"
_KEY = "required: OPENAI_API_KEY, ANTHROPIC_AUTH_TOKEN or OLLAMA_API_KEY, or the header below"
_CONTRACTS = {
    "djl": "a handler for DJL",
    "torchserve": "a handler for TorchServe",
    "sagemaker": "functions for a SageMaker toolkit",
}


def prompt_for(models: Iterable[Mapping[str, Any]]) -> str:
    """Return the prompt to suggest for a server, by the models that it lists."""
    is_base = any(model.get("has_chat_template") is False for model in models)
    return BEGINNING if is_base else QUESTION


def print_ready(url: str, info: ModelInfo, _stats: EngineStats, *, needs_key: bool = False) -> None:
    """Print the message to a terminal; logs have a line about it already."""
    if sys.stderr.isatty():
        click.echo(ready_text(url, info, needs_key=needs_key), err=True)


def print_models_ready(url: str, specs: "Sequence[HandlerSpec]", side_urls: Mapping[str, str]) -> None:
    if sys.stderr.isatty():
        rows = [
            *(("model", f"{url}/predictions/{spec.model_name}") for spec in specs),
            ("health", f"{url}/ping"),
            *side_urls.items(),
        ]
        click.echo(f"\n{_table(rows, 12)}\n\n  Ctrl-C stops the server.\n", err=True)


def print_many_ready(url: str, settings: "ServerSettings", presets: "Sequence[ModelPreset]") -> None:
    if sys.stderr.isatty():
        names = ", ".join(preset.name for preset in presets[:_SHOWN_MODELS])
        more = f" and {len(presets) - _SHOWN_MODELS} more" if len(presets) > _SHOWN_MODELS else ""
        rows = [
            ("models", f"{names}{more}" if presets else "none yet; put GGUF files or model folders there"),
            ("chat page", f"{url}/"),
            ("OpenAI", f"{url}/v1"),
            ("Anthropic", f"ANTHROPIC_BASE_URL={url}"),
            ("Ollama", f"OLLAMA_HOST={url}"),
            *([("key", _KEY)] if settings.api_key is not None else []),
        ]
        click.echo(f"\n{_table(rows, 12)}\n\n  curl {url}/v1/models\n", err=True)


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


def ready_text(url: str, info: ModelInfo, *, needs_key: bool = False) -> str:
    """Return the message: the model, the addresses for clients, and a request to copy."""
    rows = [
        ("model", f"{info.name}, {info.dtype} on {info.device}, {info.max_model_len:,} tokens of context"),
        *([("chats", "rejected: this base model only continues text")] if info.is_base else []),
        *([("chat page", f"{url}/")] if info.generates else []),
        ("OpenAI", f"{url}/v1"),
        *([] if info.is_base or not info.generates else [("Anthropic", f"ANTHROPIC_BASE_URL={url}")]),
        ("Ollama", f"OLLAMA_HOST={url}"),
        *([("key", _KEY)] if needs_key else []),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return f"\n{_table(rows, width)}\n\n  {_example(url, info, needs_key=needs_key)}\n"


def _example(url: str, info: ModelInfo, *, needs_key: bool) -> str:
    route, body = "chat/completions", f'"messages": [{{"role": "user", "content": "{QUESTION}"}}]'
    if not info.generates:
        route, body = "embeddings", f'"input": "{BEGINNING}"'
    elif info.is_base:
        route, body = "completions", f'"prompt": "{BEGINNING}", "max_tokens": 40'
    header = ' \\\n    -H "Authorization: Bearer $KEY"' if needs_key else ""
    return f"curl {url}/v1/{route}{header} \\\n    -d {shlex.quote(f'{{{body}}}')}"


def _table(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Return a line for each row, wrapped between words on a terminal."""
    return "\n".join(wrapped(f"  {name:<{width}}{value}", width + 2, stream=sys.stderr) for name, value in rows)


def _curl(url: str, body: str, content_type: str = _JSON) -> str:
    return f"curl -N {url} -H 'Content-Type: {content_type}' \\\n    -d {shlex.quote(body)}"
