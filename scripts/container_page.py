"""The page of other servers' names, one row for each effect: part of `scripts/docs.py`."""

from collections.abc import Iterator, Mapping

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
from headrace.serving.settings.values import flag_name

_OPENING = """\
# Names of other servers

Keep the configuration of the container that you move from: Headrace reads the variables and files of the containers of
SageMaker, TGI, LMI (DJL), vLLM, SGLang, llama.cpp and TorchServe.

```bash
HF_MODEL_ID=smollm2 MAX_TOTAL_TOKENS=2048 headrace serve
```

Search this page for a name. Each row has all names with the same effect.

| written here | write it as |
|---|---|
| `NAME`, `SM_VLLM_NAME`, `SM_SGLANG_NAME`, `SM_LLAMA_CPP_NAME` | a variable |
| `option.name` | a key of `serving.properties`, or the variable `OPTION_NAME` |
| `name` in lower case | a key of `serving.properties`, or the variable `SERVING_NAME` |

- Headrace reads names with \\* only as a container (`--container`, and on the platform): they are too general
  elsewhere.
- A name without effect prints a warning with the reason, unless its value asks for what Headrace does anyway.
- If Headrace does not support the value of a name (another task, a custom handler), the server does not start.
- An unknown name that begins with `option.`, `OPTION_`, `SERVING_`, `SM_`, `HF_`, `TS_`, `MMS_` or `SAGEMAKER_` prints
  a warning that suggests the most similar known name.
- The files of a model set formats, limits and paths in their own folder; for anything else they need
  [`--trust-model-files`](settings.md), which is on in containers and on the platform.
- Variables that begin with `NEURON_` have no effect: Headrace uses no Neuron device or compiler.
"""
_SECTIONS = (
    ("Names that set a setting", "| setting | names |"),
    ("Names that depend on the device or the backend", "| effect | names |"),
    ("Names with fixed values", "| values, as any other stops the start | names |"),
    ("Names that a library reads", "| read by | names |"),
    ("Names without effect", "| why | names |"),
)
_SETS, _DEPENDS, _REQUIRES, _READ, _NO_EFFECT = range(len(_SECTIONS))


def container_names_page() -> Iterator[str]:
    """Yield the page of other servers' names: the names of each effect in one row."""
    yield _OPENING
    groups = _groups(_names())
    for number, (title, columns) in enumerate(_SECTIONS):
        yield f"## {title}\n"
        yield f"{columns}\n|---|---|"
        rows = {text: names for (section, text), names in groups.items() if section == number}
        yield from (f"| {text} | {', '.join(names)} |" for text, names in sorted(rows.items()))
        yield ""
    yield "## TorchServe's `model-config.yaml`\n"
    yield "| effect | keys |\n|---|---|"
    before = {_SETS: "sets ", _REQUIRES: "only ", _READ: "read by ", _NO_EFFECT: "no effect: "}
    for (section, text), names in sorted(
        _groups({f"`{key}`": meaning for key, meaning in MODEL_CONFIG.items()}).items()
    ):
        yield f"| {before.get(section, '')}{text} | {', '.join(names)} |"


def _names() -> dict[str, Meaning]:
    """Return the meanings of all names outside `model-config.yaml`, by their spelling on the page."""
    names: dict[str, Meaning] = {
        f"`{name}`" + (" \\*" if name in GENERAL_NAMES else ""): meaning for name, meaning in ENVIRONMENT.items()
    }
    names |= {f"`option.{key}`": meaning for key, meaning in OPTIONS.items()}
    names |= {f"`{key}`": meaning for key, meaning in PROPERTIES.items()}
    for prefix, flags in FLAGS.items():
        names |= {f"`{prefix}{key.upper()}`": meaning for key, meaning in flags.items()}
    return names


def _groups(names: Mapping[str, Meaning]) -> dict[tuple[int, str], list[str]]:
    """Return the names of each effect, by section and text."""
    groups: dict[tuple[int, str], list[str]] = {}
    for name, meaning in names.items():
        section, text = _effect(meaning)
        groups.setdefault((section, text.replace("|", "\\|")), []).append(name)
    return groups


def _effect(meaning: Meaning) -> tuple[int, str]:
    """Return the section and the text of a meaning."""
    section, text = _DEPENDS, ""
    match meaning:
        case Fills():
            flag = f"`{flag_name(meaning.field)}`"
            section, text = _SETS, flag if meaning.vllm is None else f"{flag}; with vLLM a part of `--vllm-args`"
        case FillsPart():
            section, text = _SETS, f"a part of `{flag_name(meaning.field)}`"
        case NoEffect():
            section, text = _NO_EFFECT, meaning.why
        case Requires():
            section, text = _REQUIRES, ", ".join(f"`{value}`" for value in meaning.values)
        case UsedElsewhere():
            section, text = _READ, meaning.by
        case ForBackends():
            text = f"with {' or '.join(meaning.backends)}: {_clause(meaning.meaning)}; {_otherwise(meaning)}"
        case OnGpu():
            section, text = _on_gpu(meaning)
    return section, text


def _on_gpu(meaning: OnGpu) -> tuple[int, str]:
    gpu, cpu = _clause(meaning.gpu), _clause(meaning.cpu)
    if gpu == cpu:
        return _effect(meaning.cpu)
    if isinstance(meaning.gpu, ForBackends) and _otherwise(meaning.gpu) == f"otherwise {cpu}":
        return _DEPENDS, f"on a GPU {gpu}"
    return _DEPENDS, f"on a GPU: {gpu}; on a CPU: {cpu}"


def _clause(meaning: Meaning) -> str:
    section, text = _effect(meaning)
    return {_SETS: "sets ", _NO_EFFECT: "no effect: "}.get(section, "") + text


def _otherwise(meaning: ForBackends) -> str:
    return f"otherwise {_clause(meaning.otherwise)}"
