"""
Generate pages of `docs/` and parts of pages from the code.

Settings, names of other servers, metrics, errors, the command line, operations of AWS, request fields, families of
models, the list of folders.

python scripts/docs.py            write them
python scripts/docs.py --check    exit 1 if one of them differs from the code
python scripts/docs.py --tree csrc    print one line per source file of a folder instead
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from aws_operations import markdown as aws_markdown
from blocks import with_block
from cli_page import cli_page
from container_page import container_names_page
from fields_page import fields_page
from popular_models import POPULAR
from prometheus_client import Metric

from headrace.core import errors
from headrace.core.engine_stats import EngineStats
from headrace.core.exposition import families
from headrace.core.generation import ModelInfo
from headrace.core.metrics import Metrics
from headrace.core.sizes import format_size
from headrace.inference.models.aliases import ALIASES
from headrace.inference.models.families.registry import FAMILIES, NESTED, backends_with, refused_networks
from headrace.platform.cluster.many_models.metrics import own_families as many_models_families
from headrace.platform.gateway.metrics import GatewayMetrics
from headrace.platform.gateway.metrics import families as gateway_families
from headrace.platform.host.operations import OPERATIONS
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.server.handlers.metrics import families as handler_families
from headrace.serving.server.handlers.metrics import torchserve_families
from headrace.serving.settings.docs import SettingRow, setting_rows
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.wire.aws.errors import AwsError
from headrace_handler.contract import Load

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PACKAGE = ROOT / "src" / "headrace"
NOTE = "<!-- Made by scripts/docs.py; change the code that it describes instead. -->\n"


def escape(text: str) -> str:
    """Escape a text for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def settings_page() -> Iterator[str]:
    """Yield the page of settings."""
    yield "# Settings\n"
    yield "Find what you can change about a server. Each setting is a flag of `headrace serve` and a variable:\n"
    yield "```bash\nheadrace serve smollm2 --max-model-len 2048"
    yield "HEADRACE_MAX_MODEL_LEN=2048 headrace serve smollm2\n```\n"
    yield "- The first of these that sets a value counts: the flag, the variable, files in the model's folder"
    yield "  (`serving.properties`, `model-config.yaml`), a [name of another server](container-names.md), the default."
    yield "- Files in the model's folder may set only what is marked \\*: formats, limits and paths in that folder"
    yield "  (see `--trust-model-files`)."
    yield "- If a value is invalid or a `HEADRACE_*` name unknown, the server does not start.\n"
    yield from settings_tables(setting_rows(), "##")
    yield "\n## Settings of the platform\n"
    yield "They are flags of `headrace up` and variables that begin with `HEADRACE_UP_`.\n"
    yield from settings_tables(setting_rows(PlatformSettings), "###")


def settings_tables(rows: Iterable[SettingRow], level: str) -> Iterator[str]:
    """Yield a table for each group of settings, with one row per setting."""
    for group, members in groupby(rows, key=attrgetter("group")):
        yield f"{level} {group}\n"
        yield "| setting | meaning |"
        yield "|---|---|"
        for row in members:
            default = f"`{row.default_text}`" if row.default_text else row.default_note
            expected = row.rule.expected.replace("*", "\\*")
            values = f"{expected}; default: {default}" if default else expected
            mark = " \\*" if row.is_for_files else ""
            yield f"| `{row.flag}`{mark}<br>`{row.env}` | {escape(row.help)}<br>*{escape(values)}* |"
        yield ""


