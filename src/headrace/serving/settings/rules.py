"""
Rules that parse the text of one setting.

A `Rule` turns text into a value and describes what it expects. All sources of settings (flags, environment, properties)
give text, so that a value is parsed and refused in the same way whichever source it came from.
"""

import ipaddress
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.core.sizes import parse_size

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_HOST_PATTERN = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Rule:
    """Parses the text of one setting; `read` raises `ValueError` if the text is not as expected."""

    expected: str
    """Ends the sentence "expected …"."""
    read: Callable[[str], Any]
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    """A command line flag without a value: `--name / --no-name`."""
    is_repeatable: bool = False
    """A command line option that may be given several times."""
    is_secret: bool = False
    """True for a value that must never be shown or logged."""
    placeholder: str = ""
    """Stands for the value in the help; empty: a word of the setting's name does."""


class FileScope(Enum):
    """The right of a model's files to set a setting."""

    NEVER = "only flags and the environment set it: it concerns others, this machine, or code"
    ANY = "a format or a limit"
    INSIDE = "a path, which must lie in the model's folder"
    LIMITS = "arguments of an engine, of which files set formats and limits"


def setting(rule: Rule, default: Any, files: FileScope = FileScope.NEVER) -> Any:
    """Return a dataclass field whose text is parsed by `rule`, and which only flags and the environment set."""
    return field(default=default, metadata={"rule": rule, "files": files})


def model_setting(rule: Rule, default: Any, files: FileScope = FileScope.ANY) -> Any:
    """Return a field that the files of a model may set too."""
    return setting(rule, default, files)


def text(expected: str, placeholder: str = "") -> Rule:
    """Accept any text that is not empty."""
    return Rule(expected=expected, read=_read_text, placeholder=placeholder)


def secret(expected: str, placeholder: str = "") -> Rule:
    """Accept text that is never shown."""
    return Rule(expected=expected, read=_read_text, is_secret=True, placeholder=placeholder)


def choice(*names: str) -> Rule:
    """Accept one of a few names, ignoring case."""

    def read(raw: str) -> str:
        value = raw.strip().lower()
        if value not in names:
            raise ValueError(raw)
        return value

    return spelled(read, *names)


def spelled(read: Callable[[str], str], *names: str) -> Rule:
    """Accept one of a few names, in any spelling that `read` maps to it."""
    return Rule(expected=f"one of {', '.join(names)}", read=read, choices=names)


def boolean() -> Rule:

    def read(raw: str) -> bool:
        value = raw.strip().lower()
        if value not in _TRUE | _FALSE:
            raise ValueError(raw)
        return value in _TRUE

    return Rule(expected="true or false", read=read, is_flag=True)


def integer(minimum: int, maximum: int | None = None) -> Rule:

    def read(raw: str) -> int:
        value = int(raw)
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(raw)
        return value

    limits = f"from {minimum} up" if maximum is None else f"from {minimum} to {maximum}"
    return Rule(expected=f"a whole number {limits}", read=read, placeholder="N")


def number(minimum: float, unit: str) -> Rule:
    """Accept a finite number of a unit."""

    def read(raw: str) -> float:
        value = float(raw)
        if not math.isfinite(value) or value < minimum:
            raise ValueError(raw)
        return value

    return Rule(expected=f"a number of {unit} from {minimum:g} up", read=read, placeholder=unit.upper())


def size(minimum: int = 1) -> Rule:
    """Accept a number of bytes, such as `2GiB`, `500MB` or `1048576`."""
    expected = "a size such as 2GiB, 500MB or 1048576"
    return Rule(expected=expected, read=lambda raw: parse_size(raw, minimum=minimum), placeholder="SIZE")


def share_or_auto() -> Rule:
    """Accept a number from 0 to 1, or `auto`, which is None."""

    def read(raw: str) -> float | None:
        value = None if raw.strip().lower() == "auto" else float(raw)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(raw)
        return value

    return Rule(expected="auto or a number from 0 to 1", read=read, placeholder="NUMBER")


