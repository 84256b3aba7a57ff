"""The listening socket of a server, bound before anything slow begins: a port in use is reported at once."""

import errno
import socket

from headrace.core.errors import SettingsError

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
