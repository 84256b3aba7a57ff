"""The origin check decides from two headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.http.origins import is_local_host, is_origin_allowed

OWN = "127.0.0.1:8080"


def decided(origin: str | None, host: str = OWN, *, allowed: tuple[str, ...] = (), trusted: bool = False) -> bool:
    return is_origin_allowed(origin, host, allowed=allowed, names_are_trusted=trusted)


def test_programs_and_the_servers_own_page_may() -> None:
    assert decided(None)
    assert decided(None, "llm.example.com")
    assert decided(f"http://{OWN}")
    assert decided("http://localhost:1", "localhost:1")
    assert decided("http://[::1]:1", "[::1]:1")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "http://[broken", "http://localhost.evil.example"]
)
def test_other_pages_may_not_unless_they_are_allowed(origin: str) -> None:
    assert not decided(origin)
    assert decided(origin, allowed=(origin,))
    assert decided(origin, allowed=("*",))


def test_a_name_that_leads_here_is_own_only_where_names_are_trusted() -> None:
    assert not decided("http://evil.example", "evil.example")
    assert decided("http://evil.example", "evil.example", trusted=True)


@given(origin=st.text(), host=st.text())
def test_no_header_makes_it_fail(origin: str, host: str) -> None:
    assert decided(origin, host) in (True, False)
    assert is_local_host(host) in (True, False)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("localhost:7450", True),
        ("bucket.localhost:7450", True),
        ("127.0.0.1:7450", True),
        ("[::1]:7450", True),
        ("192.168.1.4", True),
        ("evil.example:7450", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[broken", False),
    ],
)
def test_local_hosts_are_localhost_and_addresses(host: str, is_local: bool) -> None:
    assert is_local_host(host) == is_local
