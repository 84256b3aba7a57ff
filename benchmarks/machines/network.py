"""
Machines on this one: network namespaces with addresses of their own on a bridge, and links that can be cut.

`enter` starts the program again in namespaces of its own, as root there: nothing of it outlives it, and it needs no
right on this machine but that to create them. A machine that can lose its power has a PID namespace, too: the kernel
kills all of its processes with the first one. Links are cut in silence, as by a switch that drops packets. A cut of one
direction between two machines lets the sender use a hardware address that nothing has.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from benchmarks.harness.proc import children

BRIDGE: Final = "machines"
_PREFIX: Final = "10.77.0"
_OWN_NUMBER: Final = 254
"""Last part of the address of this program, which is on the bridge itself."""
_NOWHERE: Final = "02:00:00:00:ff:ff"
"""A hardware address that no machine has."""
_FORWARDING, _DISABLED = "3", "0"
"""States of a bridge's port. Source: Linux, `include/uapi/linux/if_bridge.h`."""
_MARK: Final = "HEADRACE_BENCHMARK_NAMESPACES"
_NAMESPACES: Final = ("--user", "--map-root-user", "--net", "--pid", "--mount-proc", "--fork", "--kill-child")


def why_not() -> str:
    """Return why this kernel or user cannot have such machines; empty if they can."""
    if missing := [program for program in ("unshare", "nsenter", "ip") if shutil.which(program) is None]:
        return f"{', '.join(missing)} is missing (Debian: util-linux, iproute2)"
    probe = ["unshare", *_NAMESPACES, "ip", "link", "add", BRIDGE, "type", "bridge"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def enter(module: str) -> None:
    """Start the program `module` again with its arguments in new namespaces, unless it is there already."""
    if not os.environ.get(_MARK):
        os.environ[_MARK] = "1"
        os.execvp("unshare", ["unshare", *_NAMESPACES, sys.executable, "-m", module, *sys.argv[1:]])
    _ip("link set lo up")
    _ip(f"link add {BRIDGE} type bridge")
    _ip(f"addr add {_PREFIX}.{_OWN_NUMBER}/24 dev {BRIDGE}")
    _ip(f"link set {BRIDGE} up")


class Machine:
    """A host with one address, which is off until `start`."""

    def __init__(self, name: str, number: int, *, has_power: bool = True) -> None:
        """`number` is the last part of its address; without `has_power` it cannot lose it, and shares its processes."""
        self.name = name
        self.address = f"{_PREFIX}.{number}"
        self._link = f"link-{number}"
        self._hardware = f"02:00:00:00:00:{number:02x}"
        self._own_pids = ("--pid", "--mount-proc", "--fork", "--kill-child") if has_power else ("--mount",)
        self._holder: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Switch it on, with its link up."""
        script = f"hostname {self.name} && echo on && sleep infinity & wait"  # the shell reaps what loses its parent
        command = ["unshare", "--net", "--uts", *self._own_pids, "sh", "-c", script]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self._holder.stdout is None or self._holder.stdout.readline() != "on\n":
            raise RuntimeError(f"The namespaces of {self.name} cannot be created.")
        inner = f"{self._link}-in"
        _ip(f"link add {self._link} type veth peer name {inner} address {self._hardware}")
        _ip(f"link set {inner} netns {self._first_pid} name eth0")
        _ip(f"link set {self._link} master {BRIDGE} up")
        for command_line in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            self._run_ip(command_line)
        self._run_ip(f"route add default via {_PREFIX}.{_OWN_NUMBER}")  # by which Ray finds its own address

    @property
    def _first_pid(self) -> int:
        """The first process in its namespaces."""
        if self._holder is None:
            raise RuntimeError(f"{self.name} is off.")
        return children(self._holder.pid)[0] if "--fork" in self._own_pids else self._holder.pid

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix of a command that runs there."""
        pids = ("--pid",) if "--fork" in self._own_pids else ()
        return ("nsenter", "--target", str(self._first_pid), "--net", "--uts", "--mount", *pids, "--")

    def lose_power(self) -> None:
        """Kill all of its processes at once; return when they are gone."""
        holder, self._holder = self._holder, None
        if holder is not None:
            for pid in children(holder.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            holder.kill()
            holder.communicate()
            # The kernel does it some time later, too, but the name must be free.
            subprocess.run(["ip", "link", "del", self._link], check=False, stderr=subprocess.DEVNULL)

    def cut(self) -> None:
        """Drop all packets from and to it."""
        _bridge_port(self._link, _DISABLED)

    def mend(self) -> None:
        _bridge_port(self._link, _FORWARDING)

    def cut_to(self, others: Iterable["Machine"]) -> None:
        """Drop what it sends to other machines; what they send still arrives."""
        for other in others:
            self._run_ip(f"neigh replace {other.address} lladdr {_NOWHERE} dev eth0 nud permanent")

    def mend_to(self, others: Iterable["Machine"]) -> None:
        for other in others:
            self._run_ip(f"neigh del {other.address} dev eth0")

    def _run_ip(self, arguments: str) -> None:
        subprocess.run([*self.inside, "ip", *arguments.split()], check=True)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def _bridge_port(link: str, state: str) -> None:
    subprocess.run(["bridge", "link", "set", "dev", link, "state", state], check=True)
