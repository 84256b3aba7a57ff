"""
The names of SageMaker, TGI, LMI (DJL), vLLM, SGLang, llama.cpp and TorchServe containers, each with its meaning.

They are in `container_names.txt`, which describes its format.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.serving.settings import container_values
from headrace.serving.settings.container_meanings import (
    Fills,
    ForBackends,
    Meaning,
    NoEffect,
    Requires,
    UsedElsewhere,
    by_value,
)
from headrace.serving.settings.container_values import ONLY_VLLM, if_true, unless, vllm_argument

_NAMED: Final = {name: value for name, value in vars(container_values).items() if isinstance(value, Meaning)}
"""What an upper-case word in the table means."""


def read_tables(text: str) -> dict[str, dict[str, Meaning]]:
    """Return the meanings of names by section and name."""
    tables: dict[str, dict[str, Meaning]] = {"meanings": dict(_NAMED)}
    table = named = tables["meanings"]
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("["):
            table = tables.setdefault(line.strip("[]"), {})
        elif line.startswith("+ "):
            table |= tables[line.removeprefix("+ ")]
        elif line and not line.startswith("#"):
            names, mark, right = re.split(r"(:| =) ?", line, maxsplit=1)
            meaning = _without_field(right) if mark == ":" else named.get(right)
            table.update({name: meaning or _field(name, right, named) for name in names.split()})
    return tables


def _without_field(text: str) -> Meaning:
    """Return the meaning of the text after a colon."""
    why, _, quiet = text.partition(" | ")
    if why.startswith("read by "):
        return UsedElsewhere(why.removeprefix("read by "))
    if why.startswith("must be "):
        values, _, reason = why.removeprefix("must be ").partition(". ")
        return Requires(tuple(values.split(", ")), reason)
    return NoEffect(why, tuple(filter(None, quiet.split(", "))))


def _field(name: str, text: str, named: Mapping[str, Meaning]) -> Meaning:
    """Return the meaning of a name that sets a field or an argument of vLLM, from the text after the equals sign."""
    field, _, condition = text.partition(", ")
    if text.partition(" ")[0].partition(".")[0] == "vllm":
        argument, _, reason = text.partition(" ")
        otherwise = named.get(reason, ONLY_VLLM)
        assert isinstance(otherwise, NoEffect), reason
        return vllm_argument(*(argument.split(".")[1:] or [name]), otherwise=otherwise)
    assert not field.isupper(), f"{field} is no meaning"
    if condition.startswith("if true: "):
        return Fills(field, if_true(condition.removeprefix("if true: ")))
    kind, _, rest = condition.partition(": ")
    if kind.startswith("for "):
        otherwise = _without_field(rest)
        assert isinstance(otherwise, NoEffect), rest
        return ForBackends(tuple(kind.split()[1:]), Fills(field), otherwise)
    if kind.startswith("by value"):
        rows = (row.partition(" -> ") for row in rest.split("; "))
        texts = {values: meant.partition(", ") for values, _, meant in rows}
        converted = {values: (None if text == "unset" else text, remark) for values, (text, _, remark) in texts.items()}
        return Fills(field, by_value(converted, kind.removeprefix("by value").strip(" ()")))
    if condition:
        return Fills(field, unless(rest, *kind.removeprefix("unless ").split()))
    return Fills(field or name)


_TABLES: Final = read_tables(Path(__file__).with_name("container_names.txt").read_text(encoding="utf-8"))
ENVIRONMENT: Final = _TABLES["environment"]
OPTIONS: Final = _TABLES["option."]
PROPERTIES: Final = _TABLES["properties"]
MODEL_CONFIG: Final = _TABLES["model-config.yaml"]
FLAGS: Final = {prefix: _TABLES[prefix] for prefix in ("SM_VLLM_", "SM_SGLANG_", "SM_LLAMA_CPP_")}
"""Prefix of the variables of AWS's containers → the flags of the server in them."""


def reasons_of(section: str) -> dict[str, str]:
    """Return why the names of a section have no effect."""
    return {name: meaning.why for name, meaning in _TABLES[section].items() if isinstance(meaning, NoEffect)}


_GENERAL = (
    "API_KEY DTYPE HOSTNAME JSON_OUTPUT KV_CACHE_DTYPE MASTER_ADDR MASTER_PORT MAX_BATCH_SIZE MODEL_ID NGROK "
    "NGROK_AUTHTOKEN NGROK_EDGE OTLP_ENDPOINT OTLP_SERVICE_NAME PAYLOAD_LIMIT PORT PREDICT_TIMEOUT PROMETHEUS_PORT "
    "QUANTIZE REVISION SHARDED USAGE_STATS"
)
GENERAL_NAMES = frozenset(_GENERAL.split())
"""Names that often mean something else outside a container, and are read only inside one."""

FAMILY_PREFIXES = ("HF_", "MAX_", "MMS_", "SAGEMAKER_", "SM_", "TS_")
"""Beginnings of names above: another name with one of them, unless it is of the pattern below, is probably meant."""

USED_ELSEWHERE = re.compile(
    r"HF_(HUB|DATASETS|EVALUATE|MODULES|METRICS|XET|ENDPOINT|ASSETS|TOKEN|INFERENCE|DEBUG|UPDATE|ALLOW|DEACTIVATE)(_.*)?|"
    r"SM_(MODEL_DIR|CHANNELS?|HPS?|HOSTS|CURRENT|INPUT|OUTPUT|LOG_LEVEL|MODULE|USER|FRAMEWORK|TRAINING|NETWORK|NUM_CPUS|"
    r"NUM_NEURONS|RESOURCE|INTERMEDIATE|INSTANCE|MASTER)(_.*)?|MAX_JOBS"
)
"""Names of libraries and of SageMaker's toolkits with those beginnings."""

_SERVER_FIELDS = frozenset(
    {"port", "api_key", "max_body_bytes", "shutdown_grace_s", "cors_allow_origins", "log_format", "log_level"}
)
SERVER_NAMES = frozenset(
    name for name, meaning in ENVIRONMENT.items() if isinstance(meaning, Fills) and meaning.field in _SERVER_FIELDS
)
"""Variables that set what a server has whichever model it serves: a model's own code, too."""

MODEL_KEYS = ("handler.model_checkpoint_dir", "handler.model_path", "handler.model_id", "handler.model_name")
"""Keys of `model-config.yaml` that may name the model, the most specific one first."""
