"""
A worker without a model, for tests of launchers: `python stub_worker.py ASSIGNMENT`.

Its behaviour is in its specification's environment, as STUB: a JSON object with `print` (lines), `fetch` (report
that it is fetching), `exit` (with a code, at once), `deaf` (ignore SIGTERM), `child` (start a process). `/ping`
answers 200 while the file `healthy` is in its folder.
"""

import ctypes
import json
import os
import signal
import ssl
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""Real workers end with their parent too. Source: Linux `prctl(2)`."""


class Handler(BaseHTTPRequestHandler):
    folder: Path

    def do_GET(self) -> None:
        is_well = self.path == "/ping" and (self.folder / "healthy").exists()
        self.send_response(200 if is_well else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    path = Path(sys.argv[1])
    assignment = json.loads(path.read_text())
    script = json.loads(assignment["spec"]["environment"].get("STUB", "{}"))
    if assignment["parent"]:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Handler.folder = path.parent
    if script.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in script.get("print", []):
        print(line, flush=True)
    if script.get("child"):
        child = subprocess.Popen(["/bin/sleep", "100"])
        (path.parent / "child").write_text(str(child.pid))
    if script.get("fetch"):
        (path.parent / "report.json").write_text('{"phase": "fetching", "notices": ["a notice"]}')
    if "exit" in script:
        os._exit(script["exit"])
    server = HTTPServer((assignment["host"], assignment["port"]), Handler)
    if assignment["pin"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path.parent / "certificate.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    (path.parent / "listening").touch()
    server.serve_forever()


if __name__ == "__main__":
    main()
