"""
Landlock: the files that a process and its descendants may open, decided by the process itself, without any rights.

Source: Linux `Documentation/userspace-api/landlock.rst`, `landlock(7)`.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on all architectures
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule for something that is no folder may name."""
_MAKING_DEVICES = 1 << 6 | 1 << 11
_KNOWN = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""ABI → rights over files, from that ABI on."""
_NETWORK_ABI = 4
SCOPES_ABI = 6
"""The first with which abstract sockets and signals stay inside."""
_CONNECT_TCP = 1 << 1
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2


def abi() -> int:
    """Return the version of Landlock that this kernel offers; 0 for none."""
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))))


def restrict(reads: Iterable[str], writes: Iterable[str], devices: Iterable[str], *, may_connect: bool = True) -> int:
    """
    Let this thread, and what it starts, open only files below these paths; paths that do not exist are left out.

    It may no longer trace or signal other processes, or reach their abstract sockets. Without `may_connect`, no TCP
    socket that it has can be connected: one that listens belongs to the network outside, and could be taken for that.
    Needs `PR_SET_NO_NEW_PRIVS`.

    Returns:
        The ABI in force; 0 if this kernel has no Landlock.
    """
    version = abi()
    if version == 0:
        return 0
    handled = max(rights for since, rights in _KNOWN.items() if since <= version)
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= SCOPES_ABI else 0
    network = 0 if may_connect or version < _NETWORK_ABI else _CONNECT_TCP
    size = 24 if scopes else 16 if network else 8
    ruleset = _call(_CREATE_RULESET, *_packed(struct.pack("=QQQ", handled, network, scopes)[:size]), 0)
    try:
        granted = (
            (reads, _READING),
            (writes, handled & ~_MAKING_DEVICES),
            (devices, _OF_FILES & ~_EXECUTE),
        )
        for paths, rights in granted:
            for path in paths:
                _allow(ruleset, path, rights & handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, rights: int) -> None:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # what cannot be opened needs no rule
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _OF_FILES
            rule, _ = _packed(struct.pack("=Qi", rights, descriptor))
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        finally:
            os.close(descriptor)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _packed(content: bytes) -> "tuple[ctypes.Array[ctypes.c_char], int]":
    return ctypes.create_string_buffer(content, len(content)), len(content)


def _call(number: int, *arguments: "int | ctypes.Array[ctypes.c_char]") -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(_libc().syscall(ctypes.c_long(number), *values))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
