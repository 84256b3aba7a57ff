"""Responses of user code that chooses their status and type."""

from typing import Any

_TEXT_TYPES = frozenset({"application/ecmascript", "application/javascript", "application/sql", "application/xml"})


def full_content_type(mimetype: str) -> str:
    """Return the type as Flask sends it: text carries its character set."""
    is_text = mimetype.startswith("text/") or mimetype in _TEXT_TYPES or mimetype.endswith("+xml")
    return f"{mimetype}; charset=utf-8" if is_text and "charset=" not in mimetype else mimetype


class Response:
    """
    A response with the attributes of Flask's that `inference.py` files use.

    Attributes:
        data: the body; also what `get_data` returns.
    """

    default_mimetype = "application/json"

    def __init__(
        self,
        response: Any = None,
        accept: str | None = None,  # noqa: ARG002 - deprecated and ignored by the original, too
        status: int = 200,
        headers: Any = None,
        mimetype: str | None = None,
        direct_passthrough: bool = False,  # noqa: ARG002
    ) -> None:
        self.response = b"" if response is None else response
        self.status_code = int(status)
        self.headers = dict(headers or {})
        self.mimetype = mimetype or self.default_mimetype

    @property
    def content_type(self) -> str:
        return full_content_type(self.mimetype)

    @property
    def data(self) -> bytes:
        return self.response.encode() if isinstance(self.response, str) else bytes(self.response)

    def get_data(self, as_text: bool = False) -> Any:
        return self.data.decode() if as_text else self.data
