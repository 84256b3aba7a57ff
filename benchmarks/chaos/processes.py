"""Processes of a run: the platforms, the PostgreSQL server, the small disk, and what /proc says about them."""

import os
import pwd
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 120.0
DISK_MIB = 256
_POLL_S = 0.05
_ROOT = Path("/")


def until(fact: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a true result; RuntimeError after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not fact():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"Not within {timeout_s:.0f} s: {what}.")
        time.sleep(_POLL_S)


def children(pid: int) -> list[int]:
    """Return the ids of the child processes."""
    with suppress(OSError):
        return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return []


def processes_with(*texts: str) -> dict[int, str]:
    """Return the running processes with all `texts` in their command line; zombies have no command line."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if all(text in command for text in texts):
                    found[int(folder.name)] = command
    return found


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process if it runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@dataclass
class Platform:
    """A `headrace up` on a port of its own, started again after a kill; its clients need no key."""

    name: str
    folder: Path
    port: int
    log: Path
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    inside: Sequence[str] = ()
    """What runs the command, such as `nsenter`."""
    process: "subprocess.Popen[bytes] | None" = None
    _lock: threading.RLock = field(default_factory=threading.RLock)
    """Between the thread that kills it and the one that watches it."""

    def start(self) -> None:
        """Start it for the first time or after a kill; it may not answer yet."""
        with self._lock:
            if self.process is None:
                self._start()

    def _start(self) -> None:
        program = shutil.which("headrace", path=str(Path(sys.executable).parent)) or "headrace"
        place = ("--data-dir", str(self.folder), "--port", str(self.port))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADRACE_UP_"))}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.inside, program, "up", "--open", *place, *self.flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, "PYTHONFAULTHANDLER": "1", **self.environment},
            )

    def until_it_answers(self) -> None:
        """Wait for its health; RuntimeError if it ends, or after some patience."""
        until(lambda: self.exit_code is not None or self.answers(), f"{self.name} answers")
        if self.exit_code is not None:
            raise RuntimeError(f"{self.name} ended with {self.exit_code}:\n{self.log.read_text()[-4000:]}")

    def answers(self, *, timeout_s: float = 5.0) -> bool:
        """Return whether it is healthy."""
        url = f"http://127.0.0.1:{self.port}/health"
        with suppress(OSError), urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
        return False

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs, and before its start."""
        return self.process.poll() if self.process is not None else None

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        with self._lock:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self.process = None

    def restart_if_ended(self) -> int | None:
        """Start it again if it ended without a kill; return its exit code in that case."""
        with self._lock:
            code = self.exit_code
            if code is not None:
                self._start()
            return code

    def stop(self) -> int:
        """SIGTERM; return its exit code, or kill it after some patience. It can be started again."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


class PostgreSQL:
    """A server of our own on a TCP port."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self._folder = folder
        self._programs = _postgresql_folder()
        self._user = _unprivileged_user() if os.geteuid() == 0 else {}
        folder.mkdir()
        folder.chmod(0o755)
        if self._user:
            folder.parent.chmod(0o711)  # that user must reach its folder
            os.chown(folder, self._user["user"], self._user["group"])
        self._run("initdb", "-U", "headrace", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        self.start()

    @property
    def pid(self) -> int | None:
        """Its first process, whose death ends all others; None while it does not run."""
        with suppress(OSError, ValueError, IndexError):
            pid = int((self._folder / "data" / "postmaster.pid").read_text().splitlines()[0])
            return pid if is_alive(pid) else None  # a killed server leaves its file
        return None

    def start(self) -> None:
        """Start it if it does not run, and wait until it accepts connections; recovery after a kill takes a moment."""
        if self.pid is not None:
            return
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self._folder} -c max_connections=100"
        self._run("pg_ctl", "-l", str(self._folder / "log"), "-w", "-o", options, "start")

    def create(self, name: str) -> str:
        """Create a database; return its URL."""
        client = shutil.which("psql") or str(self._programs / "psql")
        address = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "headrace", "-d", "postgres")
        subprocess.run([client, *address, "-q", "-c", f"CREATE DATABASE {name}"], check=True)
        return f"postgresql://headrace@127.0.0.1:{self.port}/{name}"

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        if (pid := self.pid) is not None:
            pids = [pid, *children(pid)]
            for process in pids:
                signal_process(process, signal.SIGKILL)
            until(lambda: not any(is_alive(process) for process in pids), "PostgreSQL is dead")
            for lock in (self._folder / "data" / "postmaster.pid", *self._folder.glob(".s.PGSQL.*.lock")):
                lock.unlink()  # a zombie that nothing reaps counts as a server

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        if (pid := self.pid) is not None:
            for process in [pid, *children(pid)]:
                signal_process(process, number)

    def restart(self) -> None:
        """End all connections and start it again."""
        self.signal(signal.SIGCONT)
        self._run("pg_ctl", "-m", "fast", "-w", "stop")
        self.start()

    def close(self) -> None:
        """Stop it at once."""
        with suppress(RuntimeError):
            self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        output = self._folder / f"{program}.out"  # no pipe: the server keeps its end open
        with output.open("wb") as file:
            done = subprocess.run(
                [self._programs / program, "-D", self._folder / "data", *arguments],
                check=False,
                cwd=self._folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                **self._user,  # type: ignore[call-overload]
            )
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}: {output.read_text()[-1000:]}")


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _postgresql_folder() -> Path:
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    for path in sorted(_ROOT.glob("usr/lib/postgresql/*/bin/initdb"), reverse=True):
        return path.parent
    raise RuntimeError("PostgreSQL's server is not installed. Install it (Debian: apt-get install postgresql).")


