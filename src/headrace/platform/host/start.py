"""
Start of a platform: lock its folder, bind its port, and serve with one process or several, until a signal.

This process supervises those that serve (`platform.supervisor`), unless `supervised` is off. With `is_takeover` it
first gets the sockets of the platform that runs on the folder, which ends as soon as the processes here accept
requests. It imports little: the parts of a platform are those of `process`.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.core.allocator import limit_arenas
from headrace.core.errors import HeadraceError, SettingsError, UserError
from headrace.core.processes import protect_memory
from headrace.core.telemetry import setup_logging
from headrace.core.threads import take_short_turns
from headrace.platform.host.folders import DataFolder, short_path
from headrace.platform.host.listener import Listener
from headrace.platform.host.supervisor import STOP_WITHOUT_DELAY, Child, Supervisor
from headrace.platform.state.database_lock import locked_database
from headrace.serving.http.tls import bind, server_context
from headrace.serving.settings.platform_settings import PlatformSettings, data_folder

if TYPE_CHECKING:
    from headrace.platform.host.life import OnReady

_ASK: Final = b"sockets"
_READY: Final = b"ready"
_MAX_SOCKETS: Final = 64
_TIMEOUT_S: Final = 10.0
_NAME: Final = "supervisor"


class Handover:
    """
    The sockets of a running platform, as its successor on the same data folder has them.

    The running supervisor listens on a Unix socket in its folder. The next one asks for copies of the listening
    sockets, starts its processes on them, and says when they are ready; then the processes of the first one drain and
    end. Both accept from the same queues in between, so no connection is refused or lost.
    """

    def __init__(self, control: socket.socket, sockets: Sequence[socket.socket]) -> None:
        self._control = control
        self.sockets = sockets

    def complete(self) -> None:
        """Tell the running platform that its successor accepts requests, so that it ends; it may have been killed."""
        with suppress(OSError):
            self._control.sendall(_READY)
        self._control.close()


def take_over(folder: Path) -> Handover:
    """Ask the platform that runs on a data folder for its listening sockets. Raises `SettingsError`."""
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


def run_platform(
    settings: PlatformSettings,
    *,
    is_takeover: bool = False,
    on_ready: "OnReady | None" = None,
    env: Mapping[str, str] = os.environ,
) -> int:
    """
    Run a platform until a signal stops it; return the exit code. An error has been written to stderr.

    With `is_takeover` the port is taken over from the platform that runs on the data folder.
    """
    setup_logging(format=settings.log_format, level=settings.log_level)
    os.umask(0o077)  # whatever it, its workers and its object storage write is for their user alone
    protect_memory()
    limit_arenas()
    take_short_turns()
    folder = DataFolder(data_folder(settings, env))
    start = _Start(settings=settings, folder=folder, is_takeover=is_takeover, on_ready=on_ready, env=env)
    return _exit_code_of(start.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The start of one platform; its resources are released when `run` returns."""

    settings: PlatformSettings
    folder: DataFolder
    is_takeover: bool
    on_ready: "OnReady | None"
    env: Mapping[str, str]
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def _database(self) -> str | Path:
        return self.settings.database or self.folder.database

    @property
    def _is_supervised(self) -> bool:
        return self.is_takeover or self.settings.supervised or self.settings.processes > 1

    @property
    def _prepares_in_child(self) -> bool:
        """
        The only process to supervise imports the parts of a platform, 60 MB, and the supervisor does not.

        Several processes share what the supervisor has imported before it forks them.
        """
        return self._is_supervised and self.settings.processes == 1

    def run(self) -> int:
        with self._stack:
            self.folder.make()
            handover = take_over(self.folder.sockets) if self.is_takeover else None
            if handover is None:
                self._stack.enter_context(self.folder.locked())
                self._stack.enter_context(locked_database(self._database))
            if not self._prepares_in_child:
                self._prepare()
            # The sockets are distributed over the processes; an earlier platform may have had more of them.
            settings, sockets = self.settings, self._bound([] if handover is None else handover.sockets)
            tls, count = server_context(settings.tls_cert, settings.tls_key), settings.processes
            listeners = [Listener(sockets[index::count], tls, settings.tls_cert) for index in range(count)]
            if self._is_supervised:
                return self._supervise(listeners, handover)
            self._stack.enter_context(self.folder.announced(listeners[0].address))
            return self._serve(listeners[0], self.on_ready)

    def _supervise(self, listeners: Sequence[Listener], handover: Handover | None) -> int:
        sockets = [bound for listener in listeners for bound in listener.sockets]

        def serve(child: Child) -> int:
            own = listeners[child.index]
            _close(bound for listener in listeners if listener is not own for bound in listener.sockets)
            on_ready = self.on_ready if child.is_first and child.index == 0 else None
            return _exit_code_of(lambda: self._serve(own, on_ready, child))

        def begin() -> None:
            """Announce this platform and offer its sockets, as no other one runs now."""
            self._stack.enter_context(self.folder.announced(listeners[0].address))
            self._stack.callback(offer(self.folder.sockets, sockets, supervisor))

        def has_earlier_ended() -> bool:
            try:
                self._stack.enter_context(self.folder.locked())
            except SettingsError:
                return False
            self._stack.enter_context(locked_database(self._database))
            begin()
            return True

        def complete() -> None:
            """Stop the earlier platform, and announce this one as soon as it has ended."""
            if handover is not None:
                handover.complete()
                supervisor.poll(has_earlier_ended)
            elif self._prepares_in_child:
                begin()

        supervisor = Supervisor(len(listeners), serve, on_stop=lambda: _close(sockets), on_ready=complete)
        if handover is None:
            self.folder.forget_members()
            if not self._prepares_in_child:  # the key is there when others learn of the platform
                begin()
        return supervisor.run()

    def _prepare(self) -> None:
        from headrace.platform.host.process import prepare

        prepare(self.settings, self.folder, self._database)

    def _serve(self, listener: Listener, on_ready: "OnReady | None", child: Child | None = None) -> int:
        from headrace.platform.host.process import serve

        if child is not None and child.is_first and self._prepares_in_child:
            self._prepare()
        return serve(
            self.settings, self.folder, self._database, listener=listener, on_ready=on_ready, child=child, env=self.env
        )

    def _bound(self, inherited: Sequence[socket.socket]) -> list[socket.socket]:
        """Bind a socket for each process that has none yet, on one port."""
        settings, sockets = self.settings, list(inherited)
        if not sockets:  # not shared yet: a platform of another folder must not get a part of its connections
            sockets.append(self._stack.enter_context(bind(settings.host, settings.port)))
        while len(sockets) < settings.processes:
            for bound in sockets:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = sockets[0].getsockname()[1]
            sockets.append(self._stack.enter_context(bind(settings.host, port, is_shared=True)))
        return sockets


def _exit_code_of(run: Callable[[], int]) -> int:
    """Return the exit code of a run; write its error to stderr."""
    try:
        return run()
    except HeadraceError as error:
        print(f"Error: {error.message}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, UserError) else 1


def _close(sockets: Iterable[socket.socket]) -> None:
    """Close sockets in this process; the kernel refuses connections to one that no process has open."""
    for bound in sockets:
        bound.close()
