"""The chat page as a person uses it."""

from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.browser import Page


class ChatPage(Page):
    """The chat page, freshly opened."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        super().__init__(driver)
        driver.get(f"{url}/ping")  # the page's origin without the page
        driver.execute_script("sessionStorage.clear()")
        # The browser closes the database, which a page could only ask another page to do.
        stored = {"origin": url, "storageTypes": "indexeddb,local_storage"}
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", stored)
        driver.get(url)
        self.until(lambda: self.text("#model") == "echo", "the model's name")

    def type(self, text: str) -> None:
        self.find("#prompt").send_keys(text)

    def ask(self, text: str) -> None:
        self.type(text + Keys.ENTER)

    def answer(self) -> str:
        return self.texts(".message.assistant .text")[-1]

    def until_done(self) -> None:
        """Wait until the answer has ended and the browser has stored the conversation."""
        busy = ".streaming, .waiting, #conversations[aria-busy=true]"
        self.until(lambda: self.find("#send").is_displayed() and not self.all(busy), "the end")

    def send(self, text: str) -> None:
        """Ask by pasting, and wait for the end of the answer."""
        self.paste(text)
        self.until_done()

    def paste(self, text: str) -> None:
        """Ask by pasting, which is faster than typing and takes several lines."""
        self.run("document.getElementById('prompt').value = arguments[0]", text)
        self.type(Keys.ENTER)

    def module(self, name: str, expression: str, *arguments: object) -> object:
        """Evaluate an expression on the exports `m` of one of the page's modules."""
        return self.run(f"return import('/web/{name}').then((m) => {expression})", *arguments)
