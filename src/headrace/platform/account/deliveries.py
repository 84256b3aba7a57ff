"""
Delivers messages by HTTP POST, with a few retries, in the background.

Messages wait in memory, so that those which are not delivered when the process ends are lost. Threads exist only while
there are messages. Addresses of link-local networks, where clouds answer with credentials of the machine, are refused
when a connection is made, whatever name leads there; redirects are not followed, and answers are not read.
"""

import heapq
import http.client
import ipaddress
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from headrace.core.telemetry import get_logger

_DELAYS_S: Final = (1.0, 5.0, 20.0)
"""Seconds before each retry. AWS retries three times, 20 s apart, by default."""
_TIMEOUT_S: Final = 15.0
"""Source: Amazon SNS developer guide, "Message delivery retries": an endpoint has 15 seconds."""
_MAX_WAITING: Final = 1000
_MAX_THREADS: Final = 4
_IDLE_S: Final = 2.0
"""Seconds after which a thread without messages ends."""
_THROTTLED: Final = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message to one URL."""

    url: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str]


_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Metadata services of AWS, Alibaba, Azure and Oracle that are not link-local."""
_COMPATIBLE: Final = ipaddress.ip_network("::/96")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenAddress(OSError):
    """The name of a URL leads to an address that no message is sent to."""


def connect_checked(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address of a name that answers. Raises `OSError`, also if an address is not allowed."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, address in found:
        check_address(str(address[0]))
    error: OSError = ForbiddenAddress(f"{host} has no address")
    for *_, address in found:
        try:
            # The address that was checked: another look-up of the name may lead elsewhere.
            return socket.create_connection((str(address[0]), port), timeout=timeout_s)
        except OSError as failure:
            error = failure
    raise error


def check_address(text: str) -> None:
    """Refuse addresses of link-local networks, metadata services, multicast and none. Raises `ForbiddenAddress`."""
    address = ipaddress.ip_address(text.partition("%")[0])
    for found in (address, *_embedded(address)):
        if found.is_link_local or found.is_multicast or found.is_unspecified or found in _METADATA:
            raise ForbiddenAddress(f"{text} is a link-local, multicast or unspecified address, or a metadata service")


def _embedded(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address may lead to by translation or a tunnel."""
    if address.version == 4:
        return []
    found = [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)] if address in _COMPATIBLE or address in _NAT64 else []
    return found + [known for known in (address.ipv4_mapped, address.sixtofour) if known is not None]


class _Plain(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = connect_checked(self.host, self.port, _TIMEOUT_S)


class _Secure(http.client.HTTPSConnection):
    def connect(self) -> None:
        plain = connect_checked(self.host, self.port, _TIMEOUT_S)
        self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self.host)


def post(delivery: Delivery) -> int:
    """Send one message and return the status of the answer. Raises `OSError` or `http.client.HTTPException`."""
    url = urlsplit(delivery.url)
    connection = (_Secure if url.scheme == "https" else _Plain)(url.hostname or "", url.port)
    try:
        path = url.path or "/"
        connection.request("POST", f"{path}?{url.query}" if url.query else path, delivery.body, dict(delivery.headers))
        return connection.getresponse().status
    finally:
        connection.close()


class Deliverer:
    """The messages that wait for delivery. Any thread may use it."""

    def __init__(
        self,
        *,
        delays_s: tuple[float, ...] = _DELAYS_S,
        send: Callable[[Delivery], int] = post,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delays_s = delays_s
        self._send = send
        self._clock = clock
        self._waiting: list[tuple[float, int, int, Delivery]] = []
        """When each is due, in order, with its number and its number of attempts."""
        self._numbers = itertools.count()
        self._num_threads = 0
        self._changed = threading.Condition()

    def deliver(self, delivery: Delivery) -> bool:
        """Deliver a message soon; return False if too many are waiting."""
        return self._put(self._clock(), 0, delivery)

    def _put(self, due_s: float, num_attempts: int, delivery: Delivery) -> bool:
        with self._changed:
            if len(self._waiting) >= _MAX_WAITING:
                self._note_lost(delivery, f"{_MAX_WAITING} messages are waiting")
                return False
            heapq.heappush(self._waiting, (due_s, next(self._numbers), num_attempts, delivery))
            if self._num_threads < min(_MAX_THREADS, len(self._waiting)):
                self._num_threads += 1
                threading.Thread(target=self._run, name="deliveries", daemon=True).start()
            self._changed.notify()
        return True

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            num_attempts, delivery = taken
            failure = self._attempt(delivery)
            if failure is None:
                continue
            is_final, reason = failure
            if is_final or num_attempts >= len(self._delays_s):
                self._note_lost(delivery, reason)
            else:
                self._put(self._clock() + self._delays_s[num_attempts], num_attempts + 1, delivery)

    def _take(self) -> tuple[int, Delivery] | None:
        """Wait for the next message that is due; None: there are none, and the thread ends."""
        with self._changed:
            while True:
                now_s = self._clock()
                if self._waiting and self._waiting[0][0] <= now_s:
                    _, _, num_attempts, delivery = heapq.heappop(self._waiting)
                    return num_attempts, delivery
                pause_s = self._waiting[0][0] - now_s if self._waiting else _IDLE_S
                if not self._changed.wait(pause_s) and not self._waiting:
                    self._num_threads -= 1
                    return None

    def _attempt(self, delivery: Delivery) -> tuple[bool, str] | None:
        """Send a message; return None, or whether the failure is final, and its reason."""
        try:
            status = self._send(delivery)
        except ForbiddenAddress as error:
            return True, str(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return False, str(error) or type(error).__name__
        if 200 <= status < 300:
            return None
        return status < 500 and status != _THROTTLED, f"the answer has the status {status}"

    def _note_lost(self, delivery: Delivery, reason: str) -> None:
        host = urlsplit(delivery.url).hostname  # the rest may have secrets
        get_logger().warning("message.not_delivered", host=host, reason=reason)
