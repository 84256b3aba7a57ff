"""
Takeover of a platform's listening sockets by the next platform on the same data folder.

The running supervisor listens on a Unix socket in its folder. The next one asks for copies of the listening sockets,
starts its processes on them, and says when they are ready; then the processes of the first one drain and end. Both
accept from the same queues in between, so no connection is refused or lost.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.platform.folders import short_path
from headrace.platform.supervisor import STOP_WITHOUT_DELAY, Supervisor

_ASK: Final = b"sockets"
_READY: Final = b"ready"
_MAX_SOCKETS: Final = 64
_TIMEOUT_S: Final = 10.0
_NAME: Final = "supervisor"


class Handover:
    """The sockets of a running platform, as its successor has them."""

    def __init__(self, control: socket.socket, sockets: Sequence[socket.socket]) -> None:
        self._control = control
        self.sockets = sockets

    def complete(self) -> None:
        """Tell the running platform that its successor accepts requests, so that it ends; it may have been killed."""
        with suppress(OSError):
            self._control.sendall(_READY)
        self._control.close()


def take_over(folder: Path) -> Handover:
    """
    Ask the platform that runs on a data folder for its listening sockets.

    Raises:
        SettingsError: none runs there, or it cannot hand its sockets over.
    """
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(_TIMEOUT_S)
    try:
        with short_path(folder) as short:
            control.connect(f"{short}/{_NAME}")
        control.sendall(_ASK)
        _, descriptors, _, _ = socket.recv_fds(control, 1, _MAX_SOCKETS)
    except OSError as error:
        control.close()
        raise SettingsError(
            f"No platform hands its port over in {folder}: {error.strerror or error}. `--takeover` needs a running "
            "platform on the same data folder that is supervised (`--supervised`, the default): only then another "
            "process than the one that serves has the port.",
            name="data_dir",
        ) from error
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for listener in sockets:
        listener.setblocking(False)
    return Handover(control, sockets)


def offer(folder: Path, sockets: Sequence[socket.socket], supervisor: Supervisor) -> Callable[[], None]:
    """Hand sockets over to a successor that asks for them, and stop when it is ready; returns how to end the offer."""
    folder.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(folder) as short:
        (folder / _NAME).unlink(missing_ok=True)
        listener.bind(f"{short}/{_NAME}")
    listener.listen()

    def accept() -> None:
        control, _ = listener.accept()
        control.settimeout(_TIMEOUT_S)
        supervisor.watch(control, lambda: read(control))

    def read(control: socket.socket) -> None:
        said = b""
        with suppress(OSError):
            said = control.recv(64)
            if said == _ASK:
                socket.send_fds(control, [b"."], [listening.fileno() for listening in sockets])
                return
        supervisor.unwatch(control)
        control.close()
        if said == _READY:
            supervisor.stop(STOP_WITHOUT_DELAY)

    supervisor.watch(listener, accept)
    return listener.close
