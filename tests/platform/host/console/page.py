"""The console as a person uses it."""

from selenium import webdriver
from selenium.webdriver.support.select import Select

from tests.browser import Page
from tests.platform.host.fake_platform import FakePlatform


class Console(Page):
    """The console, opened, with its view shown."""

    def __init__(self, driver: webdriver.Chrome, platform: FakePlatform, at: str = "") -> None:
        super().__init__(driver)
        if driver.current_url != "about:blank":  # an address that differs by its fragment would not load the page again
            driver.get("about:blank")
        driver.get(f"{platform.url}/console{at}")
        # After the platform's facts, which the page's load does not await.
        self.until_shown("home", "keys", "endpoint", "models", "model-page")

    def go(self, at: str, part: str) -> None:
        """Go to another view, such as `#/chat/logs`, by its address."""
        self.run("location.hash = arguments[0]", at)
        self.until_shown(part)

    def until_shown(self, *parts: str) -> None:
        selector = ", ".join(f"#{part}:not([hidden])" for part in parts)
        self.until(lambda: self.all(selector), f"one of {parts}")

    def until_listed(self, *names: str) -> None:
        self.until(lambda: self.names() == list(names), f"a list of {names}")

    def names(self) -> list[str]:
        return self.texts("#rows .name")

    def choose(self, selector: str, text: str) -> None:
        """Choose an option by its text."""
        Select(self.find(selector)).select_by_visible_text(text)

    def answer(self) -> str:
        return self.texts(".message.assistant .text")[-1]

    def until_answered(self) -> None:
        self.until(lambda: self.all(".facts") and not self.all(".streaming, .waiting"), "the end of the answer")
