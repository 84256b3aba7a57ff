"""
Names to dialects, and which dialect a body on `/invocations` is in.

The settings name the dialect of the native routes; `/v1/...` is always OpenAI's. On `/invocations` a body says by its
fields what it is: `messages` is a chat, `prompt` a completion, anything else is in the dialect of the settings.
"""

from headrace.core.errors import SettingsError
from headrace.wire.dialect import Dialect
from headrace.wire.framing import field_names
from headrace.wire.openai.chat import OpenAIChat
from headrace.wire.openai.completions import OpenAICompletions
from headrace.wire.tgi.dialect import Tgi

_DIALECTS: dict[str, Dialect] = {
    "tgi-3": Tgi(version="3"),
    "tgi-1.0": Tgi(version="1.0"),
    "openai": OpenAIChat(),
}

DIALECT_NAMES = tuple(_DIALECTS)
DEFAULT_DIALECT = "tgi-3"


def get_dialect(name: str) -> Dialect:
    """
    The dialect by its name in the settings.

    Raises:
        SettingsError: no dialect has that name.
    """
    if name not in _DIALECTS:
        raise SettingsError(f"Dialect '{name}' is not known. Choose one of: {', '.join(_DIALECTS)}.")
    return _DIALECTS[name]


def select_dialect(body: bytes, configured: Dialect) -> Dialect:
    """The dialect of a body on `/invocations`, when `configured` is that of the settings."""
    names = field_names(body)
    in_lines = configured.name.startswith("lmi")
    if "inputs" in names:
        return configured
    if "messages" in names:
        return OpenAIChat(framing="jsonlines" if in_lines else "sse")
    if "prompt" in names:
        return OpenAICompletions(framing="jsonlines" if in_lines else "sse")
    return configured
