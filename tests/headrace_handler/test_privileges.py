"""Processes that run user code have no capabilities and cannot read the memory of the programs around them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
HOSTILE = """
import ctypes, errno, json, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from headrace_handler.privileges import give_up_privileges

def tried(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def trace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, 0, 0) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "")

server = int(sys.argv[2])
give_up_privileges()
status = "print([line for line in open('/proc/self/status') if line.startswith(('CapE', 'CapP', 'NoNew'))])"
print(json.dumps({
    "environ": tried(lambda: open(f"/proc/{server}/environ").read()),
    "mem": tried(lambda: open(f"/proc/{server}/mem", "rb").read(1)),
    "descriptors": tried(lambda: os.readlink(f"/proc/{server}/fd/0")),
    "trace": tried(lambda: trace(server)),
    "of a program it starts": subprocess.check_output([sys.executable, "-c", status], text=True),
}))
"""
SERVER = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from headrace.core.processes import protect_memory, this_process, process_id, host_id
import os
protect_memory()
assert this_process() == process_id(os.getpid())
assert host_id()
print(subprocess.check_output([sys.executable, "-c", sys.argv[2], sys.argv[1], str(os.getpid())], text=True))
"""
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.mark.parametrize("prefix", [[], UNPRIVILEGED], ids=["this user", "another user"])
def test_code_of_the_same_user_reads_nothing_of_a_protected_server(prefix: list[str]) -> None:
    seen = run([*prefix, sys.executable, "-c", SERVER, str(SOURCE), HOSTILE])
    rights = seen.pop("of a program it starts")
    assert set(seen.values()) <= {"EACCES", "EPERM"}, seen
    assert rights.count("0000000000000000") == 2
    assert "NoNewPrivs:\\t1" in rights


def test_the_installer_of_requirements_runs_without_privileges() -> None:
    program = SOURCE / "headrace_handler" / "privileges.py"
    cat = shutil.which("cat")
    assert cat is not None
    command = [sys.executable, "-I", "-S", str(program), cat, "/proc/self/status"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert (facts["CapPrm"], facts["CapEff"], facts["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")


def run(command: list[str]) -> dict[str, str]:
    """Run a program that prints JSON; skip where this user cannot."""
    if command[0] == UNPRIVILEGED[0] and (os.geteuid() != 0 or shutil.which(command[0]) is None):
        pytest.skip("only root can run a program as another user")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Permission denied" in done.stderr:
        pytest.skip(f"another user cannot run this Python: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] = json.loads(done.stdout)
    return answer
