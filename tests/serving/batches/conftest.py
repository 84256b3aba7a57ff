"""A model server's application with batches that run, and clients for it, in one event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from headrace.serving.http.asgi import ASGIApp, Receive, Scope, Send, set_caller
from headrace.serving.server.app import app_of
from headrace.serving.server.service import Service
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.batches import ENDED
from headrace.serving.wire.unknown_routes import CHAT
from headrace.testing.echo import EchoBackend, EchoScript
from tests.waiting import WAIT_S, pauses

URL = "http://127.0.0.1:8080"


def lines_of(count: int, *, model: str = "echo", **fields: object) -> bytes:
    """The lines of a file of chats, each with words of its own."""
    return b"".join(line_of(f"r{number}", f"word {number}", model=model, **fields) for number in range(count))


def line_of(custom_id: str, text: str, *, model: str = "echo", **fields: object) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}).encode() + b"\n"


@dataclass
class Server:
    """A server and what a test may look into."""

    app: ASGIApp
    service: Service
    backend: EchoBackend
    http: httpx.AsyncClient

    async def upload(self, content: bytes, **fields: Any) -> httpx.Response:
        files = {"file": ("in.jsonl", content)}
        return await self.http.post("/v1/files", data={"purpose": "batch", **fields}, files=files)

    async def create(self, content: bytes, **fields: Any) -> dict[str, Any]:
        """Upload a file, and begin its batch."""
        file = (await self.upload(content)).json()
        body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h", **fields}
        answer = await self.http.post("/v1/batches", json=body)
        assert answer.status_code == 200, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def describe(self, batch_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/batches/{batch_id}")
        described: dict[str, Any] = answer.json()
        return described

    async def ended(self, batch_id: str) -> dict[str, Any]:
        """The batch, once it has ended."""
        return await self.until(batch_id, lambda batch: batch["status"] in ENDED)

    async def until(self, batch_id: str, fact: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            for pause_s in pauses(0.005):
                batch = await self.describe(batch_id)
                if fact(batch):
                    return batch
                await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def results(self, file_id: str | None) -> dict[str, dict[str, Any]]:
        """The lines of an output or error file by their id, which is in only one of them."""
        if file_id is None:
            return {}
        text = (await self.http.get(f"/v1/files/{file_id}/content")).text
        found = [json.loads(line) for line in text.splitlines()]
        by_id = {result["custom_id"]: result for result in found}
        assert len(by_id) == len(found)
        return by_id


@asynccontextmanager
async def serving_batches(folder: Path, *, script: EchoScript | None = None, **settings: Any) -> AsyncIterator[Server]:
    """Serve until the block ends, as `headrace serve` does; a header `caller` stands for an access key."""
    backend = EchoBackend(max_model_len=512, script=script)
    resolved = ServerSettings(model="echo", dialect="tgi-3", batch_folder=folder, **settings)
    service = Service(resolved, backend)
    inner = app_of(service)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        set_caller(scope, dict(scope["headers"]).get(b"caller", b"").decode())
        await inner(scope, receive, send)

    assert service.batches is not None
    running = asyncio.create_task(service.batches.run())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL, timeout=WAIT_S) as http:
        try:
            yield Server(app, service, backend, http)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
