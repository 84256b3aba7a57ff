"""Other host names and web pages of other origins are refused unless they are allowed."""

import pytest

from .conftest import Echo, serving

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


@pytest.mark.parametrize("settings", [{"allowed_hosts": ("*.example.com",)}, {"cors_allow_origins": ("*",)}])
def test_a_program_behind_a_proxy_is_served_by_an_allowed_name(settings: dict[str, object]) -> None:
    assert status(None, host="llm.example.com", **settings) == 200


def test_a_page_under_an_allowed_name_is_served() -> None:
    own = "devbox:8080"
    assert status(f"http://{own}", host=own, allowed_hosts=("devbox",)) == 200
    assert status(f"http://{own}", host=own, allowed_hosts=("other",)) == 403
    assert status("http://evil.example", host=own, allowed_hosts=("devbox",)) == 403


def test_allowed_names_apply_to_a_server_with_a_key_too() -> None:
    assert status(None, host="evil.example", allowed_hosts=("devbox",), api_key="k") == 403
    assert status(None, host="devbox", allowed_hosts=("devbox",), api_key="k") == 401


def test_a_program_under_another_name_is_told_the_setting(echo: Echo) -> None:
    refused = echo.client.get("/v1/models", headers={"host": "llm.example.com:8080"})
    assert refused.status_code == 403
    assert "start it with --allowed-hosts llm.example.com." in refused.json()["error"]["message"]


def test_a_person_under_another_name_gets_a_page(echo: Echo) -> None:
    headers = {"host": "$(reboot)&amp;.example", "accept": "text/html,*/*"}
    refused = echo.client.get("/", headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert "$(reboot)&amp;amp;.example" in refused.text
    assert "--allowed-hosts NAME" in refused.text
    assert "script-src" not in refused.headers["content-security-policy"]


def test_the_servers_own_page_is_served() -> None:
    assert status("http://{own}") == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[broken", "http://localhost.evil.example"])
def test_a_page_of_another_site_is_refused(origin: str) -> None:
    assert status(origin) == 403


LOADS = {
    "an image": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
    "a page in a page": (
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        403,
    ),
    "a link": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
    "a bookmark": ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
    "its own page": ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 200),
}


@pytest.mark.parametrize(("headers", "wanted"), LOADS.values(), ids=LOADS)
def test_what_a_page_of_another_site_loads_is_refused_though_it_has_no_origin(headers, wanted, echo: Echo) -> None:
    assert echo.client.get("/v1/models", headers=headers).status_code == wanted


def test_an_allowed_page_loads_answers() -> None:
    headers = {**LOADS["an image"][0], "origin": "https://app.example"}
    for origins in (("https://app.example",), ("*",)):
        with serving(cors_allow_origins=origins) as echo:
            assert echo.client.get("/v1/models", headers=headers).status_code == 200


def test_a_name_that_was_pointed_at_this_machine_is_refused() -> None:
    assert status("http://evil.example:8080", host="evil.example:8080") == 403


def test_a_name_is_the_servers_own_where_a_key_is_wanted() -> None:
    origin = "http://llm.example.com"
    assert status(origin, host="llm.example.com", api_key="k") == 401


def test_an_allowed_page_is_served() -> None:
    assert status("https://app.example", cors_allow_origins=("https://app.example",)) == 200
    assert status("https://app.example", host="devbox", cors_allow_origins=("https://app.example",)) == 200
    assert status("https://app.example", cors_allow_origins=("*",)) == 200
