"""Open WebUI with both of its connections to one server, asked by its HTTP API and by a browser."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from common import MODEL, PLATFORM, PLATFORM_KEY, QUESTION, SERVER, expect, step
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

START_TIMEOUT_S = 600
WAIT_S = 120
OLLAMA_MODEL = f"{MODEL}:latest"
EMAIL, PASSWORD = "ada@example.com", "correct horse 1"
TALK = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Paris."}]
SETTINGS = {
    "OPENAI_API_BASE_URL": f"{SERVER}/v1",
    "OPENAI_API_KEY": "-",
    "OLLAMA_BASE_URL": SERVER,
    "TASK_MODEL_PARAMS": json.dumps({"max_tokens": 200}),
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
    "RAG_EMBEDDING_ENGINE": "openai",
    "OFFLINE_MODE": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "WEBUI_SECRET_KEY": "for-a-test",
}


@contextmanager
def open_webui(folder: Path) -> Iterator[str]:
    """Start Open WebUI without any data; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    command = [Path(sys.executable).with_name("open-webui"), "serve", "--host", "127.0.0.1", "--port", port]
    variables = {**os.environ, **SETTINGS, "DATA_DIR": str(folder)}
    log = folder / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=file, stderr=file)
    try:
        until(lambda: process.poll() is not None or is_healthy(url), "a start", START_TIMEOUT_S)
        expect(process.poll() is None, f"Open WebUI to run: {log.read_text(encoding='utf-8')[-300:]}")
        yield url
    finally:
        process.terminate()
        process.wait()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.TransportError:
        return False


def until(fact: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Wait for a fact and return it; pages replace their elements meanwhile."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            if found := fact():
                return found
        except WebDriverException:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{what} did not happen within {timeout_s:.0f} s")


class Browser:
    """A user in front of Open WebUI."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def find(self, selector: str, text: str = "") -> WebElement:
        """Wait for a visible element."""
        return until(lambda: self.shown(selector, text), f"{selector} {text!r}")  # type: ignore[no-any-return]

    def click(self, selector: str, text: str = "") -> None:
        until(lambda: self.clicked(selector, text), f"a click on {selector} {text!r}")

    def ask(self, question: str) -> None:
        field = self.find("#chat-input")
        field.send_keys(question)
        field.send_keys(Keys.ENTER)

    def answer(self) -> str:
        """Wait for the end of the newest answer, until which there is a button to stop it; return it."""
        until(lambda: self.shown(".chat-assistant", "e") and not self.shown("button[aria-label='Stop']"), "an answer")
        return self.driver.find_elements(By.CSS_SELECTOR, ".chat-assistant")[-1].text

    def shown(self, selector: str, text: str = "") -> WebElement | None:
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return next((element for element in found if element.is_displayed() and text in element.text), None)

    def clicked(self, selector: str, text: str = "") -> bool:
        element = self.shown(selector, text)
        if element is not None:
            element.click()
        return element is not None


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    expect(program and driver, "Chromium and its driver (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = str(program)
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1440,900", f"--user-data-dir={folder}"):
        options.add_argument(flag)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()


def running_requests() -> float:
    """Return the number of requests that the server is answering."""
    lines = httpx.get(f"{SERVER}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running"))


def use_pages(page: Browser, url: str) -> None:
    with step("browser: sign up"):
        page.driver.get(f"{url}/auth")
        page.click("button", "Get started")
        page.find("#name").send_keys("Ada")
        page.find("#email").send_keys(EMAIL)
        page.find("#password").send_keys(PASSWORD + Keys.ENTER)
        page.click("button", "Okay, Let's Go!")
    for name in (MODEL, OLLAMA_MODEL):
        with step(f"browser: choose {name}, ask"):
            page.driver.get(url)
            page.click("#model-selector-model-button")
            page.click(f"[role=option][data-value='{name}']")
            page.ask(QUESTION)
            expect(page.answer(), "an answer")
            if picture := os.environ.get("OPEN_WEBUI_PICTURE"):
                page.driver.save_screenshot(picture)
    with step("browser: stop"):
        until(lambda: running_requests() == 0, "the end of all other requests")
        page.driver.get(url)
        page.ask("Tell me a very long story about the sea, with many chapters.")
        until(lambda: page.shown(".chat-assistant", "e"), "the first words")
        page.click("button[aria-label='Stop']")
        until(lambda: running_requests() == 0, "the end of the request on the server")


def use_api(client: httpx.Client) -> None:
    signed_in = client.post("/api/v1/auths/signin", json={"email": EMAIL, "password": PASSWORD}).json()
    client.headers["Authorization"] = f"Bearer {signed_in['token']}"
    with step("models"):
        listed = {model["id"]: model["owned_by"] for model in client.get("/api/models").json()["data"]}
        expect((listed[MODEL], listed[OLLAMA_MODEL]) == ("openai", "ollama"), f"both connections: {listed}")
    for name, kind in ((MODEL, "OpenAI"), (OLLAMA_MODEL, "Ollama")):
        body = {"model": name, "messages": TALK[:1], "max_tokens": 24}
        with step(f"{kind}: chat, streamed"):
            stream = client.post("/api/chat/completions", json={**body, "stream": True}).text
            expect('"content"' in stream and stream.rstrip().endswith("[DONE]"), f"a stream: {stream[-200:]}")
        with step(f"{kind}: title, tags, follow-ups"):
            for task in ("title", "tags", "follow_up"):
                made = client.post(f"/api/v1/tasks/{task}/completions", json={"model": name, "messages": TALK})
                expect("choices" in made.json(), f"a completion: {made.text[:200]}")
        with step(f"{kind}: embeddings"):
            made = client.post("/api/embeddings", json={"model": name, "input": "a"})
            expect(made.json()["data"][0]["embedding"], f"a vector: {made.text[:200]}")
    with step("Ollama: pull says why not"):
        refused = client.post("/ollama/api/pull", json={"model": "llama3.2"})
        expect("headrace serve MODEL" in refused.text, f"a reason: {refused.text[:200]}")
    with step("platform as a connection"):
        found = client.post("/openai/verify", json={"url": f"{PLATFORM}/v1", "key": PLATFORM_KEY}).json()
        expect(MODEL in [model["id"] for model in found["data"]], f"the endpoint: {found}")


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
    data, profile = Path(root, "data"), Path(root, "profile")
    data.mkdir()
    with open_webui(data) as address, httpx.Client(base_url=address, timeout=120) as api:
        with browser(profile) as user:
            use_pages(user, address)
        use_api(api)
