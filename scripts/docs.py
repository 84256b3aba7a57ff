"""
Generate pages of `docs/` and parts of pages from the code.

Settings, names of other servers, metrics, errors, the command line, operations of AWS, request fields, families of
models, the file list.

python scripts/docs.py            write them
python scripts/docs.py --check    exit 1 if one of them differs from the code
"""

import argparse
import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import botocore
from aws_operations import markdown
from blocks import with_block
from cli_page import cli_page
from prometheus_client import Metric

from headrace.core import errors
from headrace.core.exposition import families
from headrace.core.generation import EngineStats, ModelInfo
from headrace.core.metrics import Metrics
from headrace.inference.models.families.registry import FAMILIES, NESTED, refused_networks
from headrace.platform.gateway.metrics import GatewayMetrics
from headrace.platform.gateway.metrics import families as gateway_families
from headrace.platform.host.operations import OPERATIONS
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.server.handlers.metrics import families as handler_families
from headrace.serving.server.handlers.metrics import torchserve_families
from headrace.serving.settings.container_meanings import (
    Fills,
    FillsPart,
    ForBackends,
    Meaning,
    NoEffect,
    OnGpu,
    Requires,
    UsedElsewhere,
)
from headrace.serving.settings.container_tables import (
    ENVIRONMENT,
    FLAGS,
    GENERAL_NAMES,
    MODEL_CONFIG,
    OPTIONS,
    PROPERTIES,
)
from headrace.serving.settings.docs import SettingRow, setting_rows
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.values import flag_name
from headrace.serving.wire.anthropic.dialect import FIELDS as MESSAGES_FIELDS
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.fields import LEAVE_IT_OUT
from headrace.serving.wire.lmi.dialect import PARAMETER_FIELDS as LMI_FIELDS
from headrace.serving.wire.ollama.dialect import CHAT_FIELDS as OLLAMA_CHAT_FIELDS
from headrace.serving.wire.ollama.dialect import GENERATE_FIELDS as OLLAMA_GENERATE_FIELDS
from headrace.serving.wire.ollama.dialect import OPTION_FIELDS as OLLAMA_OPTIONS
from headrace.serving.wire.openai.chat import FIELDS as CHAT_FIELDS
from headrace.serving.wire.openai.completions import FIELDS as COMPLETIONS_FIELDS
from headrace.serving.wire.openai.responses import FIELDS as RESPONSES_FIELDS
from headrace.serving.wire.tgi.dialect import PARAMETER_FIELDS as TGI_FIELDS
from headrace.serving.wire.toolkit.dialect import PARAMETER_FIELDS as TOOLKIT_GENERATION_FIELDS
from headrace.serving.wire.toolkit.encoders import CLASSIFICATION_FIELDS as TOOLKIT_CLASSIFICATION_FIELDS
from headrace.serving.wire.toolkit.encoders import FEATURE_FIELDS as TOOLKIT_FEATURES_FIELDS
from headrace.serving.wire.torchserve.dialect import PARAMETER_FIELDS as TORCHSERVE_FIELDS
from headrace_handler.contract import Load

if TYPE_CHECKING:
    from headrace.serving.wire.fields import FieldTable

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PACKAGE = ROOT / "src" / "headrace"
NOTE = "<!-- Made by scripts/docs.py; change the code that it describes instead. -->\n"


def escape(text: str) -> str:
    """Escape a text for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def settings_page() -> Iterator[str]:
    """Yield the page of settings."""
    yield "# Settings\n"
    yield "Each setting is a flag of `headrace serve` and an environment variable."
    yield "They take precedence in this order: the flag, the `HEADRACE_*` variable, files in the model's folder"
    yield "(`serving.properties`, `model-config.yaml`), the [names of other servers](container-names.md), the default."
    yield "Those files set what is marked \\*: formats, limits and paths in their folder (see `--trust-model-files`)."
    yield "With an invalid value or an unknown `HEADRACE_*` name, the server does not start.\n"
    yield from settings_table(setting_rows())
    yield "\n## Settings of the platform\n"
    yield "These are flags of `headrace up`; their variables begin with `HEADRACE_UP_`.\n"
    yield from settings_table(setting_rows(PlatformSettings))


def settings_table(rows: Iterable[SettingRow]) -> Iterator[str]:
    """Yield one row per setting."""
    yield "| setting | values | default | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        default = f"`{row.default_text}`" if row.default_text else ""
        mark = " \\*" if row.is_for_files else ""
        names = f"`{row.flag}`{mark}<br>`{row.env}`"
        yield f"| {names} | {escape(row.rule.expected)} | {default} | {escape(row.help)} |"


def meaning_text(meaning: Meaning) -> str:
    """Return the effect of another server's name."""
    text = ""
    match meaning:
        case OnGpu():
            gpu, cpu = meaning_text(meaning.gpu), meaning_text(meaning.cpu)
            text = gpu if gpu == cpu else f"on a GPU: {gpu}; on a CPU: {cpu}"
        case ForBackends():
            with_these = f"{' and '.join(meaning.backends)}: {meaning_text(meaning.meaning)}"
            text = f"{with_these}; others: {meaning_text(meaning.otherwise)}"
        case Fills():
            text = f"sets `{flag_name(meaning.field)}`"
            text += "" if meaning.vllm is None else " (vllm: a part of `--vllm-args`)"
        case FillsPart():
            text = f"sets a part of `{flag_name(meaning.field)}`"
        case NoEffect():
            text = f"no effect: {meaning.why}"
        case Requires():
            text = f"only {', '.join(f'`{value}`' for value in meaning.values)}: anything else stops the start"
        case UsedElsewhere():
            text = f"read by {meaning.by}"
    return text


