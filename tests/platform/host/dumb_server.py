"""
A server in a container of its own image: starts in a moment, knows no model, and tells who it is.

`python dumb_server.py PORT`. Environment: NAME, what it answers; FAILS, not empty: it ends with that sentence;
PING_AFTER_S: seconds until it is healthy. It dies at once on SIGTERM, so that a request that is cut off shows.
A body `{"wait_s": 0.1}` is answered after that time; `{"stream": 3}` with so many lines; `{"inputs": "text"}` as TGI
answers, after a second: load without the CPU time of a model.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STARTED_S = time.monotonic()
NAME, FAILS = os.environ.get("NAME", ""), os.environ.get("FAILS", "")
PING_AFTER_S = float(os.environ.get("PING_AFTER_S", "0"))
GENERATION_S = 1.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200 if time.monotonic() - STARTED_S >= PING_AFTER_S else 503, b"{}")

    def do_POST(self) -> None:
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if lines := asked.get("stream"):
            self._stream(lines, asked.get("wait_s", 0.0))
            return
        answer: Any = {"name": NAME, "pid": os.getpid()}
        if "inputs" in asked:
            asked["wait_s"], answer = GENERATION_S, [{"generated_text": f"{asked['inputs']} and so on"}]
        time.sleep(asked.get("wait_s", 0.0))
        self._answer(200, json.dumps(answer).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, lines: int, wait_s: float) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/jsonlines")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(lines):
            time.sleep(wait_s / lines)
            line = json.dumps({"name": NAME, "line": number}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the base's name
        """Say nothing."""


if FAILS:
    print(f"Error: {FAILS}", flush=True)
    sys.exit(3)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
