"""The API page: it works without the internet, and shows every operation of the document."""

from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest
from selenium import webdriver

from tests.browser import Page

from .conftest import Echo


class _Links(HTMLParser):
    """The files that a page loads or links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in {"src", "href"} and value is not None]


def test_all_links_of_the_page_lead_to_this_server(echo: Echo) -> None:
    page = _Links()
    page.feed(echo.client.get("/docs").text)
    links = [link for link in page.links if not link.startswith("data:")]
    answers = [echo.client.get(urljoin(f"{echo.url}/docs", link)) for link in links]
    assert all(answer.status_code == 200 and str(answer.url).startswith(echo.url) for answer in answers)
    assert sorted(answer.headers["content-type"].split(";")[0] for answer in answers) == [
        "application/json",
        *["text/css"] * 2,
        *["text/javascript"] * 2,
    ]


@pytest.mark.browser
def test_a_browser_shows_all_operations_and_loads_nothing_from_elsewhere(driver: webdriver.Chrome, echo: Echo) -> None:
    document = echo.client.get("/openapi.json").json()
    num_operations = sum(len(methods) for methods in document["paths"].values())
    driver.get_log("browser")  # what other tests provoked
    page = Page(driver)
    driver.get(f"{echo.url}/docs")
    page.until(lambda: len(page.all(".opblock")) == num_operations, "all operations")
    loaded = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert isinstance(loaded, list)
    assert [url for url in loaded if not url.startswith((echo.url, "data:"))] == []
    noise = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert noise == []
