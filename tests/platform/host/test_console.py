"""Responses of the console's routes."""

import re
from collections.abc import Iterator
from importlib.resources import files

import httpx
import pytest

from headrace.platform.host.console import MAX_RATES, is_console, needs_key
from headrace.serving.http.pages import shared_files
from tests import plain_http
from tests.waiting import WAIT_S

from .fake_platform import FakePlatform, serving
from .fake_resources import NOW_S


@pytest.fixture(scope="module")
def platform() -> Iterator[FakePlatform]:
    with serving(FakePlatform()) as running:
        for age_s in (0, 1, 100, 2000):
            running.history.record("e", "AllTraffic", 200, 0.05, 0.2, NOW_S - age_s)
        yield running


@pytest.fixture
def client(platform: FakePlatform) -> Iterator[httpx.Client]:
    with plain_http.Client(base_url=platform.url, timeout=WAIT_S) as made:
        yield made


def test_the_page_may_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    answer = client.get("/console")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["']https?:""", answer.text)
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", answer.text)


def test_a_trailing_slash_redirects_to_the_page(client: httpx.Client) -> None:
    assert client.get("/console/", follow_redirects=True).url.path == "/console"


def test_every_file_that_the_page_or_a_script_names_is_served(client: httpx.Client) -> None:
    names = {"/console"}
    seen: set[str] = set()
    while names - seen:
        path = (names - seen).pop()
        answer = client.get(path)
        assert answer.status_code == 200, path
        seen.add(path)
        names |= set(re.findall(r"""["'](/console/web/[^"']+)["']""", answer.text))
        if "/vendor/" not in path:
            names |= {
                f"/console/web/{name}" for name in re.findall(r"""(?:from |import\()"\./([^"]+)\"""", answer.text)
            }
    own = {file.name for file in files("headrace.platform.host").joinpath("web").iterdir()}
    for name in own | set(shared_files()):
        assert ("/console" if name.endswith(".html") else f"/console/web/{name}") in seen, "a file that no page uses"


@pytest.mark.parametrize("path", ["/console/web/../console.py", "/console/web/aws.py", "/console/web/", "/console/x"])
def test_other_files_are_not_served(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_traffic_is_returned_since_a_moment(client: httpx.Client) -> None:
    now = client.get("/console/api/traffic", params={"endpoint": "e", "since": -600})
    assert now.headers["cache-control"] == "no-store"
    assert sum(now.json()["requests"]) == 3
    same = client.get("/console/api/traffic", params={"endpoint": "e", "since": NOW_S - 600})
    assert same.json() == now.json()
    hour = client.get("/console/api/traffic", params={"endpoint": "e", "since": -3600}).json()
    assert (sum(hour["requests"]), hour["bucket_s"]) == (4, 60)


@pytest.mark.parametrize(
    "query", ["", "endpoint=", "endpoint=e&since=nan", "endpoint=e&since=inf", "endpoint=e&since=x"]
)
def test_an_invalid_query_is_answered_with_the_expected_form(client: httpx.Client, query: str) -> None:
    answer = client.get(f"/console/api/traffic?{query}")
    assert answer.status_code == 400
    assert "since=<seconds" in answer.json()["message"]


@pytest.mark.parametrize("since", ["1e308", "-1e308", "0", "1e18"])
def test_a_moment_out_of_range_is_clamped(client: httpx.Client, since: str) -> None:
    answer = client.get("/console/api/traffic", params={"endpoint": "e", "since": since})
    assert answer.status_code == 200
    assert 1 <= len(answer.json()["requests"]) <= 61


def test_rates_are_returned_for_several_endpoints_at_once(client: httpx.Client) -> None:
    answer = client.get("/console/api/rates", params={"endpoint": ["e", "idle"]}).json()
    assert [name for name, numbers in answer.items() if "requests_per_s" in numbers] == ["e"]
    assert 0.02 < answer["e"]["requests_per_s"] < 0.04
    many = client.get("/console/api/rates", params={"endpoint": [f"e{number}" for number in range(MAX_RATES + 1)]})
    assert many.status_code == 400


def test_components_are_returned_for_one_endpoint(platform: FakePlatform, client: httpx.Client) -> None:
    platform.overviews["host"] = {"components": [{"name": "c"}], "hosts": []}
    answer = client.get("/console/api/components", params={"endpoint": "host"})
    nothing = {"workers": [], "trouble": ""}
    assert answer.json() == {"now_s": NOW_S, **nothing, **platform.overviews["host"]}
    assert answer.headers["cache-control"] == "no-store"
    none = client.get("/console/api/components", params={"endpoint": "e"}).json()
    assert (none["components"], none["hosts"]) == ([], [])
    assert client.get("/console/api/components").status_code == 400


def test_the_uses_of_models_are_returned(platform: FakePlatform, client: httpx.Client) -> None:
    platform.uses["m"] = {"endpoints": ["e"], "components": [], "configs": ["e"]}
    assert client.get("/console/api/uses").json() == platform.uses


def test_the_page_is_public_and_its_numbers_are_not() -> None:
    assert is_console("/console")
    assert is_console("/console/web/aws.js")
    assert not is_console("/consoles")
    assert not is_console("/")
    assert not needs_key("/console")
    assert not needs_key("/console/web/aws.js")
    assert needs_key("/console/api/traffic")
    for path in ("components", "home", "models", "uses", "keys", "keys/HRAKANY"):
        assert needs_key(f"/console/api/{path}")