def metrics_page() -> Iterator[str]:
    """Yield the page of metrics, each under all of its names."""
    yield "# Metrics\n"
    yield "All metrics of `GET /metrics`, for dashboards and alerts: [monitoring](monitoring.md) shows how to get them."
    yield "Names that begin with `tgi_` and `vllm:` repeat values, so that dashboards for TGI and vLLM keep working.\n"
    yield "## Metrics of a server\n"
    info = ModelInfo(
        name="m", revision=None, family="llama", dtype="bf16", kv_dtype="bf16", device="cpu", max_model_len=1,
        max_prompt_tokens=1, max_num_seqs=1, vocab_size=1, num_parameters=1, has_chat_template=False, created_s=0,
    )  # fmt: skip
    yield from metrics_table(families(Metrics(stats=EngineStats, info=lambda: info, in_flight=lambda: 0)))
    yield "\n## Metrics of the platform\n"
    yield "The gateway exports these, at `/metrics` of `headrace up`.\n"
    yield from metrics_table(gateway_families(GatewayMetrics()))
    yield "\nAn instance of a [multi-model endpoint](multi-model.md) exports the sums of its models' metrics, and:\n"
    yield from (
        "| metric | kind | meaning |",
        "|---|---|---|",
        "| `headrace_loaded_models` | gauge | Models in memory. |",
    )
    yield "\nA [server with many models](many-models.md) exports those of loaded ones with the label `model`, and:\n"
    yield from metrics_table(many_models_families({}, {}, {}))
    yield "\n## Metrics of a model's own code\n"
    yield "A server whose model [has its own code](handlers.md) exports these at `/metrics`, with the label `model`."
    yield "The metrics that the code itself reports follow under their own names.\n"
    load = Load(model_name="m", model_dir=Path(), entry="")
    yield from metrics_table(handler_families(HandlerPool(HandlerSpec(contract="sagemaker", load=load))))
    yield "\nTorchServe's metrics port (8082) has these, with the labels `model_name`, `model_version`, `hostname`:\n"
    yield from metrics_table(torchserve_families(()))


