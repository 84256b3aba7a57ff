"""
The channel between the machines of a platform: questions over HTTP, on the port that each machine advertises.

A question is signed with Signature Version 4 by a key of the members' own, whose secret is in the database: no client
has it, and no operation lists it. The receiver reads nothing of a body before the signature of its head, which has the
body's digest, was verified; and it takes each signature once. Questions have secrets of workers, so bodies are sealed
with keys from the same secret; only a member that got the question can seal an answer to it.
"""

import asyncio
import hashlib
import hmac
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.host.peers import TIMEOUT_S, UNREADABLE, Answer, Siblings, answer
from headrace.platform.state.coordination import Member, Standing
from headrace.platform.storage.s3_signing import S3Access, signed_headers
from headrace.serving.http.asgi import Receive, Scope, Send, request_of, send_response
from headrace.serving.http.body import BodyTooLarge, BodyTooSlow, read_body
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge
from headrace.serving.wire.aws import sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

T = TypeVar("T")

PATH: Final = "/.headrace/members"
"""No bucket has such a name."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest question or answer."""
MAX_NONCES: Final = 1 << 16
"""Nonces that are remembered, some 8 MB: minutes of the questions of a leader with hundreds of workers."""
_KEY_ID: Final = "MEMBERS"
_REGION: Final = "us-east-1"
_NONCE: Final = "x-amz-nonce"
_ANSWERED: Final = "answer"
_ASKED: Final = "question"
_IV_BYTES: Final = 12
"""A random initialization vector comes before each text: two processes may answer a question that was sent again."""
_BODY_TIMEOUT_S: Final = 10.0
_MANY_BYTES: Final = 1 << 20
"""Longer bodies are hashed and decoded on another thread."""


class MachineSilent(Unavailable):
    """A machine of the platform does not answer on the channel."""


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    argument: Any = None
    is_for_all: bool = False
    """True: each process of the machine answers; False: only the one that got the question."""


class Replays:
    """The nonces of requests that were taken, each remembered for as long as its signature would be valid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken: dict[str, float] = {}
        """Nonce → when it may be forgotten, in this order."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, nonce: str) -> bool:
        """Return whether the nonce of a valid signature is new, and remember it."""
        now_s = self._clock()
        while self._taken and ((oldest := next(iter(self._taken.items())))[1] <= now_s or len(self) > MAX_NONCES):
            del self._taken[oldest[0]]
        if nonce in self._taken:
            return False
        # The date of a signature may be as far ahead as behind.
        self._taken[nonce] = now_s + 2 * sigv4.MAX_SKEW_S
        return True


