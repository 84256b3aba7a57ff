"""The model server on an echoing backend, as a real user of the protocol."""

from tests.serving.server.conftest import echo, shared_echo

__all__ = ["echo", "shared_echo"]
