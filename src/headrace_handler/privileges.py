"""
The rights of a process that runs user code: no capabilities, even as root, and no way to gain any.

Source: Linux `capabilities(7)`, `prctl(2)` (PR_SET_NO_NEW_PRIVS).
"""

import errno
import os
import sys

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
_CAPABILITY_VERSION_3 = 0x2008_0522


def give_up_privileges(*, keeps_bounding_set: bool = False) -> None:
    """
    Give up all capabilities of this thread and of what it starts; call it before threads exist.

    Programs that it starts get no rights from their files either (`sudo`, file capabilities). A process that starts
    none may keep the bounding set, from which only programs get rights: emptying it takes a call a capability.

    Raises:
        ImportError: this Python has no ctypes.
        OSError: the kernel refuses.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> int:
        return 0 if getattr(libc, name)(*arguments) == 0 else ctypes.get_errno()

    _check(call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    with open("/proc/sys/kernel/cap_last_cap") as file:  # noqa: PTH123 -- pathlib costs milliseconds here
        num_capabilities = int(file.read()) + 1  # that this kernel knows
    for capability in range(0 if keeps_bounding_set else num_capabilities):
        number = call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
        if number == errno.EPERM:  # without CAP_SETPCAP; no program can use the bounding set under PR_SET_NO_NEW_PRIVS
            break
        _check(number)
    _check(call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(call("capset", header, (ctypes.c_uint32 * 6)()))


def _check(number: int) -> None:
    if number != 0:
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":  # PYTHON -I -S privileges.py PROGRAM ARGUMENTS: run a program without privileges
    give_up_privileges()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 -- the program is the caller's
