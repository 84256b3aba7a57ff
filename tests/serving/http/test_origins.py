"""The origin check decides from two headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.http.origins import allowed_patterns, is_host_allowed, is_origin_allowed

OWN = "127.0.0.1:8080"


def decided(origin: str | None, host: str = OWN, *, allowed: tuple[str, ...] = ()) -> bool:
    return is_origin_allowed(origin, host, allowed=allowed)


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


@given(origin=st.text(), host=st.text())
def test_no_header_makes_it_fail(origin: str, host: str) -> None:
    assert decided(origin, host) in (True, False)
    assert is_host_allowed(host, ("a.example", "*.b.example")) in (True, False)


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
        ("LOCALHOST.:7450", True),
        ("[broken", False),
        (":7450", False),
    ],
)
def test_local_hosts_are_always_allowed(host: str, is_local: bool) -> None:
    assert is_host_allowed(host, ()) == is_local
    assert is_host_allowed(host, ("*",))


def test_a_request_without_a_host_is_not_from_a_browser() -> None:
    assert is_host_allowed("", ())


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("devbox", True),
        ("DevBox:8080", True),
        ("devbox.:8080", True),
        ("llm.example.com", True),
        ("a.b.example.com:443", True),
        ("example.com", False),
        (".example.com", False),
        ("evilexample.com", False),
        ("llm.example.com.evil.example", False),
        ("devbox.evil.example", False),
        ("devbox@evil.example", False),
    ],
)
def test_patterns_are_names_and_domains(host: str, is_allowed: bool) -> None:
    assert is_host_allowed(host, ("devbox", "*.example.com")) == is_allowed


_LABEL = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)


@given(labels=st.lists(_LABEL, min_size=1, max_size=4), port=st.integers(0, 65535))
def test_a_domain_pattern_allows_every_name_below_it_and_no_other(labels: list[str], port: int) -> None:
    below = ".".join(labels)
    assert is_host_allowed(f"{below}.corp.example:{port}", ("*.corp.example",))
    assert not is_host_allowed(f"{below}corp.example:{port}", ("*.corp.example",))
    assert not is_host_allowed(f"corp.example.{below}.com:{port}", ("*.corp.example",))


def test_names_are_checked_if_the_server_is_open_or_the_setting_names_some() -> None:
    assert list(allowed_patterns((), is_open=True)) == []
    assert list(allowed_patterns((), is_open=False)) == ["*"]
    assert list(allowed_patterns(("a",), is_open=True)) == ["a"]
    assert list(allowed_patterns(("a",), is_open=False)) == ["a"]