def _unprivileged_user() -> dict[str, int]:
    """Return a user to run PostgreSQL as, which refuses to run as root."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "daemon")
    return {"user": user.pw_uid, "group": user.pw_gid}


@dataclass
class SmallDisk:
    """A tmpfs in a mount namespace of its own."""

    folder: Path
    holder: int
    """Process id that keeps the namespace alive."""
    _filler: threading.Thread | None = None
    _has_room: threading.Event = field(default_factory=threading.Event)

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix of a command that runs where the disk is."""
        return ("nsenter", "--target", str(self.holder), "--mount", "--")

    @property
    def seen(self) -> Path:
        """Its folder as this process reaches it."""
        return Path(f"/proc/{self.holder}/root{self.folder}")

    def fill(self) -> None:
        """Take every block, and each that is freed, in a thread: 256 MiB must not delay the next fault."""
        if self._filler is None:
            self._has_room.clear()
            self._filler = threading.Thread(target=self._fill, name="disk", daemon=True)
            self._filler.start()

    def _fill(self) -> None:
        with (self.seen / "ballast").open("ab", buffering=0) as ballast:
            while not self._has_room.is_set():
                for size in (1 << 20, 1 << 16, 4096):
                    with suppress(OSError):
                        while not self._has_room.is_set():
                            ballast.write(bytes(size))
                self._has_room.wait(_POLL_S)

    def empty(self) -> None:
        """Give the room back."""
        if self._filler is not None:
            self._has_room.set()
            self._filler.join()
            self._filler = None
            (self.seen / "ballast").unlink(missing_ok=True)


def can_mount() -> bool:
    """Return whether this user can mount a disk in a namespace of its own without becoming another user."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mount a small disk on a folder."""
    folder.mkdir()
    script = f'mount -t tmpfs -o size={DISK_MIB}m headrace "$0" && echo mounted && exec sleep infinity'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(folder)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            if holder.stdout is None or holder.stdout.readline() != "mounted\n":
                raise RuntimeError(f"A tmpfs of {DISK_MIB} MiB cannot be mounted on {folder}.")
            yield SmallDisk(folder, holder.pid)
        finally:
            holder.kill()


class FakeClock:
    """A library that moves the wall clock of the processes that load it."""

    def __init__(self, folder: Path) -> None:
        self._library, self._offset = folder / "clock.so", folder / "clock"
        self._offset.write_bytes(bytes(8))
        source = Path(__file__).parent / "clock.c"
        subprocess.run([_compiler(), "-shared", "-fPIC", "-O2", "-o", self._library, source], check=True)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of such a process."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._offset)}

    def move(self, offset_s: int) -> None:
        """Set the distance from the true time."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("=q", offset_s))


def can_compile() -> bool:
    """Return whether there is a C compiler."""
    return shutil.which(_compiler()) is not None


def _compiler() -> str:
    return os.environ.get("CC", "cc")
