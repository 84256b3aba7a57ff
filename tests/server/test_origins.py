"""Web pages of other origins are refused unless they are allowed."""

import pytest

from .conftest import serving

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def status(origin: str | None, host: str | None = None, **settings: object) -> int:
    """Return the response to a chat request with these headers; `{own}` is the server's address."""
    with serving(**settings) as echo:
        own = echo.url.removeprefix("http://")
        headers = {"host": (host or "{own}").format(own=own)}
        if origin is not None:
            headers["origin"] = origin.format(own=own)
        return echo.post("/v1/chat/completions", CHAT, headers=headers).status_code


def test_a_program_without_an_origin_is_served() -> None:
    assert status(None) == 200


def test_a_program_behind_a_proxy_is_served() -> None:
    assert status(None, host="llm.example.com") == 200


def test_the_servers_own_page_is_served() -> None:
    assert status("http://{own}") == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[broken", "http://localhost.evil.example"])
def test_a_page_of_another_site_is_refused(origin: str) -> None:
    assert status(origin) == 403


def test_a_name_that_was_pointed_at_this_machine_is_refused() -> None:
    assert status("http://evil.example:8080", host="evil.example:8080") == 403


def test_a_name_is_the_servers_own_where_a_key_is_wanted() -> None:
    origin = "http://llm.example.com"
    assert status(origin, host="llm.example.com", api_key="k") == 401


def test_an_allowed_page_is_served() -> None:
    assert status("https://app.example", cors_allow_origins=("https://app.example",)) == 200
    assert status("https://app.example", cors_allow_origins=("*",)) == 200
