"""
Take the screenshots in the README: the chat page, and an endpoint in the console.

headrace serve smollm2 &
python scripts/screenshot.py http://127.0.0.1:8080 docs/images/chat.png "Why is the sky blue?"

headrace up & headrace deploy smollm2 --name chat
python scripts/screenshot.py http://127.0.0.1:7450/console#/chat docs/images/console.png
"""

import argparse
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,860",
)
WAIT_S = 120


def photograph(url: str, target: Path, questions: list[str]) -> None:
    """Open the page, wait until it shows something, and save a screenshot."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            driver.get(url)
            wait = WebDriverWait(driver, WAIT_S)
            if "/console" in url:
                wait.until(lambda _: driver.find_elements(By.CSS_SELECTOR, ".lines path[d^=M]"))
            else:
                ask(driver, wait, questions)
            target.write_bytes(driver.get_screenshot_as_png())
        finally:
            driver.quit()


def ask(driver: webdriver.Chrome, wait: WebDriverWait, questions: list[str]) -> None:
    """Ask the questions on the chat page, one after the other."""
    wait.until(lambda _: driver.find_element(By.ID, "model").text not in ("connecting…", "not ready"))
    for number, question in enumerate(questions, start=1):
        driver.find_element(By.ID, "prompt").send_keys(question + Keys.ENTER)
        wait.until(lambda _, number=number: len(driver.find_elements(By.CLASS_NAME, "facts")) == number)


def main() -> None:
    """Take the screenshot that the command line asks for."""
    parser = argparse.ArgumentParser(description="Take a picture of the chat page or the console.")
    parser.add_argument("url")
    parser.add_argument("target", type=Path)
    parser.add_argument("questions", nargs="*", help="for the chat page")
    options = parser.parse_args()
    photograph(options.url, options.target, options.questions)


if __name__ == "__main__":
    main()
