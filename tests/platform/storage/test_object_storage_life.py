"""The lifecycle of the embedded S3 server: killed, orphaned, adopted, and with other programs on its ports."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from botocore.config import Config

from headrace.core.processes import process_id
from headrace.platform.storage.object_storage import EmbeddedStorage, find_weed, make_storage
from headrace.platform.storage.s3_signing import S3Access
from headrace.platform.storage.seaweed import LISTENERS, Seaweed
from tests.platform.host.test_supervisor import is_alive
from tests.waiting import WAIT_S

needs_weed = pytest.mark.skipif(find_weed(os.environ) is None, reason="SeaweedFS is not installed (extra s3)")

CONTENT = b"content"


@needs_weed
async def test_object_storage_restarts_with_its_objects_after_a_kill(tmp_path: Path) -> None:
    storage = make_storage(None, tmp_path, "us-east-1", os.environ)
    assert isinstance(storage, EmbeddedStorage)
    await storage.start()
    try:
        access = await storage.ready()
        client = client_of(access)
        await asyncio.to_thread(keep_object, client)
        os.kill(storage.pid, signal.SIGKILL)
        while storage.state == "ready":
            await asyncio.sleep(0.05)
        again = await storage.ready()
        assert again == access
        assert await asyncio.to_thread(kept_object, client) == CONTENT
        client.close()
    finally:
        await storage.stop()


@needs_weed
def test_a_server_that_no_state_names_is_ended_before_another_one_starts_on_its_data(tmp_path: Path) -> None:
    """As after a kill, or on a full disk, between its start and the note of its process id."""
    weed = find_weed(os.environ)
    assert weed is not None
    first, second = (Seaweed(weed, tmp_path, region="us-east-1", new_secret=lambda size: "x" * size) for _ in range(2))
    first.prepare()
    first.start()
    try:
        stray, state = first.pid, tmp_path / "state.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), "process": None}))
        second.prepare()
        second.start()
        assert stray is not None
        assert second.pid not in {None, stray}
        assert second.access == first.access
        first.is_alive()  # reaps it
        assert not is_alive(stray)
    finally:
        second.end()
        first.end()


@needs_weed
async def test_object_storage_restarts_when_its_inner_ports_are_taken(tmp_path: Path) -> None:
    """The address that clients have is the same, and so are the objects."""
    storage = make_storage(None, tmp_path, "us-east-1", os.environ)
    assert isinstance(storage, EmbeddedStorage)
    await storage.start()
    try:
        access = await storage.ready()
        client = client_of(access)
        await asyncio.to_thread(keep_object, client)
        ports = json.loads((tmp_path / "state.json").read_bytes())["ports"]
        os.kill(storage.pid, signal.SIGKILL)
        with taken(*(port for name, port in ports.items() if name != "s3")):
            while storage.state == "ready":
                await asyncio.sleep(0.05)
            assert await storage.ready() == access
            assert await asyncio.to_thread(kept_object, client) == CONTENT
        client.close()
    finally:
        await storage.stop()


@needs_weed
async def test_a_foreign_process_on_the_public_port_is_named_and_waited_for(tmp_path: Path) -> None:
    storage = make_storage(None, tmp_path, "us-east-1", os.environ)
    assert isinstance(storage, EmbeddedStorage)
    await storage.start()
    try:
        access = await storage.ready()
        port = int(access.endpoint_url.rpartition(":")[2])
        os.kill(storage.pid, signal.SIGKILL)
        with taken(port):
            deadline_s = time.monotonic() + WAIT_S
            while f"port {port}, which its clients know, is taken by another program" not in storage.state:
                assert time.monotonic() < deadline_s, storage.state
                await asyncio.sleep(0.05)
        assert await storage.ready() == access
    finally:
        await storage.stop()


@needs_weed
async def test_another_server_on_its_port_is_not_mistaken_for_it(tmp_path: Path) -> None:
    """Both say at /healthz that they are well."""
    (tmp_path / "one").mkdir()
    storage = make_storage(None, tmp_path / "one", "us-east-1", os.environ)
    await storage.start()
    try:
        await storage.ready()
        state = json.loads((tmp_path / "one" / "state.json").read_bytes())
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "state.json").write_text(json.dumps({**state, "secret_key": "another"}))
        mistaken = Seaweed("weed", tmp_path / "two", region="us-east-1", new_secret=str)
        mistaken.prepare()
        assert mistaken.access is not None
        assert mistaken.access.endpoint_url == (await storage.ready()).endpoint_url
        assert not await asyncio.to_thread(mistaken.answers)
    finally:
        await storage.stop()


@needs_weed
async def test_the_next_platform_adopts_the_object_storage_that_was_left_running_or_ends_it(tmp_path: Path) -> None:
    first = make_storage(None, tmp_path, "us-east-1", os.environ)
    assert isinstance(first, EmbeddedStorage)
    await first.start()
    access = await first.ready()
    pid = first.pid
    await first.stop(keep=True)
    second = make_storage(None, tmp_path, "us-east-1", os.environ)
    assert isinstance(second, EmbeddedStorage)
    await second.start()
    try:
        assert await second.ready() == access
        assert second.pid == pid
    finally:
        await second.stop(keep=True)
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    await asyncio.to_thread(make_storage, "http://minio:9000", tmp_path, "us-east-1", keys)
    assert not is_alive(pid)
    port = access.endpoint_url.rpartition(":")[2]
    assert not Path(f"/tmp/seaweedfs-s3-{port}.sock").exists()


@needs_weed
async def test_a_port_that_another_process_took_is_replaced(tmp_path: Path) -> None:
    first = make_storage(None, tmp_path, "us-east-1", os.environ)
    await first.start()
    access = await first.ready()
    client = client_of(access)
    await asyncio.to_thread(keep_object, client)
    client.close()
    await first.stop()
    port = int(access.endpoint_url.rpartition(":")[2])
    with taken(port):
        second = make_storage(None, tmp_path, "us-east-1", os.environ)
        await second.start()
        try:
            moved = await second.ready()
            assert moved.endpoint_url != access.endpoint_url
            client = client_of(moved)
            assert await asyncio.to_thread(kept_object, client) == CONTENT
            client.close()
        finally:
            await second.stop()


def keep_object(client: Any) -> None:
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="key", Body=CONTENT)


def kept_object(client: Any) -> bytes:
    with client.get_object(Bucket="bucket", Key="key")["Body"] as body:
        return bytes(body.read())


def client_of(access: S3Access) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=access.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
        config=Config(retries={"mode": "standard", "total_max_attempts": 3}, proxies={}),
    )


@pytest.mark.parametrize(
    ("page", "is_up"), [('<a href="http://127.0.0.1:{port}/ui">127.0.0.1:{port}</a>', True), ("<table></table>", False)]
)
def test_object_storage_is_not_ready_before_its_volumes(tmp_path: Path, page: str, is_up: bool) -> None:
    """S3 answers some seconds before on a busy machine, and answers InternalError for every object."""
    with answering(page) as port:
        state = {
            "access_key": "a",
            "secret_key": "s",
            "ports": dict.fromkeys(LISTENERS, port),
            "process": process_id(os.getpid()),  # it runs: the ports are its own
        }
        (tmp_path / "state.json").write_bytes(msgspec.json.encode(state))
        seaweed = Seaweed("weed", tmp_path, region="us-east-1", new_secret=str)
        seaweed.prepare()
        assert seaweed.answers() is is_up


@contextmanager
def answering(page: str) -> Iterator[int]:
    """A server that gives every client the same answer, with its port for `{port}`, and the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.format(port=server.server_port).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def taken(*ports: int) -> Iterator[None]:
    """Listen on the ports as soon as each is free."""
    with ExitStack() as listeners:
        for port in ports:
            deadline_s = time.monotonic() + WAIT_S
            while True:
                try:
                    listeners.enter_context(socket.create_server(("127.0.0.1", port)))
                    break
                except OSError:
                    assert time.monotonic() < deadline_s
        yield
