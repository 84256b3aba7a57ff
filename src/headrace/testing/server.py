"""
An HTTP server around an `EchoBackend`, for tests of clients: in this process, or as one of its own.

    python -m headrace.testing.server --port 8090 --delay-s 0.02

It is the model server itself, with all its routes and dialects; only the model is missing.
"""

import argparse
import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.serving.http.server import http_limits, http_server
from headrace.serving.http.tls import bind, server_context, url_of
from headrace.serving.server.app import create_app
from headrace.serving.server.main import run_server
from headrace.serving.settings.loading import load_settings
from headrace.testing.echo import EchoBackend, EchoScript

MODEL = "echo"


@dataclass(frozen=True, slots=True)
class EchoServer:
    """A running server and its backend, whose requests and script a test may read and set."""

    url: str
    backend: EchoBackend


@contextmanager
def echo_server(backend: EchoBackend | None = None, **settings: Any) -> Iterator[EchoServer]:
    """
    Serve on a free loopback port, on a thread, until the block ends.

    Args:
        backend: The backend to serve; None: a new one.
        settings: Settings of `headrace serve` by name, such as `dialect` or `api_key`.
    """
    backend = backend or EchoBackend()
    resolved, _ = load_settings({"model": MODEL, **settings}, {})
    tls = server_context(resolved.tls_cert, resolved.tls_key)
    server = http_server(create_app(resolved, backend), limits=http_limits(resolved), tls=tls)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), name="echo-server", daemon=True
        )
        thread.start()
        try:
            yield EchoServer(url_of(listener, is_tls=tls is not None), backend)
        finally:
            server.stop(grace_s=1)
            thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.server", description="Serve an echo.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8090, help="port to listen on; 0: a free one")
    parser.add_argument("--dialect", default="tgi-3", help="dialect of the native routes")
    parser.add_argument("--max-model-len", type=int, default=2048, help="prompt and answer, in words")
    parser.add_argument("--delay-s", type=float, default=0.0, help="delay before each word")
    options = parser.parse_args(arguments)
    overrides = {"model": MODEL, "host": options.host, "port": options.port, "dialect": options.dialect}
    settings, notices = load_settings(overrides, {})
    backend = EchoBackend(max_model_len=options.max_model_len, script=EchoScript(delay_s=options.delay_s))
    return run_server(settings, notices=notices, load=lambda *_: backend)


if __name__ == "__main__":
    sys.exit(main())
