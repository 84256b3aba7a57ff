"""
The worker of a chaos run: answers with the hash of a prompt, and notes each request and each whole answer.

`python echo_server.py PORT FOLDER [HOST] [STEP_S]`. A body `{"id": …, "prompt": …, "stream": false}`; a stream has a
line for each character, one each STEP_S. Notes are lines of files in FOLDER that no other process writes, named by its
host: `*.begun` has the requests, `*.done` those that were answered in full.
"""

import hashlib
import json
import os
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUM_CHARACTERS = 8


def answer_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:NUM_CHARACTERS]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer("application/json", b"{}")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note = f"{asked['id']}\n".encode()
        os.write(BEGUN, note)
        text = answer_of(asked["prompt"])
        if not asked.get("stream"):
            time.sleep(STEP_S)
            self._answer("application/json", json.dumps({"text": text}).encode())
        elif "/v1/" in self.path:
            self._stream("text/event-stream", [*(b"data: %s\n\n" % c.encode() for c in text), b"data: [DONE]\n\n"])
        else:
            self._stream("application/jsonlines", [c.encode() for c in text])
        os.write(DONE, note)

    def _answer(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, content_type: str, parts: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            time.sleep(STEP_S)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the base's name
        """Log nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    port, folder, host, step_s = [*sys.argv[1:], *("127.0.0.1", "0.004")[len(sys.argv) - 3 :]]
    STEP_S = float(step_s)
    notes = f"{folder}/{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    BEGUN, DONE = (os.open(notes + suffix, flags) for suffix in (".begun", ".done"))
    Server((host, int(port)), Handler).serve_forever()