@dataclass(slots=True, kw_only=True)
class Channel:
    """Questions of this process to the others of its platform, on this machine and on others, and their answers."""

    siblings: Siblings
    """The processes of this machine; they have the answers to questions."""
    own: Member
    secret: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    """Whom to trust at other machines that speak TLS."""
    now_s: Callable[[], float] = time.time
    _urls: Mapping[str, str] = field(default_factory=dict)
    """Machine → its URL, of all live machines but this one."""
    _replays: Replays = field(default_factory=Replays)
    _client: HttpClient = field(init=False)

    def __post_init__(self) -> None:
        self._client = HttpClient(self.tls)

    @property
    def answers(self) -> dict[str, Answer]:
        return self.siblings.answers

    @property
    def machines(self) -> Sequence[str]:
        """The other live machines."""
        return list(self._urls)

    def set_standing(self, standing: Standing) -> None:
        own = self.own.machine
        self.siblings.set_members([member for member in standing.members if member.machine == own])
        self._urls = {member.machine: member.url for member in standing.members if member.machine != own}
        self._client.retain(self._urls.values())

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, question: str, argument: object = None) -> list[Any]:
        """Return the answers of all other processes; one that does not answer in time is left out."""
        asked = _Question(name=question, argument=argument, is_for_all=True)
        found = await asyncio.gather(
            self.siblings.ask(question, argument), *(self._ask_all_of(machine, asked) for machine in self._urls)
        )
        return [answer for answers in found for answer in answers]

    async def ask_machine(
        self, machine: str, question: str, argument: object = None, *, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Return the answer of one process of another machine. Raises `MachineSilent`."""
        return await self._send(machine, _Question(name=question, argument=argument), timeout_s)

    async def _ask_all_of(self, machine: str, question: _Question) -> Sequence[Any]:
        try:
            return list(await self._send(machine, question, TIMEOUT_S))
        except MachineSilent as error:
            get_logger().debug("machine.silent", machine=machine, reason=error.message)
            return ()

    async def _send(self, machine: str, question: _Question, timeout_s: float) -> Any:
        url, nonce, text = self._urls.get(machine), secrets.token_hex(12), msgspec.json.encode(question)
        if url is None:
            raise MachineSilent(f"The machine {machine} is not a live member of this platform.")
        try:
            async with asyncio.timeout(timeout_s):
                body = await _off_loop(text, lambda: self._sealed(_ASKED, nonce, text))
                headers = tuple(self._signed(machine, nonce, await _digest(body)).items())
                response = await self._client.send(url, ClientRequest(path=PATH, headers=headers, body=body))
                try:
                    content = await response.read(MAX_BYTES)
                finally:
                    response.close()
            if response.status == 200:
                return await _off_loop(content, lambda: msgspec.json.decode(self._opened(_ANSWERED, nonce, content)))
            reason = f"it answered {response.status}"
        except (NoResponse, ResponseBroken, ResponseTooLarge, *UNREADABLE) as error:
            reason = str(error)
        except TimeoutError:
            reason = f"no answer within {timeout_s:g} s"
        raise MachineSilent(f"The machine {machine} does not answer to {question.name!r}: {reason}.")

    def _signed(self, machine: str, nonce: str, digest: str) -> dict[str, str]:
        access = S3Access(endpoint_url="", access_key=_KEY_ID, secret_key=self.secret, region=_REGION)
        own = {_NONCE: nonce}
        added = signed_headers(
            access,
            method="POST",
            host=machine,
            path=PATH,
            query="",
            headers=own,
            payload_hash=digest,
            now_s=self.now_s(),
        )
        del added["host"]  # the client adds it
        return {**own, **added}

    def _cipher(self, purpose: str, nonce: str) -> "AESGCM":
        """Return the cipher of a question or of its answers: a nonce names one question."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest(self.secret.encode(), f"{purpose}\n{nonce}".encode(), "sha256"))

    def _sealed(self, purpose: str, nonce: str, text: bytes) -> bytes:
        vector = secrets.token_bytes(_IV_BYTES)
        return vector + self._cipher(purpose, nonce).encrypt(vector, text, None)

    def _opened(self, purpose: str, nonce: str, body: bytes) -> bytes:
        """Return the text of a sealed message. Raises `msgspec.DecodeError`: it is none of a member's."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher(purpose, nonce).decrypt(body[:_IV_BYTES], body[_IV_BYTES:], None)
        except (InvalidTag, ValueError) as error:
            raise msgspec.DecodeError("the message was changed on its way, or is of another version") from error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a question of another machine, as the application on the port. Raises `AwsError`."""
        nonce, body = await self._verified(request_of(scope), receive)
        try:
            asked = await _off_loop(
                body, lambda: msgspec.json.decode(self._opened(_ASKED, nonce, body), type=_Question)
            )
            found = await answer(self.answers, asked.name, asked.argument)
            if asked.is_for_all:
                found = [found, *await self.siblings.ask(asked.name, asked.argument)]
        except (*UNREADABLE, KeyError):  # a member of another version
            await send_response(scope, send, 404, (), b"")
            return
        sealed = await _off_loop(body, lambda: self._sealed(_ANSWERED, nonce, msgspec.json.encode(found)))
        await send_response(scope, send, 200, (("content-type", "application/octet-stream"),), sealed)

    async def _verified(self, request: HttpRequest, receive: Receive) -> tuple[str, bytes]:
        """Return the nonce and the body of a request that a member has signed for this machine."""
        identity = sigv4.verify(request, {_KEY_ID: self.secret}.get, self.now_s(), service="s3")
        refused = AwsError(
            "AccessDenied", "The request is not signed for this machine, or was sent before.", status=403
        )
        nonce = " ".join(request.headers.get(_NONCE, "").split())  # as it is signed
        is_ours = nonce and not request.query and request.headers.get("host") == self.own.machine
        if not is_ours or identity.body_sha256 is None or not self._replays.take(nonce):
            raise refused
        try:
            body = await read_body(receive, max_bytes=MAX_BYTES, timeout_s=_BODY_TIMEOUT_S)
        except BodyTooLarge:
            raise AwsError("EntityTooLarge", f"A question has at most {MAX_BYTES} bytes.", status=413) from None
        except BodyTooSlow:
            raise AwsError("RequestTimeout", "The question did not arrive in time.", status=408) from None
        if not hmac.compare_digest(await _digest(body), identity.body_sha256):
            raise refused
        return nonce, body


async def _digest(body: bytes) -> str:
    return await _off_loop(body, lambda: hashlib.sha256(body).hexdigest())


async def _off_loop(data: bytes, work: Callable[[], T]) -> T:
    """Return the result of work on data, which is done on another thread if there is much of it."""
    return work() if len(data) < _MANY_BYTES else await asyncio.to_thread(work)


def is_channel(path: str) -> bool:
    return path == PATH
