"""
Lookup of dialects by name, and selection of the dialect of a body on `/invocations`.

The settings name the dialect of the native routes; `/v1/...` is always OpenAI's. On `/invocations` the fields of a body
select the dialect: `messages` is an OpenAI chat, `prompt` a completion, anything else is in the configured dialect.
"""

from headrace.core.errors import SettingsError
from headrace.wire.dialect import Dialect
from headrace.wire.framing import field_names
from headrace.wire.lmi.dialect import Formatter, Lmi
from headrace.wire.openai.chat import OpenAIChat
from headrace.wire.openai.completions import OpenAICompletions
from headrace.wire.tgi.dialect import Tgi
from headrace.wire.torchserve.dialect import TorchServe

_DIALECTS: dict[str, Dialect] = {
    "tgi-3": Tgi(version="3"),
    "tgi-1.0": Tgi(version="1.0"),
    "lmi-17": Lmi(version="17"),
    "lmi-0.27": Lmi(version="0.27"),
    "lmi-0.26": Lmi(version="0.26"),
    "lmi-0.25": Lmi(version="0.25"),
    "openai": OpenAIChat(),
    "torchserve": TorchServe(),
}

DIALECT_NAMES = tuple(_DIALECTS)
DEFAULT_DIALECT = "tgi-3"

_FORMATTERS: dict[str, Formatter] = {
    "json": "json",
    "jsonlines": "jsonlines",
    "sse": "sse",
    "json_chat": "json",
    "jsonlines_chat": "jsonlines",
    "sse_chat": "sse",
}
"""Values of `option.output_formatter`; a `_chat` form equals the plain one, as fields identify chat bodies."""


def get_dialect(name: str, *, output_formatter: str | None = None, tgi_compat: bool = False) -> Dialect:
    """
    Return the dialect with a name from the settings.

    Args:
        name: one of `DIALECT_NAMES`.
        output_formatter: LMI's `option.output_formatter`.
        tgi_compat: LMI's `option.tgi_compat`.

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


def select_dialect(body: bytes, configured: Dialect) -> Dialect:
    """Return the dialect of a body on `/invocations`, given the configured one."""
    names = field_names(body)
    framing = configured.openai_framing if isinstance(configured, Lmi) else "sse"
    if "inputs" in names:
        return configured
    if "messages" in names:
        return OpenAIChat(framing=framing)
    if "prompt" in names:
        return OpenAICompletions(framing=framing)
    return configured
