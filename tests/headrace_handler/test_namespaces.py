"""A process that cannot prepare its namespaces stays where it is, and knows why."""

import json
import subprocess
import sys

from headrace_handler.namespaces import NEW_IPC, NEW_MOUNTS, NEW_PROCESSES

CODE = """
import errno, json, os, sys
from headrace_handler.namespaces import continue_inside
def forbidden():
    raise PermissionError(errno.EACCES, "forbidden")
def broken():
    raise OSError("without a number")
def ended():
    os._exit(0)
flags, own, before = int(sys.argv[1]), os.getpid(), sorted(os.listdir("/proc/self/fd"))
found = [continue_inside(flags, action, lambda: None) for action in (forbidden, broken, ended)]
found.append(continue_inside(-1, forbidden, lambda: None))
assert (os.getpid(), sorted(os.listdir("/proc/self/fd"))) == (own, before)
print(json.dumps([error.strerror for error in found]))
"""


def test_a_process_stays_outside_if_namespaces_cannot_be_prepared() -> None:
    flags = NEW_MOUNTS | NEW_IPC | NEW_PROCESSES
    done = subprocess.run([sys.executable, "-P", "-c", CODE, str(flags)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reasons = json.loads(done.stdout)
    unknown = "this Python cannot make one"
    assert reasons[:3] in (["Permission denied", unknown, unknown], ["Operation not permitted"] * 3)
    assert reasons[3] == "Invalid argument"
