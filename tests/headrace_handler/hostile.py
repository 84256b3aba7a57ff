"""
Hostile user code: a program that tries what it should not be able to do, and prints the outcome of each try as JSON.

An outcome is `done`, the name of an errno or of an exception, or a number. It needs the standard library only.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SCRATCH = Path(tempfile.mkdtemp())
LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {"x86_64": 0, "aarch64": 1}
CALLS = {  # numbers on x86-64 and on Arm; None: not tried there
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "kexec_load": (246, 104),
    "finit_module": (313, 273),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "process_vm_readv": (310, 270),
    "pidfd_getfd": (438, 438),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "clone3": (435, 435),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fanotify_init": (300, 262),
    "getpid of the x32 ABI": (0x4000_0000 + 39, None),
}


def attack(facts: dict[str, str]) -> dict[str, str | int]:
    """Try everything and return the outcomes; `facts` has the places of what other processes keep secret."""
    victim, secret, column = facts["victim"], facts["secret"], NUMBERS[os.uname().machine]
    outside, ioctl = Path(secret).parent, (16, 29)[column]
    tries: dict[str, Callable[[], object]] = {
        "environment of another process": lambda: Path(f"/proc/{victim}/environ").read_bytes(),
        "arguments of another process": lambda: Path(f"/proc/{victim}/cmdline").read_bytes(),
        "memory of another process": lambda: Path(f"/proc/{victim}/mem").open("rb").close(),
        "descriptors of another process": lambda: Path(f"/proc/{victim}/fd/0").stat(),
        "root of another process": lambda: [*Path(f"/proc/{victim}/root").iterdir()],
        "signal to another process": lambda: os.kill(int(victim), 0),
        "trace another process": lambda: checked(LIBC.ptrace(16, int(victim), 0, 0)),
        "shared memory of another process": lambda: checked(LIBC.shmget(int(facts["memory_key"]), 1, 0)),
        **attacks_on_files(secret, facts["model"]),
        "passwords": lambda: Path("/etc/shadow").read_bytes(),
        "settings of the kernel": lambda: Path("/proc/sys/kernel/core_pattern").write_text("|/tmp/x"),
        "switches of the machine": lambda: Path("/sys/kernel/mm/ksm/run").write_text("0"),
        "a disk": lambda: make_disk(own("disk")),
        "messages of the kernel": lambda: Path("/dev/kmsg").open("rb").close(),
        "a socket file": lambda: connect(socket.AF_UNIX, facts["socket"]),
        "an abstract socket": lambda: connect(socket.AF_UNIX, f"\0{facts['abstract']}"),
        "a port on loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", int(facts["port"]))),
        "a raw socket": lambda: socket.socket(17, socket.SOCK_RAW).close(),
        "the hypervisor": lambda: socket.socket(40, socket.SOCK_STREAM).close(),
        "the kernel's cryptography": lambda: socket.socket(38, socket.SOCK_SEQPACKET).close(),
        "a list of all sockets": lambda: socket.socket(16, socket.SOCK_RAW, 4).close(),
        "a protocol that loads a module": lambda: socket.socket(2, socket.SOCK_STREAM, 132).close(),
        "a pair of sockets of TIPC": lambda: checked(LIBC.socketpair(30, 5, 0, (ctypes.c_int * 2)())),
        "limits of another process": lambda: resource.prlimit(int(victim), resource.RLIMIT_NOFILE, (0, 0)),
        "real-time priority": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        "input of a terminal": lambda: fcntl.ioctl(2, 0x5412, b"x"),
        "input of a terminal by a longer number": lambda: checked(LIBC.syscall(ioctl, 2, 0x1_0000_5412, b"x")),
        "the terminal": lambda: os.close(os.open("/dev/tty", os.O_RDWR)),
        "a call of 32 bits": call_of_32_bits,
        "traces of the kernel": lambda: [*Path("/sys/kernel/debug").iterdir()],
        "its place when memory runs out": lambda: Path("/proc/self/oom_score_adj").write_text("-500"),
        "memory of the first process": lambda: Path("/proc/1/mem").open("rb").close(),
        "root of the first process": lambda: [*Path("/proc/1/root").iterdir()],
        "a mount": lambda: checked(LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)),
        "a user namespace": lambda: in_child(lambda: checked(LIBC.unshare(0x1000_0000))),
        "another root": lambda: in_child(lambda: checked(LIBC.chroot(b"/tmp"))),
        "rights of a file": run_with_rights,
        "inherited descriptors": lambda: leads_outside(outside),
    }
    for name, numbers in CALLS.items():
        number = numbers[column]
        if number is not None:
            tries[name] = lambda number=number: checked(LIBC.syscall(number, 0, 0, 0, 0, 0))
    outcomes: dict[str, str | int] = {name: outcome(action) for name, action in tries.items()}
    outcomes["bytes in /tmp"] = fill(Path(own("full")), int(facts["most_bytes"]))
    outcomes["processes at once"] = fork_all(int(facts["most_processes"]))
    leave_behind(facts["marker"])
    shutil.rmtree(SCRATCH)
    return outcomes


def attacks_on_files(secret: str, model: str) -> dict[str, Callable[[], object]]:
    """Return attacks on a file of another model, on the names beside it, and on the files of its own model."""
    outside = Path(secret).parent
    return {
        "another model's file": lambda: Path(secret).read_bytes(),
        "names of other files": lambda: [*outside.iterdir()],
        "another model's file through /proc/self/root": lambda: Path(f"/proc/self/root{secret}").read_bytes(),
        "another model's file through a link": lambda: through_link(secret),
        "another model's file by a hard link": lambda: os.link(secret, own("hard")),
        "its own model": lambda: Path(model, "weights").write_bytes(b"changed"),
        "a file beside the model": lambda: Path(outside, "new").write_bytes(b"new"),
        "the size of another file": lambda: changing(secret, os.truncate, 0),
        "the mode of another file": lambda: changing(secret, os.chmod, 0o640),
        "the times of another file": lambda: changing(secret, os.utime, (1, 1)),
        "an attribute of another file": lambda: changing(secret, os.setxattr, "user.x", b"x"),
        "the mode of its own model": lambda: changing(f"{model}/weights", through_descriptor, os.fchmod, 0o640),
    }


def own(name: str) -> str:
    """Return the path of a file that no other run of this program uses."""
    return str(SCRATCH / name)


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "done"


def checked(result: int) -> None:
    if result == -1:
        raise OSError(ctypes.get_errno(), "")


def in_child(action: Callable[[], object]) -> None:
    """Try what would change the process for all later tries."""
    pid = os.fork()
    if pid == 0:
        name = outcome(action)
        os._exit(0 if name == "done" else getattr(errno, name))
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise OSError(code, "")


def connect(family: int, address: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as any_socket:
        any_socket.settimeout(5)
        any_socket.connect(address)  # type: ignore[arg-type]


def changing(path: str, change: Callable[..., object], *to: object) -> None:
    """Change a file; the kernel may say that it has, and have done nothing."""
    before_ns = Path(path).stat().st_ctime_ns
    change(path, *to)
    if Path(path).stat().st_ctime_ns == before_ns:
        raise OSError(errno.EPERM, "")


def through_descriptor(path: str, change: Callable[..., object], *to: object) -> None:
    with Path(path).open("rb") as file:
        change(file.fileno(), *to)


def through_link(secret: str) -> None:
    """Open a link after its target was changed from an own file to the secret."""
    harmless, link = Path(own("harmless")), Path(own("link"))
    harmless.write_bytes(b"own")
    for target in (str(harmless), secret):
        Path(own("next")).symlink_to(target)
        Path(own("next")).replace(link)
        link.read_bytes()


def make_disk(path: str) -> None:
    os.mknod(path, 0o600 | 0o060000, os.makedev(254, 0))
    Path(path).open("rb").close()


def call_of_32_bits() -> None:
    """Call `getpid` as programs of 32 bits do, for which a filter has other numbers."""
    if os.uname().machine != "x86_64":
        raise OSError(errno.ENOSYS, "")
    pid = os.fork()
    if pid == 0:
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:  # it was killed
        raise OSError(errno.ENOSYS, "")


def run_with_rights() -> None:
    """Run a program whose file would give root's rights."""
    done = subprocess.run(["/usr/bin/su", "-c", "id -u", "games"], capture_output=True, check=False, timeout=10)
    if done.returncode != 0:
        raise OSError(errno.EPERM, "")


def leads_outside(outside: Path) -> None:
    """Look for a descriptor that was left open and leads out of the sandbox."""
    for descriptor in [*Path("/proc/self/fd").iterdir()]:
        try:
            found = os.stat(f"../..{outside}", dir_fd=int(descriptor.name))
        except OSError:
            continue
        if found:
            return
    raise OSError(errno.ENOENT, "")


def fill(path: Path, most: int) -> int:
    written = 0
    try:
        with path.open("wb", buffering=0) as file:
            while written < most:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        print(error, file=sys.stderr)
    path.unlink(missing_ok=True)
    return written


def fork_all(most: int) -> int:
    """Fork until the kernel refuses; return how many children there were at once."""
    children = []
    try:
        while len(children) < most:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    except OSError:
        pass
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(children)


def leave_behind(marker: str) -> None:
    """Start a daemon that should not outlive the sandbox; the marker is in its arguments."""
    subprocess.Popen(
        ["/bin/sleep", f"1000.{marker}"], start_new_session=True, stdin=-3, stdout=-3, stderr=-3, close_fds=True
    )


if __name__ == "__main__":
    print(json.dumps(attack(json.loads(sys.argv[1]))))
