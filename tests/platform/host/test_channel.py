"""The channel between machines: what it answers, and what it refuses."""

import hashlib
import hmac
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.platform.host import channel as channels
from headrace.platform.host import peers
from headrace.platform.host.channel import PATH, Channel, MachineSilent, Replays
from headrace.platform.host.peers import Siblings
from headrace.platform.state.coordination import Member, Standing
from headrace.platform.storage.s3_signing import S3Access, signed_headers
from tests import plain_http
from tests.waiting import WAIT_S

from .serving import serving

SECRET = "of the members"


def sealed(nonce: str, text: bytes = b'{"name": "echo", "argument": 1}') -> bytes:
    key = hmac.digest(SECRET.encode(), f"question\n{nonce}".encode(), "sha256")
    return bytes(12) + AESGCM(key).encrypt(bytes(12), text, None)


def opened(nonce: str, body: bytes) -> bytes:
    key = hmac.digest(SECRET.encode(), f"answer\n{nonce}".encode(), "sha256")
    return AESGCM(key).decrypt(body[:12], body[12:], None)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that answers is asked as long as it takes."""
    monkeypatch.setattr(peers, "TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(channels, "TIMEOUT_S", WAIT_S)


def member(name: str, url: str) -> Member:
    return Member(id=name, url=url, host="host", data_dir="/", version="1")


def channel_of(own: Member, folder: Path, **options: Any) -> Channel:
    async def echo(argument: Any) -> Any:
        return [own.id, argument]

    siblings = Siblings(folder=folder, own_id=own.id, answers={"echo": echo, "fixed": lambda _: own.id})
    return Channel(**{"siblings": siblings, "own": own, "secret": SECRET, **options})


class Receiver:
    """The other machine: an application that gets its channel when its address is known."""

    channel: Channel

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.channel(scope, receive, send)
        except channels.AwsError as error:
            await channels.send_response(scope, send, error.http_status, (), error.code.encode())


@contextmanager
def other_machine(folder: Path) -> Iterator[Member]:
    """A machine with two processes, of which one serves on the port."""
    receiver = Receiver()

    async def start() -> None:
        await second.start()

    async def stop() -> None:
        await second.close()

    second = Siblings(folder=folder / "sockets", own_id="b2", answers={"echo": lambda argument: ["b2", argument]})
    with serving(receiver, start=start, stop=stop) as url:
        own = member("b1", url)
        receiver.channel = channel_of(own, folder / "sockets")
        receiver.channel.siblings.set_members([own, member("b2", url)])
        yield own


@asynccontextmanager
async def asking(other: Member, folder: Path, **options: Any) -> AsyncIterator[Channel]:
    own = member("a", "http://127.0.0.2:1")
    made = channel_of(own, folder, **options)
    made.set_standing(Standing(term=1, leader="", members=(own, other, replace(other, id="b2"))))
    try:
        yield made
    finally:
        await made.close()


async def test_every_process_of_another_machine_answers_or_just_one_of_it(tmp_path: Path) -> None:
    with other_machine(tmp_path) as other:
        async with asking(other, tmp_path) as a:
            assert a.machines == [other.machine]
            assert await a.ask("echo", 1) == [["b1", 1], ["b2", 1]]
            assert await a.ask_machine(other.machine, "fixed") == "b1"
            large = ["x" * (2 << 20)]
            assert await a.ask_machine(other.machine, "echo", large, timeout_s=WAIT_S) == ["b1", large]
            assert await a.ask("unknown") == []
            with pytest.raises(MachineSilent, match="answered 404"):
                await a.ask_machine(other.machine, "unknown")
            with pytest.raises(MachineSilent, match="not a live member"):
                await a.ask_machine("gone:1", "echo")


async def test_a_member_with_another_secret_gets_no_answer(tmp_path: Path) -> None:
    with other_machine(tmp_path) as other:
        async with asking(other, tmp_path, secret="guessed") as a:
            assert await a.ask("echo") == []
            with pytest.raises(MachineSilent, match="answered 403"):
                await a.ask_machine(other.machine, "echo")


async def test_an_answer_that_no_member_has_sealed_is_none(tmp_path: Path) -> None:
    async def pose(scope: Any, receive: Any, send: Any) -> None:
        await channels.send_response(scope, send, 200, (), sealed("1", b'"b1"'))

    with serving(pose) as url:
        async with asking(member("b1", url), tmp_path) as a:
            with pytest.raises(MachineSilent, match="the message was changed on its way"):
                await a.ask_machine(a.machines[0], "fixed")


def test_what_no_member_has_signed_for_this_machine_now_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(url: str, *, path: str = PATH, **changes: Any) -> httpx.Response:
        nonce = changes.get("nonce", "1")
        body = changes.get("sealed", sealed(nonce))
        own = {} if changes.get("has_no_nonce") else {"x-amz-nonce": nonce}
        access = S3Access(endpoint_url="", access_key=changes.get("key", "MEMBERS"), secret_key=SECRET, region="r")
        headers = signed_headers(
            access,
            method="POST",
            host=changes.get("host", url.removeprefix("http://")),
            path=PATH,
            query="",
            headers=own,
            payload_hash=changes.get("digest") or hashlib.sha256(body).hexdigest(),
            now_s=time.time() + changes.get("shift_s", 0),
        )
        content = changes.get("body", body)
        return plain_http.post(url + path, headers={**headers, **own, **changes.get("headers", {})}, content=content)

    refused: list[dict[str, Any]] = [
        {"headers": {"authorization": ""}},
        {"headers": {"x-amz-nonce": "2"}},
        {"body": sealed("another")},
        {"digest": "UNSIGNED-PAYLOAD"},
        {"host": "127.0.0.9:1"},
        {"has_no_nonce": True},
        {"shift_s": -3600},
        {"shift_s": 3600},
        {"key": "HRAKGENERATEDATSTART"},
        {"path": f"{PATH}?X-Amz-Expires=60"},
    ]
    with other_machine(tmp_path) as other:
        for number, change in enumerate(refused):
            assert sent(other.url, **{"nonce": f"refused {number}", **change}).status_code in (400, 403), change
        assert json.loads(opened("1", sent(other.url).content)) == ["b1", 1]
        assert sent(other.url).status_code == 403, "it was sent before"
        for unread in (b"", b'{"name": "echo"}', sealed("3", b"{"), sealed("another")):
            assert sent(other.url, nonce="3" + unread.hex(), sealed=unread).status_code == 404
        assert b"echo" not in sent(other.url, nonce="2").content
        # Another process does not know the nonce: two answers under one key and vector would be readable.
        monkeypatch.setattr(Replays, "take", lambda *_: True)
        answers = {sent(other.url).content for _ in range(3)}
        assert len({answer[:12] for answer in answers}) == 3
        assert {opened("1", answer) for answer in answers} == {b'["b1",1]'}


def test_a_body_is_not_read_before_its_signature_was_verified_nor_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(channels, "MAX_BYTES", 100)

    def answer_to(other: Member, secret: str, length: int, begin: bytes, nonce: str) -> bytes:
        """Answer to a request of which only the beginning of the body is sent."""
        access = S3Access(endpoint_url="", access_key="MEMBERS", secret_key=secret, region="r")
        own = {"x-amz-nonce": nonce}
        signed = signed_headers(
            access,
            method="POST",
            host=other.machine,
            path=PATH,
            query="",
            headers=own,
            payload_hash="0" * 64,
            now_s=time.time(),
        )
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**own, **signed}.items())
        with socket.create_connection(("127.0.0.1", int(other.machine.partition(":")[2])), WAIT_S) as connection:
            head = f"POST {PATH} HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n"
            connection.sendall(head.encode() + begin)
            return connection.recv(100).splitlines()[0]

    with other_machine(tmp_path) as other:
        assert b" 403 " in answer_to(other, "guessed", 10, b"", "1")
        assert b" 408 " in answer_to(other, SECRET, 10, b"{", "2")
        assert b" 413 " in answer_to(other, SECRET, 1000, b"x" * 200, "3")


def test_a_nonce_is_remembered_as_long_as_its_signature_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    replays = Replays(lambda: now_s)
    assert replays.take("a")
    assert not replays.take("a")
    now_s = 1800.0
    assert replays.take("a")
    assert replays.take("b")
    assert not replays.take("a")
    monkeypatch.setattr(channels, "MAX_NONCES", 100)
    assert all(replays.take(str(number)) for number in range(1000))
    assert len(replays) == 101
