"""The console as a person uses it."""

from selenium import webdriver
from selenium.webdriver.support.select import Select

from tests.browser import Page
from tests.platform.fake_platform import FakePlatform


class Console(Page):
    """The console, freshly opened."""

    def __init__(self, driver: webdriver.Chrome, platform: FakePlatform, at: str = "") -> None:
        super().__init__(driver)
        driver.get("about:blank")
        driver.get(f"{platform.url}/console{at}")

    def until_listed(self, *names: str) -> None:
        self.until(lambda: self.names() == list(names), f"a list of {names}")

    def names(self) -> list[str]:
        return [row.text for row in self.all("#rows .name")]

    def choose(self, selector: str, text: str) -> None:
        """Choose an option by its text."""
        Select(self.find(selector)).select_by_visible_text(text)

    def answer(self) -> str:
        return self.all(".message.assistant .text")[-1].text

    def until_answered(self) -> None:
        self.until(lambda: self.all(".facts") and not self.all(".streaming, .waiting"), "the end of the answer")