def share() -> Rule:

    def read(raw: str) -> float:
        value = float(raw)
        if not 0 < value <= 1:
            raise ValueError(raw)
        return value

    return Rule(expected="a number above 0, at most 1", read=read, placeholder="NUMBER")


def count_or_max() -> Rule:
    """Accept a whole number from 1 up, or `max`, which is 0."""
    count = integer(1)
    return Rule(
        expected="max or a whole number from 1 up",
        read=lambda raw: 0 if raw.strip().lower() == "max" else count.read(raw),
        placeholder="N",
    )


def json_object(example: str) -> Rule:
    """Accept a JSON object, which is a dict."""
    return Rule(expected=f"a JSON object such as {example}", read=read_json_object, placeholder="JSON")


def path(expected: str) -> Rule:
    """Accept a path, of a file that is opened later or a folder that need not exist yet."""
    placeholder = expected.removeprefix("a ").upper()
    return Rule(expected=expected, read=lambda raw: Path(_read_text(raw)).expanduser(), placeholder=placeholder)


def names() -> Rule:
    return Rule(expected="names separated by commas", read=_read_names, placeholder="NAMES")


def host_names() -> Rule:
    """Accept host names separated by commas; `*.` before a name, or `*` alone, are patterns."""

    def read(raw: str) -> tuple[str, ...]:
        hosts = tuple(name.lower().removesuffix(".") for name in _read_names(raw))
        if not all(map(_HOST_PATTERN.fullmatch, hosts)):
            raise ValueError(raw)
        return hosts

    return Rule(expected="host names such as devbox or *.example.com, without a port", read=read, placeholder="NAMES")


def address() -> Rule:
    """Accept `http://host:port`, where the scheme may be left out, or `off`, which is None."""

    def read(raw: str) -> str | None:
        value = raw.strip()
        if value.lower() in _FALSE:
            return None
        parts = urlsplit(value if "://" in value else f"http://{value}")
        if parts.scheme != "http" or not parts.hostname or parts.port is None or parts.path.strip("/") or "@" in value:
            raise ValueError(raw)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"http://{host}:{parts.port}"

    return Rule(expected="off, or an address such as http://127.0.0.1:8081", read=read)


def host_and_port() -> Rule:
    """Accept the address of a machine as in a URL, `host` or `host:port`; an IPv6 address is in brackets."""

    def read(raw: str) -> str:
        value = raw.strip().lower()
        parts = urlsplit(f"//{value}")
        host = parts.hostname or ""
        is_host = ":" in host or (_HOST_PATTERN.fullmatch(host) and "*" not in host)
        is_whole = value == parts.netloc and "@" not in value
        if not is_host or not is_whole or parts.port == 0 or value.endswith(":") or host in ("0.0.0.0", "::"):  # noqa: S104
            raise ValueError(raw)
        return value

    return Rule(expected="HOST or HOST:PORT, such as 10.0.0.1", read=read, placeholder="HOST")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`; names other than localhost count as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address that the rule `address` has read."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)


def assignments() -> Rule:
    """Accept `name=value` pairs, separated by commas or white space, or in options of their own."""

    def read(raw: str) -> tuple[str, ...]:
        pairs = [pair.strip() for pair in re.split(r",|\s+(?=[^\s=,]+=)", raw) if pair.strip()]
        return tuple(pair if "=" in pair else f"{pair}={pair}" for pair in pairs)  # a name alone: TGI's folder

    return Rule(
        expected="name=folder, several separated by commas", read=read, is_repeatable=True, placeholder="NAME=FOLDER"
    )


def read_json_object(raw: str) -> dict[str, object]:
    """Return the object that a JSON text describes; raise `ValueError` if it describes anything else."""
    try:
        value = json.loads(raw)
    except RecursionError:
        raise ValueError(raw) from None
    if not isinstance(value, dict):
        raise ValueError(raw)  # noqa: TRY004 -- the error of every rule
    return value


def _read_text(raw: str) -> str:
    value = raw.strip()
    if not value:
        raise ValueError(raw)
    return value


def _read_names(raw: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in raw.split(",") if part.strip())
