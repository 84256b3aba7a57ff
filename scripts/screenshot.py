"""
Take the picture of the chat page that the README shows.

headrace serve smollm2 &
python scripts/screenshot.py http://127.0.0.1:8080 docs/images/chat.png "Why is the sky blue?"
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
    """Ask the questions one after the other, then keep a picture of the page."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            driver.get(url)
            wait = WebDriverWait(driver, WAIT_S)
            wait.until(lambda _: driver.find_element(By.ID, "model").text not in ("connecting…", "not ready"))
            for number, question in enumerate(questions, start=1):
                driver.find_element(By.ID, "prompt").send_keys(question + Keys.ENTER)
                wait.until(lambda _, number=number: len(driver.find_elements(By.CLASS_NAME, "facts")) == number)
            target.write_bytes(driver.get_screenshot_as_png())
        finally:
            driver.quit()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Take a picture of the chat page.")
    parser.add_argument("url")
    parser.add_argument("target", type=Path)
    parser.add_argument("questions", nargs="+")
    options = parser.parse_args()
    photograph(options.url, options.target, options.questions)


if __name__ == "__main__":
    main()
