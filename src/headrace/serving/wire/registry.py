"""
Lookup of dialects by name, and selection of the dialect of a body on `/invocations`.

The settings name the dialect of the native routes; `/v1/...` is always OpenAI's. On `/invocations` the fields of a body
select the dialect: `messages` is an OpenAI chat, `prompt` a completion, anything else is in the configured dialect.
Embedding models, and all models in TEI's dialect, compute vectors or scores instead.
"""

from headrace.core.errors import SettingsError
from headrace.core.generation import ModelInfo
from headrace.serving.wire.dialect import Dialect
from headrace.serving.wire.framing import field_names
from headrace.serving.wire.lmi.dialect import Formatter, Lmi
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.openai.pooling import OpenAIEmbeddings, Rerank, Score
from headrace.serving.wire.tei.dialect import Tei
from headrace.serving.wire.tgi.dialect import Tgi
from headrace.serving.wire.toolkit.dialect import Toolkit
from headrace.serving.wire.torchserve.dialect import TorchServe

_DIALECTS: dict[str, Dialect] = {
    "tgi-3": Tgi(version="3"),
    "tgi-1.0": Tgi(version="1.0"),
    "lmi-17": Lmi(version="17"),
    "lmi-0.27": Lmi(version="0.27"),
    "lmi-0.26": Lmi(version="0.26"),
    "lmi-0.25": Lmi(version="0.25"),
    "openai": OpenAIChat(),
    "torchserve": TorchServe(),
    "tei": Tei("embed"),
    "hf-toolkit": Toolkit(),
}

DIALECT_NAMES = tuple(_DIALECTS)

_PLAIN: tuple[Formatter, ...] = ("json", "jsonlines", "sse")
_FORMATTERS: dict[str, Formatter] = {f"{name}{suffix}": name for suffix in ("", "_chat") for name in _PLAIN}
"""Values of `option.output_formatter`; a `_chat` form equals the plain one, as fields identify chat bodies."""


def get_dialect(name: str, *, output_formatter: str | None = None, tgi_compat: bool = False) -> Dialect:
    """
    Return the dialect with a name from the settings, with LMI's `option.output_formatter` and `option.tgi_compat`.

    Raises:
        SettingsError: a name is unknown, or LMI's options are used with another dialect.
    """
    dialect = _DIALECTS.get(name)
    if dialect is None:
        raise SettingsError(f"Dialect '{name}' is unknown. Choose one of: {', '.join(_DIALECTS)}.")
    if output_formatter is None and not tgi_compat:
        return dialect
    if not isinstance(dialect, Lmi):
        raise SettingsError(f"output_formatter and tgi_compat belong to the lmi dialects, but the dialect is '{name}'.")
    if output_formatter is not None and output_formatter not in _FORMATTERS:
        known = ", ".join(_FORMATTERS)
        raise SettingsError(f"output_formatter '{output_formatter}' is not supported. Choose one of: {known}.")
    formatter = None if output_formatter is None else _FORMATTERS[output_formatter]
    return dialect.configured(formatter=formatter, tgi_compat=tgi_compat)


def select_dialect(
    body: bytes, configured: Dialect, model: ModelInfo | None = None, *, returns_features: bool = False
) -> Dialect:
    """Return the dialect of a body on `/invocations`, given the configured one and the model that is served."""
    names = field_names(body)
    pools = isinstance(configured, Tei) or (model is not None and not model.generates)
    if pools and model is not None and model.pooling is not None:
        for required, dialect in _POOLING_BODIES:
            if required <= names:
                return dialect
        if model.pooling.labels:
            return Toolkit("text-classification") if isinstance(configured, Toolkit) else Tei("predict")
        return Toolkit("feature-extraction") if returns_features else Tei("embed")
    framing = configured.openai_framing if isinstance(configured, Lmi) else "sse"
    if "messages" in names and "inputs" not in names:
        return OpenAIChat(framing=framing)
    if "prompt" in names and "inputs" not in names:
        return OpenAICompletions(framing=framing)
    return configured


_POOLING_BODIES: tuple[tuple[frozenset[str], Dialect], ...] = (
    (frozenset({"input"}), OpenAIEmbeddings()),
    (frozenset({"text_inputs"}), Toolkit("jumpstart-embedding")),
    (frozenset({"query", "documents"}), Rerank()),
    (frozenset({"query", "texts"}), Tei("rerank")),
    (frozenset({"queries", "documents"}), Score()),
    (frozenset({"text_1", "text_2"}), Score()),
)
"""Fields of a body that name its dialect; other bodies that ask for vectors or scores are TEI's or the toolkit's."""
