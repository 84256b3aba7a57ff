import subprocess
import sys
import tempfile
from pathlib import Path

from common import MODEL, SERVER, expect, step

FILE = """
from locust import HttpUser, task

class User(HttpUser):
    @task
    def chat(self):
        body = {{"model": "{model}", "max_tokens": 8, "messages": [{{"role": "user", "content": "Hi"}}]}}
        self.client.post("/v1/chat/completions", json=body)
"""

with step("headless run"), tempfile.TemporaryDirectory() as folder:
    locustfile = Path(folder, "locustfile.py")
    locustfile.write_text(FILE.format(model=MODEL), encoding="utf-8")
    options = ["--headless", "--users", "2", "--run-time", "5s", "--host", SERVER, "--only-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(locustfile), *options], capture_output=True, text=True, check=False
    )
    expect(done.returncode == 0, f"a run without failures: {done.stderr[-300:]}")
