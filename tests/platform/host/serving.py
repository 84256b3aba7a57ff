"""An ASGI application on a free port, as a platform serves its own, in a thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from headrace.serving.http.tls import bind, url_of
from tests.prompt_server import PLATFORM_HTTP, PromptServer
from tests.waiting import WAIT_S


@contextmanager
def serving(
    app: Any,
    *,
    start: Callable[[], Coroutine[Any, Any, None]] | None = None,
    stop: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> Iterator[str]:
    """Its URL. `start` and `stop` run in the loop that serves."""
    config = uvicorn.Config(
        app, http=PLATFORM_HTTP, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False
    )
    server, listener, failed = PromptServer(config), bind("127.0.0.1", 0), []
    is_started = threading.Event()

    async def live() -> None:
        try:
            if start is not None:
                await start()
            is_started.set()
            await server.serve(sockets=[listener])
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            is_started.set()
            if stop is not None:
                await stop()

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    assert is_started.wait(WAIT_S)
    try:
        assert not failed, failed
        yield url_of(listener)
    finally:
        server.stop()
        thread.join(WAIT_S)
        listener.close()
    assert not thread.is_alive()
