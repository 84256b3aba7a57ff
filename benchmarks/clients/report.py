"""The table of clients as a page of the docs. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.clients.clients import CLIENTS, Client

_HEAD = """<!-- Made by scripts/clients; change benchmarks/clients instead. -->
# Clients

See whether your client or framework works with Headrace, and open its guide.
Each row lists the steps of the client's own first examples, which ran against a server or platform with SmolLM2-135M;
only the address and the name of the model changed.
`scripts/clients` runs them again, each client in an environment of its own.
A client that is not in the table was not tried; it may work nevertheless.
"""


def render(results: Mapping[str, Any]) -> str:
    return "\n".join([_HEAD, *_lines(results)]) + "\n"


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    yield "| client | version, date | ran |"
    yield "|---|---|---|"
    for client in CLIENTS:
        yield _row(client, results.get(client.name))
    failures = [(client, results[client.name]) for client in CLIENTS if _failed(results.get(client.name))]
    if failures:
        yield ""
        yield "## What failed\n"
        for client, result in failures:
            for name, error in _failed(result):
                yield f"- **{client.name}**, {name}: `{_one_line(error)}`"


def _row(client: Client, result: Mapping[str, Any] | None) -> str:
    name = f"[{client.name}]({client.guide})" if client.guide else client.name
    if result is None:
        return f"| {name} | | not run |"
    ran = "; ".join(step["step"] for step in result["steps"] if step["error"] is None) or "nothing"
    failed = "; ".join(name for name, _ in _failed(result))
    return f"| {name} | {result['version']}, {result['date']} | {ran}{f'; failed: {failed}' if failed else ''} |"


def _failed(result: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if result is None:
        return []
    steps = [(step["step"], step["error"]) for step in result["steps"] if step["error"] is not None]
    return [*steps, *([("the script", result["error"])] if result["error"] else [])]


def _one_line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:300]
