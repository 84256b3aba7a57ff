"""The files that all pages share, by the routes that serve them."""

from importlib.resources import files

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from headrace.serving.http.pages import api_page_routes, page_routes, shared_files


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes("/web", "headrace.platform.host")))


def test_a_browser_that_has_a_file_does_not_get_it_again(client: TestClient) -> None:
    first = client.get("/web/vendor/katex/katex.min.js")
    assert first.status_code == 200
    again = client.get("/web/vendor/katex/katex.min.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("markdown.js", "text/javascript"),
        ("messages.css", "text/css"),
        ("vendor/katex/fonts/KaTeX_Main-Regular.woff2", "font/woff2"),
        ("vendor/highlight.js/highlight.min.js", "text/javascript"),
    ],
)
def test_files_have_their_media_type_and_the_pages_policy(client: TestClient, path: str, media_type: str) -> None:
    answer = client.get(f"/web/{path}")
    assert answer.headers["content-type"].split(";")[0] == media_type
    assert "require-trusted-types-for 'script'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["manifest.json", "katex/LICENSE", "katex/../manifest.json", "", "nothing.js"])
def test_nothing_else_of_the_vendored_folder_is_served(client: TestClient, path: str) -> None:
    assert client.get(f"/web/vendor/{path}").status_code == 404


def test_every_shared_file_is_served() -> None:
    api_page = {route.path.removeprefix("/docs/") for route in api_page_routes()} | {"api.html"}
    present = {file.name for file in files("headrace.serving.http").joinpath("web").iterdir() if file.is_file()}
    assert present - api_page == set(shared_files())
