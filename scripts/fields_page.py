"""The page of request fields: what each dialect applies, ignores and refuses. Part of `scripts/docs.py`."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.serving.wire.anthropic.dialect import FIELDS as MESSAGES_FIELDS
from headrace.serving.wire.constraints import ConstraintFields
from headrace.serving.wire.fields import LEAVE_IT_OUT, struct_fields
from headrace.serving.wire.infill import FIELDS as INFILL_FIELDS
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

if TYPE_CHECKING:
    from headrace.serving.wire.fields import FieldTable

_TABLES: tuple[tuple[str, "FieldTable"], ...] = (
    ("OpenAI chat", CHAT_FIELDS),
    ("OpenAI completions", COMPLETIONS_FIELDS),
    ("OpenAI responses", RESPONSES_FIELDS),
    ("Anthropic messages", MESSAGES_FIELDS),
    ("Ollama chat", OLLAMA_CHAT_FIELDS),
    ("Ollama generate", OLLAMA_GENERATE_FIELDS),
    ("Ollama `options`", OLLAMA_OPTIONS),
    ("llama-server `/infill`", INFILL_FIELDS),
    ("TGI", TGI_FIELDS),
    ("LMI", LMI_FIELDS),
    ("TorchServe", TORCHSERVE_FIELDS),
    ("toolkit generation", TOOLKIT_GENERATION_FIELDS),
    ("toolkit classification", TOOLKIT_CLASSIFICATION_FIELDS),
    ("toolkit features", TOOLKIT_FEATURES_FIELDS),
)
_CONSTRAINTS = struct_fields(ConstraintFields)
_OPENING = """\
# Request fields

Look up whether Headrace applies a field of your client, ignores it or refuses it.
A field that would change the answer and is not supported is an error that names the field, never a different answer.

- *TGI*, *LMI*, *TorchServe* and *toolkit* (the [Hugging Face Inference Toolkit](hf-toolkit.md)) have these fields in
  `parameters`.
- *constraints* are these fields, which [constrain the answer](../structured-output.md): {constraints}.
- Fields that this page does not list have no effect; the server's log names them.
"""


def fields_page() -> Iterator[str]:
    """Yield the page of request fields."""
    yield _OPENING.format(constraints=_code_list(_CONSTRAINTS))
    yield "## Applied\n"
    yield "| request | fields |\n|---|---|"
    for title, table in _TABLES:
        constrains = table.applied >= _CONSTRAINTS
        names = _code_list(table.applied - _CONSTRAINTS if constrains else table.applied)
        yield f"| {title} | {names}{', and constraints' if constrains else ''} |"
    yield "\n## Accepted without effect\n"
    yield "| request | fields |\n|---|---|"
    yield from (f"| {title} | {_code_list(table.no_effect)} |" for title, table in _TABLES if table.no_effect)
    yield "\n## Refused\n"
    yield "The request fails with an error, unless the field is null, false or empty, or has the value in brackets.\n"
    yield "| fields | reason | requests |\n|---|---|---|"
    yield from sorted(_refused_rows(), key=lambda row: row.replace("`", ""))


def _refused_rows() -> Iterator[str]:
    """Yield one row for the fields that the same requests refuse for the same reason."""
    requests: dict[tuple[str, str], list[str]] = {}
    for title, table in _TABLES:
        for name, refused in table.refused.items():
            neutral = "" if refused.neutral is None else f" (`{json.dumps(refused.neutral)}`)"
            advice = "" if refused.advice == LEAVE_IT_OUT else f". {refused.advice}"
            requests.setdefault((f"`{name}`{neutral}", f"{refused.reason}{advice}"), []).append(title)
    fields: dict[tuple[str, str], list[str]] = {}
    for (name, reason), titles in requests.items():
        fields.setdefault((reason.replace("|", "\\|"), ", ".join(titles)), []).append(name)
    for (reason, titles), names in fields.items():
        where = titles.replace(", ".join(title for title, _ in _TABLES[:3]), "OpenAI (all)")
        yield f"| {', '.join(sorted(names))} | {reason} | {where} |"


def _code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
