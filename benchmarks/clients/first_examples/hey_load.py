import json
import os
import re
import subprocess

from common import MODEL, SERVER, expect, step

with step("-n 8 -c 2, chat"):
    body = json.dumps({"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]})
    options = ["-n", "8", "-c", "2", "-t", "0", "-m", "POST", "-T", "application/json", "-d", body]
    command = [os.environ["CLIENT_PROGRAM"], *options, f"{SERVER}/v1/chat/completions"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expect(re.search(r"\[200\]\s+8 responses", output), f"8 answers: {output[-300:]}")
