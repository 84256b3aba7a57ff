"""Files and headers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CONTENT_TYPE = ("content-type", "contenttype")


def read_file(path: Any, mode: str = "r") -> Any:
    with Path(path).open(mode) as file:
        return file.read()


def write_file(path: Any, data: Any, mode: str = "w") -> None:
    with Path(path).open(mode) as file:
        file.write(data)


def retrieve_content_type_header(request_property: Mapping[str, Any]) -> Any:
    """Return the first header that is a spelling of `Content-Type`, or None."""
    return next((request_property[name] for name in request_property if name.lower().startswith(_CONTENT_TYPE)), None)


def parse_accept(accept: str) -> list[str]:
    return accept.replace(" ", "").split(",")


def remove_crlf(illegal_string: str) -> str:
    """Return the text fit for a status line."""
    return illegal_string.replace("\r", " ").replace("\n", " ")
