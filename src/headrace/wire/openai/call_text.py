"""
Reading of one tool call from the complete text of its JSON object.

Models write calls in a few forms, and data that looks like a call. A text is a call only if all its arguments are
found, so that a tool never runs with fewer than the model wrote.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

NO_ARGUMENTS: Final = "{}"
_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})
"""Keys of the arguments: the first for Hermes, Qwen and Mistral, the second for Llama 3."""
CALL_KEYS: Final = frozenset({*_ARGUMENT_KEYS, "name", "type", "id", "index", "function"})
"""Keys with which calls begin."""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_string = msgspec.json.Decoder(str).decode
_UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Call:
    """A complete tool call; the arguments are the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


def read_call(text: str, *, needs_arguments: bool = False) -> Call | None:
    """
    Return the call that the text of a JSON object is, or None if it is something else.

    Args:
        text: the object.
        needs_arguments: refuse a call that only names its function, as more of it may be missing.
    """
    try:
        _refuse_repeated_keys(text)
        members = _members(text)
        is_wrapped = "name" not in members and "function" in members
        return _wrapped_call(members) if is_wrapped else _call(members, needs_arguments=needs_arguments)
    except _UNREADABLE:
        return None


def read_arguments(text: str) -> str | None:
    """Return the text of an object of arguments, or None if it is not one; nothing and `null` are no arguments."""
    text = text.strip()
    if text in {"", "null"}:
        return NO_ARGUMENTS
    try:
        _refuse_repeated_keys(text)
        return text if isinstance(msgspec.json.decode(text), dict) else None
    except _UNREADABLE:
        return None


def _wrapped_call(members: Mapping[str, msgspec.Raw]) -> Call | None:
    """Return a call in OpenAI's form; with `parameters` it is the declaration of a function."""
    inner = _members(members["function"])
    if not _ARGUMENT_KEYS.isdisjoint(members) or "arguments" not in inner:
        return None
    return _call(inner, needs_arguments=True)


def _call(members: Mapping[str, msgspec.Raw], *, needs_arguments: bool) -> Call | None:
    keys = _ARGUMENT_KEYS & members.keys()
    if "name" not in members or len(keys) > 1 or (not keys and (needs_arguments or not _is_bare_name(members))):
        return None
    if "parameters" in members and "description" in members:  # a declared function, which models repeat
        return None
    arguments = NO_ARGUMENTS
    for key in keys:
        found = _arguments(bytes(members[key]).decode())
        if found is None:
            return None
        arguments = found
    return Call(_string(members["name"]), arguments)


def _is_bare_name(members: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether a call without arguments has nothing beside its name, which could be meant as an argument."""
    return members.keys() <= {"name", "type"} and ("type" not in members or _string(members["type"]) == "function")


def _arguments(written: str) -> str | None:
    """Return the arguments from a value: an object, or a text that has one."""
    return read_arguments(_string(written) if written.startswith('"') else written)


def _refuse_repeated_keys(text: str) -> None:
    """Raise `ValueError` if a key is repeated in an object: readers would drop one of the values."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("repeated key")

    json.loads(text, object_pairs_hook=check)
