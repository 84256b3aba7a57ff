"""The listening socket of a server, and TLS on it with a certificate that is reread when its files change.

The socket is bound before anything slow begins: a port in use is reported at once.

Renewals of the certificate need no restart. The files are checked at handshakes, at most once in `CHECK_INTERVAL_S`;
connections that exist keep their certificate. A renewal that cannot be read (files written one after the other, a wrong
key) is logged, and the certificate in use stays.
"""

import errno
import hashlib
import socket
import ssl
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.telemetry import get_logger

BACKLOG = 2048
"""Connections waiting to be accepted. Source: uvicorn's default."""


def bind(host: str, port: int, *, setting: str = "port", is_shared: bool = False) -> socket.socket:
    """
    Listen on `host:port`; connections queue from now on.

    With `is_shared` other sockets of this user may listen there too, and the kernel spreads new connections over them
    (SO_REUSEPORT). `SettingsError` names the setting that changes an address that cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise SettingsError(
            f"host {host} cannot be looked up ({error.strerror}). Check {_flag(setting, 'host')}.", name="host"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(_sentence(error, host, port, setting), name=setting) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """Return the URL by which a program on this machine reaches the server."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 -- shown, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _flag(setting: str, part: str) -> str:
    """Return the flag that changes the port or the host: `port` has one for each, an address is both."""
    return f"--{part}" if setting == "port" else f"--{setting.replace('_', '-')}"


def _sentence(error: OSError, host: str, port: int, setting: str) -> str:
    port_flag = _flag(setting, "port")
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use. Stop the program that listens there "
            f"(`ss -ltnp 'sport = :{port}'` shows it), or choose another port with {port_flag}; 0 takes a free one."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} may not be used by this user. Choose one from 1024 up with {port_flag}."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine. Check {_flag(setting, 'host')}."
    return f"{host}:{port} cannot be listened on: {error.strerror}."


CHECK_INTERVAL_S = 10.0
"""Seconds between checks of the files."""
_MAX_FLIGHTS = 8
"""Messages of a handshake; TLS 1.2 has four flights."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate chain and its private key in PEM; both may be in one file."""

    certificate: Path
    key: Path

    def modified_ns(self) -> tuple[int, ...]:
        """Return the modification times of the files; 0 for a missing file."""
        return tuple(_modified_ns(path) for path in (self.certificate, self.key))

    def context(self) -> ssl.SSLContext:
        """
        Return a server's context with the certificate: TLS 1.2 and 1.3, HTTP/1.1.

        Raises `SettingsError` if a file cannot be read, is not PEM, or the key is encrypted or of another certificate.
        """
        for path, name in ((self.certificate, "tls_cert"), (self.key, "tls_key")):
            try:
                path.open("rb").close()
            except OSError as error:
                raise SettingsError(
                    f"{name} {path} cannot be read: {error.strerror}. Check its path and mode.", name=name
                ) from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.certificate, self.key, password=self._refuse_encrypted)
        except ssl.SSLError as error:
            raise self._unusable(error) from error
        return context

    def _refuse_encrypted(self) -> str:
        """Refuse an encrypted key; without this callback OpenSSL would ask for the password on the terminal."""
        raise SettingsError(
            f"tls_key {self.key} is encrypted; expected a key without a password. Decrypt it with "
            f"`openssl pkey -in {self.key} -out FILE`, in a file that only this user may read.",
            name="tls_key",
        )

    def _unusable(self, error: ssl.SSLError) -> SettingsError:
        if error.reason == "KEY_VALUES_MISMATCH":
            return SettingsError(
                f"tls_key {self.key} is not the key of the certificate {self.certificate}; expected the key that the "
                "certificate was issued for.",
                name="tls_key",
            )
        both = f"{self.certificate} and {self.key}" if self.key != self.certificate else str(self.certificate)
        return SettingsError(
            f"No certificate with its key was found in {both} ({error.reason or error}); expected PEM files: "
            "the certificate, followed by intermediate ones, and the private key.",
            name="tls_cert",
        )