def metrics_table(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield one row per value, with all the names that it has."""
    rows: dict[tuple[str, str], list[str]] = {}
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        rows.setdefault((metric.documentation, metric.type), []).append(f"`{name}`")
    has_aliases = any(len(names) > 1 for names in rows.values())
    yield "| metric | kind | meaning |" + (" also as |" if has_aliases else "")
    yield "|---|---|---|" + ("---|" if has_aliases else "")
    for (meaning, kind), (name, *aliases) in rows.items():
        yield f"| {name} | {kind} | {escape(meaning)} |" + (f" {', '.join(aliases)} |" if has_aliases else "")


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
    yield "Handle errors by their code and status, not by their message. `retryable` says whether the same request may"
    yield "succeed later. Each dialect sends the error in the format that its clients expect, some with another status"
    yield "([dialects](dialects/index.md)). AWS operations fail with AWS's own codes. A command prints the error as one"
    yield "sentence, and exits with code 2 if the caller can fix it, otherwise with 1."
    yield "For a message and its fix, see [troubleshooting](troubleshooting.md).\n"
    yield "| HTTP | code | retryable | meaning |"
    yield "|---|---|---|---|"
    _, *kinds = tree(errors.HeadraceError)
    for kind in sorted(kinds, key=lambda kind: kind.http_status):
        meaning = (inspect.getdoc(kind) or "").splitlines()[0]
        yield f"| {kind.http_status} | `{kind.code}` | {'yes' if kind.retryable else 'no'} | {escape(meaning)} |"


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
    """Yield the page with one line per folder of sources."""
    yield "# The tree\n"
    yield "Find the folder of a part: this page lists all folders of sources with their purpose."
    yield "`python scripts/docs.py --tree FOLDER` prints one line per file of a folder,"
    yield "[architecture](architecture.md) explains how the folders fit together,"
    yield "and [Where do I change ...?](where-to-change.md) names the files to edit for common changes.\n"
    yield "| folder | purpose |"
    yield "|---|---|"
    for folder, files in source_folders().items():
        package = folder / "__init__.py"
        about = first_sentence(package) if package in files else FOLDERS_WITHOUT_PACKAGE[folder.name]
        yield f"| `{folder.relative_to(ROOT).as_posix()}` | {escape(about)} |"


FOLDERS_WITHOUT_PACKAGE = {
    "csrc": "The native runtime: layout of weights, packing, threads, sampling, Python bindings",
    "kernels": "Kernels, compiled once for each instruction set",
    "simd": "Vector primitives of each instruction set",
    "shell": "What `headrace env` gives to a shell: a redirection for botocore, defaults of the SageMaker SDKs",
    "web": "HTML, CSS and JavaScript of a page for browsers",
}


def files_of(top: Path) -> Iterator[str]:
    """Yield one line per source file below a folder, with its first sentence."""
    for folder, files in source_folders().items():
        if folder.is_relative_to(top.absolute()):
            yield f"\n{folder.relative_to(ROOT).as_posix()}/"
            yield from (f"  {path.name:24}{first_sentence(path)}".rstrip() for path in files)


def decisions_page() -> Iterator[str]:
    """Yield the list of decisions, by their titles."""
    yield "# Decisions\n"
    yield "See why Headrace is built as it is, before you change it: each page has the context of a choice, the choice,"
    yield "and what it costs or what was measured.\n"
    for path in sorted((DOCS / "decisions").glob("0*.md")):
        number, _, title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").partition(". ")
        yield f"{number}. [{title}]({path.name})"


def packages_block() -> Iterator[str]:
    """Yield one line per top-level package, for contributors."""
    yield "```text"
    for package in sorted(PACKAGE.glob("*/__init__.py")):
        yield f"{package.parent.name + '/':13}{first_sentence(package)}"
    yield "```\n"


def aliases_block() -> Iterator[str]:
    """Yield one row per built-in alias, for the page of models."""
    yield "\n| alias | model | download | on disk |"
    yield "|---|---|---:|---:|"
    for alias in ALIASES.values():
        download = sum(part.wheel_bytes for part in alias.parts)
        yield f"| `{alias.name}` | {alias.title} | {format_size(download)} | {format_size(alias.stored_bytes)} |"
    yield ""


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
    yield "\nHeadrace rejects these, and the error names the missing part:\n"
    yield "| `model_type` | needs | other backends |"
    yield "|---|---|---|"
    by_part: dict[str, list[str]] = {}
    for name, part in refused_networks().items():
        by_part.setdefault(part, []).append(name)
    for part, names in by_part.items():
        yield f"| {_code_list(names)} | {part} | {_elsewhere_of(part)} |"
    yield ""


def popular_block() -> Iterator[str]:
    """Yield the most pulled models and whether the native backend runs them, for the page of models."""
    types = {name for family in FAMILIES for name in family.model_types}
    types |= {outer for outer, text in NESTED.items() if text in types}
    architectures = {name for family in FAMILIES for name in family.gguf_architectures}
    native = [model for model in POPULAR if model.model_type in types and model.architecture in architectures]
    yield f"\nOf these {len(POPULAR)}, Headrace's own engine runs {len(native)}, from folders and GGUF files:\n"
    yield "| model | `model_type` | GGUF architecture | runs on |"
    yield "|---|---|---|---|"
    for model in POPULAR:
        backends = "native" if model in native else _elsewhere(model.model_type)
        yield f"| {model.name} | `{model.model_type}` | `{model.architecture}` | {backends} |"
    yield ""


def _elsewhere(model_type: str) -> str:
    return _elsewhere_of(refused_networks().get(model_type, ""))


def _elsewhere_of(part: str) -> str:
    return backends_with(part).removeprefix("--backend ").removesuffix(" runs it")


def coverage_page() -> Iterator[str]:
    """Yield the operations of AWS that the platform handles, and the members that it does not apply."""
    yield "# AWS operations\n"
    yield "Check here whether a call of your code works on `headrace up`, which of its members have no effect, and what"
    yield "to use instead of the rest. [Endpoints](endpoints.md#where-it-differs-from-sagemaker),"
    yield "[components](components.md#where-it-differs-from-sagemaker),"
    yield "[the gateway](gateway.md#where-it-differs-from-sagemaker)"
    yield "and [CloudWatch](cloudwatch.md#supported-operations) say where answers differ from AWS's.\n"
    yield from aws_markdown({*OPERATIONS, *(("sagemaker-runtime", name) for name in INVOCATIONS)})


INVOCATIONS = ("InvokeEndpoint", "InvokeEndpointAsync", "InvokeEndpointWithResponseStream")
"""Operations of `sagemaker-runtime`, which the gateway answers."""


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
    "decisions/README.md": decisions_page,
}
BLOCKS: dict[str, tuple[Path, Callable[[], Iterator[str]]]] = {
    "folders": (CONTRIBUTING, packages_block),
    "aliases": (DOCS / "models.md", aliases_block),
    "popular": (DOCS / "models.md", popular_block),
    "families": (DOCS / "supported-models.md", families_block),
}
"""Parts of pages that are written by hand, between comments with a name."""


def main() -> int:
    """Write or check the generated pages and parts of pages."""
    parser = argparse.ArgumentParser(description="Write the generated pages of the docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    parser.add_argument("--tree", type=Path, metavar="FOLDER", help="print one line per source file of this folder")
    options = parser.parse_args()
    if options.tree:
        print("\n".join(files_of(options.tree)))
        return 0
    check = options.check
    wanted = {DOCS / name: NOTE + "\n".join(page()).rstrip() + "\n" for name, page in PAGES.items()}
    for name, (path, block) in BLOCKS.items():
        wanted[path] = with_block(wanted.get(path) or path.read_text(encoding="utf-8"), name, block())
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