def container_names_page() -> Iterator[str]:
    """Yield the page of other servers' names, by their origin."""
    yield "# Names of other servers\n"
    yield "Headrace reads existing configuration for the containers of SageMaker, TGI, LMI (DJL), vLLM, SGLang,"
    yield "llama.cpp and TorchServe."
    yield "A name is applied, or accepted with a warning that says why it has no effect."
    yield "With a value that Headrace does not support (another task, a custom handler), the server does not start."
    yield "For an unknown name that begins with `option.`, `OPTION_`, `SERVING_`, `SM_`, `HF_`, `TS_`, `MMS_` or"
    yield "`SAGEMAKER_`, a warning suggests the most similar known name."
    yield "The files of a model set formats, limits and paths in their own folder; for anything else they need"
    yield "[`--trust-model-files`](settings.md), which is on in containers and on the platform."
    yield "All variables that begin with `NEURON_` have no effect: no Neuron device or compiler is used.\n"
    tables: tuple[tuple[str, dict[str, Meaning], str], ...] = (
        ("Environment variables", ENVIRONMENT, "{}"),
        ("`option.*` in `serving.properties`, `OPTION_*` in the environment", OPTIONS, "option.{}"),
        ("Other keys of `serving.properties`, `SERVING_*` in the environment", PROPERTIES, "{}"),
        *((f"`{prefix}*` in the environment", dict(flags), f"{prefix}{{}}") for prefix, flags in FLAGS.items()),
        ("TorchServe's `model-config.yaml`", MODEL_CONFIG, "{}"),
    )
    for title, table, spelling in tables:
        yield f"## {title}\n"
        yield "| name | effect |"
        yield "|---|---|"
        for key, meaning in table.items():
            name = spelling.format(key.upper() if spelling.startswith("SM_") else key)
            note = " (as a container only)" if table is ENVIRONMENT and key in GENERAL_NAMES else ""
            yield f"| `{name}` | {escape(meaning_text(meaning))}{note} |"
        yield ""


def metrics_page() -> Iterator[str]:
    """Yield the page of metrics, each under all of its names."""
    yield "# Metrics\n"
    yield "`GET /metrics` returns them in Prometheus' text format; [monitoring](monitoring.md) shows how to use them."
    yield "Names that begin with `tgi_` and `vllm:` repeat values under the names that existing dashboards use.\n"
    info = ModelInfo(
        name="m", revision=None, family="llama", dtype="bf16", kv_dtype="bf16", device="cpu", max_model_len=1,
        max_prompt_tokens=1, max_num_seqs=1, vocab_size=1, num_parameters=1, has_chat_template=False, created_s=0,
    )  # fmt: skip
    yield from metrics_table(families(Metrics(stats=EngineStats, info=lambda: info, in_flight=lambda: 0)))
    yield "\n## Metrics of the platform\n"
    yield "The gateway exports these metrics, at `/metrics` of `headrace up`.\n"
    yield from metrics_table(gateway_families(GatewayMetrics()))
    yield "\n## Metrics of a model's own code\n"
    yield "A server whose model [has its own code](handlers.md) exports these at `/metrics`, with the label `model`."
    yield "The metrics that the code itself reports follow under their own names.\n"
    load = Load(model_name="m", model_dir=Path(), entry="")
    yield from metrics_table(handler_families(HandlerPool(HandlerSpec(contract="sagemaker", load=load))))
    yield "\nTorchServe's metrics port (8082) has these, with the labels `model_name`, `model_version`, `hostname`:\n"
    yield from metrics_table(torchserve_families(()))


