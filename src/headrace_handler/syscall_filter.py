"""
A seccomp filter: the system calls that user code has no use for, and through which kernels are attacked, fail.

Calls that change namespaces, mounts or the machine, that read other processes, and large parts of the kernel with a
history of faults (bpf, io_uring, userfaultfd, perf, keyrings). Allowed calls cost nothing: the kernel knows from a
bitmap that they need no filter (Linux 5.11).

Source: Linux `seccomp(2)`, `Documentation/userspace-api/seccomp_filter.rst`; numbers from `asm/unistd_64.h` and
`asm-generic/unistd.h`.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Collection

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_SET_MODE_FILTER, _ALL_THREADS, _SPEC_ALLOW = 1, 1, 4
_PR_SET_NO_NEW_PRIVS = 38
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_PRETEND = _FAIL | 0
"""The call returns 0 and does nothing."""
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x4000_0000
"""Numbers of a second ABI of x86-64, through which a filter could be passed by."""

_DENIED = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_by_handle_at": (304, 265),
    # the kernel's programs, rings, faults, counters and keys
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "nfsservctl": (180, 42),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
"""Name → numbers on x86-64 and on Arm; None where an architecture has no such call."""
_ATTRIBUTES = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
"""Calls that change what is known of a file: Landlock does not decide about them."""
_TRUNCATE = (76, 45)
"""Landlock decides about it from Linux 6.2 on."""
_OF_SANDBOXES = ("unshare", "mount", "umount2", "pivot_root", "mount_setattr")
_CLONE, _CLONE3, _IOCTL, _SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)
_SOCKETPAIR, _PRLIMIT = (53, 199), (302, 261)
_SENDS = (((44, 206), 3), ((46, 211), 2), ((307, 269), 3))
"""Numbers of `sendto`, `sendmsg` and `sendmmsg`, and the argument with the flags."""
_FAST_OPEN = 0x2000_0000
"""A flag to connect while sending, which Landlock may not see."""
_NEW_NAMESPACES = 0x7E02_0000
"""The flags of `clone` for new namespaces: mount, cgroup, uts, ipc, user, pid and net."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX type into the terminal of another process."""
_UNIX = 1
_LOCAL_PROTOCOLS = {_UNIX: (), 16: (0,)}
"""Address families and their protocols (all: empty): AF_UNIX, and NETLINK_ROUTE, with which C lists interfaces."""
_INTERNET_PROTOCOLS = {2: (0, 1, 6, 17, 262), 10: (0, 6, 17, 58, 262)}
"""AF_INET and AF_INET6 with TCP, UDP, ping and MPTCP; for others, such as SCTP, the kernel would load modules."""
_Rule = tuple[int, int, int, int]


def denied_calls() -> tuple[str, ...]:
    """Return the names of the system calls that always fail."""
    return tuple(_DENIED)


def is_available() -> bool:
    """Return whether there is a filter for this architecture and kernel."""
    return os.uname().machine in _SECCOMP and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")  # noqa: PTH110


def restrict(
    *,
    has_network: bool,
    may_connect: bool = True,
    all_threads: bool = False,
    may_isolate: bool = False,
    has_own_files: bool = True,
) -> bool:
    """
    Filter the system calls of this thread, or of all threads, and of what they start; no rights can be gained then.

    With `all_threads` an io_uring that the process has already, such as that of its event loop, goes on. With
    `may_isolate` the process can start others that make namespaces and mounts for a sandbox of their own. Without
    `has_own_files`, changes of a file's mode, owner, times and extended attributes do nothing and succeed, because
    they would reach each file of the user, and copying a file is to work.

    Returns:
        Whether the filter is in force: False on other architectures and kernels without seccomp.

    Raises:
        OSError: the kernel refuses.
    """
    if not is_available():
        return False
    machine = os.uname().machine
    allowed = (*(("io_uring_enter",) if all_threads else ()), *(_OF_SANDBOXES if may_isolate else ()))
    rules = program(
        machine, has_network=has_network, may_connect=may_connect, allowed=allowed, has_own_files=has_own_files
    )
    content = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    instructions = ctypes.create_string_buffer(content, len(content))
    header = struct.pack("@HP", len(rules), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    flags = _SPEC_ALLOW | (_ALL_THREADS if all_threads else 0)
    if libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, flags, header) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
    return True


def program(
    machine: str,
    *,
    has_network: bool,
    may_connect: bool = True,
    allowed: Collection[str] = (),
    has_own_files: bool = True,
) -> list[_Rule]:
    """Return the filter as instructions of classic BPF: code, jump if true, jump if false, operand."""
    column = 0 if machine == "x86_64" else 1
    rules: list[_Rule] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        rules += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    for name, numbers in _DENIED.items():
        if (number := numbers[column]) is not None and name not in allowed:
            rules += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
    if not has_own_files:
        numbers_of_attributes = (numbers[column] for numbers in _ATTRIBUTES.values())
        for number in filter(None, numbers_of_attributes):
            rules += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _PRETEND)]
        rules += [(_JUMP_EQUAL, 0, 1, _TRUNCATE[column]), (_RETURN, 0, 0, _FAIL | errno.EACCES)]
    # The C library falls back to `clone`, whose flags a filter can read.
    rules += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    if "unshare" not in allowed:
        rules += _for_argument(_CLONE[column], 0, [(_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _FAIL | 1)])
    typing: list[_Rule] = []
    for request in _TERMINAL_INPUT:
        typing += [(_JUMP_EQUAL, 0, 1, request), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
    rules += _for_argument(_IOCTL[column], 1, typing)
    refused = errno.EAFNOSUPPORT if has_network else errno.EACCES
    rules += _for_argument(_SOCKET[column], 0, _sockets(has_network=has_network, refused=refused))
    unix_only = [(_JUMP_EQUAL, 1, 0, _UNIX), (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT)]
    rules += _for_argument(_SOCKETPAIR[column], 0, unix_only)
    for numbers, argument in () if may_connect else _SENDS:
        no_fast_open = [(_JUMP_ANY_BIT, 0, 1, _FAST_OPEN), (_RETURN, 0, 0, _FAIL | errno.EOPNOTSUPP)]
        rules += _for_argument(numbers[column], argument, no_fast_open)
    # 0 is the process itself; the limits of another one, such as that of CPU time, could end it.
    rules += _for_argument(_PRLIMIT[column], 0, [(_JUMP_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _FAIL | errno.EPERM)])
    return [*rules, (_RETURN, 0, 0, _ALLOW)]


def _sockets(*, has_network: bool, refused: int) -> list[_Rule]:
    """Return rules on the family of a new socket, and then on its protocol."""
    rules: list[_Rule] = []
    for family, protocols in {**_LOCAL_PROTOCOLS, **(_INTERNET_PROTOCOLS if has_network else {})}.items():
        known: list[_Rule] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 16)] if protocols else [(_RETURN, 0, 0, _ALLOW)]
        for protocol in protocols:
            known += [(_JUMP_EQUAL, 0, 1, protocol), (_RETURN, 0, 0, _ALLOW)]
        known += [(_RETURN, 0, 0, _FAIL | errno.EPROTONOSUPPORT)]
        rules += [(_JUMP_EQUAL, 0, len(known), family), *known]
    return [*rules, (_RETURN, 0, 0, _FAIL | refused)]


def _for_argument(number: int, argument: int, rules: list[_Rule]) -> list[_Rule]:
    """Return rules on the low half of a call's argument; they see no other call, and what they let pass is allowed."""
    own = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), *rules, (_RETURN, 0, 0, _ALLOW)]
    return [(_JUMP_EQUAL, 0, len(own), number), *own]