def server_context(
    certificate: Path | None, key: Path | None, *, check_interval_s: float = CHECK_INTERVAL_S
) -> ssl.SSLContext | None:
    """
    Return the context of a server with these files, or None if it serves plain HTTP.

    Without `key` the certificate's file has the key. Raises `SettingsError` if the files cannot be used.
    """
    if certificate is None:
        if key is not None:
            raise SettingsError(f"tls_key is {key} without a tls_cert. Set --tls-cert too.", name="tls_key")
        return None
    files = CertificateFiles(certificate, key or certificate)
    return _RenewedContext(files, check_interval_s).context


def client_context(ca_bundle: str | None) -> ssl.SSLContext:
    """Return the context of a client that also trusts the certificates of a file or folder. Raises `SettingsError`."""
    context = ssl.create_default_context()
    if ca_bundle is not None:
        is_folder = Path(ca_bundle).is_dir()
        try:
            context.load_verify_locations(**{"capath" if is_folder else "cafile": ca_bundle})
        except OSError as error:  # also OpenSSL's
            reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise SettingsError(
                f"The certificates to trust are {ca_bundle}, which cannot be read: {reason}. Set AWS_CA_BUNDLE to a "
                "PEM file of root certificates, or unset it.",
                name="ca_bundle",
            ) from error
    return context


@cache
def default_context() -> ssl.SSLContext:
    """Return the context of a client that trusts the authorities of this machine."""
    return client_context(None)


_PIN: Final = "sha256="


def pin_of(certificate: bytes) -> str:
    """Return the fragment of a URL that names the only certificate (DER) which a server there may have."""
    return f"{_PIN}{hashlib.sha256(certificate).hexdigest()}"


@cache
def pinned_context() -> ssl.SSLContext:
    """Return the context of a client that checks by `has_pin` whom it has reached, and by no authority or name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the handshake still proves that the server has the certificate's key
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def has_pin(connection: ssl.SSLObject | None, pin: str) -> bool:
    """Return whether a connection's server has the certificate that a pin names."""
    certificate = connection.getpeercert(binary_form=True) if connection is not None else None
    return certificate is not None and pin_of(certificate) == pin


def trusts_itself(certificate: Path, context: ssl.SSLContext) -> bool:
    """
    Return whether clients that trust only this file accept the server's certificate, as with a self-signed one.

    Tested by a handshake in memory. A file that lacks the root of its chain is no trust anchor for OpenSSL.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_side=False),
        context.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = set(ends)
    # Each end reads what the other has written, until neither waits for more.
    for _ in range(_MAX_FLIGHTS):
        for end in ends:
            try:
                end.do_handshake()
                waiting.discard(end)
            except ssl.SSLWantReadError:
                waiting.add(end)
            except ssl.SSLError:
                return False
        if not waiting:
            return True
    return False


class _RenewedContext:
    def __init__(self, files: CertificateFiles, check_interval_s: float) -> None:
        self._files = files
        self._check_interval_s = check_interval_s
        self._modified_ns = files.modified_ns()
        self._newest = self.context = files.context()
        self._checked_s = time.monotonic()
        self.context.sni_callback = self._use_newest

    def _use_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Use the newest certificate; called by OpenSSL at every handshake, with or without a server name."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= self._check_interval_s:
            self._checked_s = now_s
            self._renew()
        connection.context = self._newest

    def _renew(self) -> None:
        modified_ns = self._files.modified_ns()
        if modified_ns == self._modified_ns:
            return
        try:
            self._newest = self._files.context()
        except SettingsError as error:
            get_logger().warning("tls.not_renewed", reason=error.message)
            return
        self._modified_ns = modified_ns
        get_logger().info("tls.renewed", certificate=str(self._files.certificate))


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