def metrics_table(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield one row per metric."""
    yield "| metric | kind | meaning |"
    yield "|---|---|---|"
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        yield f"| `{name}` | {metric.type} | {escape(metric.documentation)} |"


def tree(kind: type[errors.HeadraceError]) -> Iterator[type[errors.HeadraceError]]:
    """Yield a class and its subclasses, parents first, without `AwsError`, whose codes are those of each service."""
    if kind is AwsError:
        return
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def errors_page() -> Iterator[str]:
    """Yield the page of the errors that are raised on purpose."""
    yield "# Errors\n"
    yield "Every error says what is wrong, which value, what was expected and how to fix it."
    yield "Each dialect renders them in the format that its clients expect ([dialects](dialects/index.md))."
    yield "A command prints an error as one sentence on standard error,"
    yield "and exits with code 2 if the caller can fix it, otherwise with 1."
    yield "AWS operations return an `AwsError`, which has AWS's own code, message and status for each case.\n"
    yield "| error | code | HTTP | retryable | meaning |"
    yield "|---|---|---|---|---|"
    for kind in tree(errors.HeadraceError):
        meaning = (inspect.getdoc(kind) or "").splitlines()[0]
        retry = "yes" if kind.retryable else "no"
        yield f"| `{kind.__name__}` | `{kind.code}` | {kind.http_status} | {retry} | {escape(meaning)} |"


def first_sentence(path: Path) -> str:
    """Return the first sentence of a source file's docstring or opening comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in {".py", ".pyi"}:
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        opening = re.match(r"(?:<!doctype html>\s*)?((?:\s*(?://|\*|/\*|<!--).*\n)+)", text, re.IGNORECASE)
        about = re.sub(
            r"^\s*(?:///?|/\*\*?|\*/?|<!--)|(?:\*/|-->)\s*$", "", opening[1] if opening else "", flags=re.MULTILINE
        )
    paragraph = " ".join(re.split(r"\n\s*\n", about.strip())[0].split())
    if not paragraph and path.with_suffix(".h").exists() and path.suffix == ".cpp":
        return first_sentence(path.with_suffix(".h"))
    return re.split(r"(?<=[.;])\s", paragraph)[0].rstrip(".;")


def source_folders() -> dict[Path, list[Path]]:
    """Return the source files of the package and the native runtime, by folder."""
    suffixes = {".py", ".pyi", ".js", ".css", ".html", ".h", ".inl", ".cpp"}
    by_folder: dict[Path, list[Path]] = {}
    for top in (PACKAGE, ROOT / "csrc"):
        for path in sorted(path for path in top.rglob("*") if path.suffix in suffixes and "vendor" not in path.parts):
            by_folder.setdefault(path.parent, []).append(path)
    return dict(sorted(by_folder.items()))


def tree_page() -> Iterator[str]:
    """Yield the page with one line per source file, folder by folder."""
    yield "# The tree\n"
    yield "Every source file with its first sentence."
    yield "[Architecture](architecture.md) explains how the folders fit together,"
    yield "and [Where do I change ...?](where-to-change.md) names the files to edit for common changes.\n"
    for folder, files in source_folders().items():
        yield f"## {folder.relative_to(ROOT).as_posix()}\n"
        package = folder / "__init__.py"
        if package in files:
            yield f"{first_sentence(package)}.\n"
        yield "```text"
        yield from (f"{path.name:24}{first_sentence(path)}".rstrip() for path in files if path != package)
        yield "```\n"


def packages_block() -> Iterator[str]:
    """Yield one line per top-level package, for the README."""
    yield "```text"
    for package in sorted(PACKAGE.glob("*/__init__.py")):
        yield f"{package.parent.name + '/':13}{first_sentence(package)}"
    yield "```\n"


def families_block() -> Iterator[str]:
    """Yield one row per family of models, then the networks that are refused, for the page of models."""
    nested: dict[str, list[str]] = {}
    for outer, text in NESTED.items():
        nested.setdefault(text, []).append(outer)
    yield "\n| models | `model_type` | GGUF architecture | verified by |"
    yield "|---|---|---|---|"
    for family in FAMILIES:
        types = [kind for name in family.model_types for kind in [*nested.get(name, []), name]]
        yield (
            f"| {family.models} | {_code_list(types)} | {_code_list(family.gguf_architectures)} "
            f"| {', '.join(family.verified)} |"
        )
    yield "\nThese are rejected, and the error names the missing part:\n"
    yield "| `model_type` | needs |"
    yield "|---|---|"
    by_part: dict[str, list[str]] = {}
    for name, part in refused_networks().items():
        by_part.setdefault(part, []).append(name)
    yield from (f"| {_code_list(names)} | {part} |" for part, names in by_part.items())
    yield ""


def coverage_page() -> Iterator[str]:
    """Yield every operation of the services that the platform speaks, from the models of the installed botocore."""
    made_by = f"botocore {botocore.__version__}"
    on_disk = DOCS / "coverage.md"
    if on_disk.exists() and made_by not in (text := on_disk.read_text(encoding="utf-8")):
        yield text.removeprefix(NOTE)  # another version has other operations: the page waits for the one it names
        return
    yield "# AWS operations\n"
    yield "The operations that `headrace up` answers; [the platform's page](platform.md) and the pages linked there say"
    yield f"where its answers differ from AWS's. Models: {made_by}.\n"
    yield markdown({*OPERATIONS, *(("sagemaker-runtime", name) for name in INVOCATIONS)})


INVOCATIONS = ("InvokeEndpoint", "InvokeEndpointAsync", "InvokeEndpointWithResponseStream")
"""Operations of `sagemaker-runtime`, which the gateway answers."""


def fields_page() -> Iterator[str]:
    """Yield the page of request fields, by dialect."""
    yield "# Request fields\n"
    yield "A field that would change the answer is either applied, or refused with an error that names it. A refused"
    yield "field may be null, false or empty, or have the value in brackets. Fields that are not listed have no effect;"
    yield "the server's log names them.\n"
    tables: tuple[tuple[str, FieldTable], ...] = (
        ("OpenAI chat completions", CHAT_FIELDS),
        ("OpenAI completions", COMPLETIONS_FIELDS),
        ("OpenAI responses", RESPONSES_FIELDS),
        ("Anthropic messages", MESSAGES_FIELDS),
        ("Ollama chat", OLLAMA_CHAT_FIELDS),
        ("Ollama generate", OLLAMA_GENERATE_FIELDS),
        ("Ollama: `options`", OLLAMA_OPTIONS),
        ("TGI: `parameters`", TGI_FIELDS),
        ("LMI: `parameters`", LMI_FIELDS),
        ("TorchServe: `parameters`", TORCHSERVE_FIELDS),
        ("Hugging Face toolkit, text-generation: `parameters`", TOOLKIT_GENERATION_FIELDS),
        ("Hugging Face toolkit, text-classification: `parameters`", TOOLKIT_CLASSIFICATION_FIELDS),
        ("Hugging Face toolkit, feature-extraction: `parameters`", TOOLKIT_FEATURES_FIELDS),
    )
    for title, table in tables:
        yield f"## {title}\n"
        yield f"Applied: {_code_list(table.applied)}.\n"
        if table.no_effect:
            yield f"Accepted without effect: {_code_list(table.no_effect)}.\n"
        yield "| refused | reason |"
        yield "|---|---|"
        for name in sorted(table.refused):
            refused = table.refused[name]
            neutral = "" if refused.neutral is None else f" (`{json.dumps(refused.neutral)}`)"
            advice = "" if refused.advice == LEAVE_IT_OUT else f". {refused.advice}"
            yield f"| `{name}`{neutral} | {escape(refused.reason)}{escape(advice)} |"
        yield ""


def _code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "settings.md": settings_page,
    "container-names.md": container_names_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
    "cli.md": cli_page,
    "coverage.md": coverage_page,
    "dialects/fields.md": fields_page,
    "tree.md": tree_page,
}
BLOCKS: dict[Path, tuple[str, Callable[[], Iterator[str]]]] = {
    README: ("folders", packages_block),
    DOCS / "models.md": ("families", families_block),
}
"""Parts of pages that are written by hand, between comments with a name."""


def main() -> int:
    """Write or check the generated pages and parts of pages."""
    parser = argparse.ArgumentParser(description="Write the generated pages of the docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    wanted = {DOCS / name: NOTE + "\n".join(page()).rstrip() + "\n" for name, page in PAGES.items()}
    wanted |= {
        path: with_block(path.read_text(encoding="utf-8"), name, block()) for path, (name, block) in BLOCKS.items()
    }
    stale = []
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"Out of date: {', '.join(stale)}. Run: python scripts/docs.py")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
