"""The sockets of one process of a platform."""

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from headrace.platform.host.folders import Address
from headrace.serving.http.tls import trusts_itself, url_of


class Listener:
    """The bound sockets of a process, their TLS, and the address by which programs on this machine reach it."""

    def __init__(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None, certificate: Path | None) -> None:
        self.sockets = sockets
        self.tls = tls
        is_own_root = tls is not None and certificate is not None and trusts_itself(certificate, tls)
        self.address = Address(
            url=url_of(sockets[0], is_tls=tls is not None),
            ca_bundle=str(certificate.absolute()) if certificate is not None and is_own_root else None,
        )
