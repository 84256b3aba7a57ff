"""Hostile code reaches nothing outside of its sandbox, whether the server runs as root or as another user."""

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headrace_handler.policy import Policy
from tests.headrace_handler.hostile_site import DEBIAN_PYTHON, left_over, need_victims, place_for, reached, victim_in

USERS = {
    "root": [],
    "another user": ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
}
WITHOUT_NAMESPACES = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
"""As in most containers."""
MIB = 1 << 20
ON_LINUX_6_8 = """
import os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
from headrace_handler import landlock, sandbox
from headrace_handler.policy import Policy
landlock.abi = lambda: 4
limit_processes = sandbox._limit_processes
sandbox._limit_processes = lambda made, release: limit_processes(made, "6.8.0-45-generic")
made = sandbox.enter(Policy(max_processes=320, network=sys.argv[3]))
sandbox.give_up_privileges()
sandbox.confine(made)
children = []
try:
    while len(children) < 400:
        if (pid := os.fork()) == 0:
            signal.pause()
        children.append(pid)
except BlockingIOError:
    pass
for pid in children:
    os.kill(pid, signal.SIGKILL)
is_reached = socket.socket(socket.AF_UNIX).connect_ex(chr(0) + sys.argv[2]) == 0
print(len(children), is_reached, made.describe())
"""

TAKE_LISTENER = """
import ctypes, errno, socket, sys
listener, place, fast = socket.socket(fileno=int(sys.argv[1])), ("127.0.0.1", int(sys.argv[2])), 0x20000000
ctypes.CDLL(None).connect(listener.fileno(), bytes(16), 16)  # AF_UNSPEC: it no longer listens
for attempt in (lambda: listener.sendto(b"x", fast, place), lambda: listener.connect(place)):
    try:
        attempt()
        print("done")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
IN_A_FILTERED_SERVER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from headrace_handler import syscall_filter
assert syscall_filter.restrict(has_network=True, all_threads=True, may_isolate=True)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Site:
    """Files and a process that belong to others."""

    python: str
    user: list[str]
    program: Path
    model: Path
    facts: dict[str, str]

    def attack(self, policy: Policy | None, **facts: object) -> dict[str, str | int]:
        """Run the hostile program, in a sandbox or with the rights of its user; return the outcomes."""
        runner = ["privileges.py"] if policy is None else ["__main__.py", "--run", policy.encoded()]
        command = [self.python, "-I", "-S", str(self.program / runner[0]), *runner[1:]]
        given = json.dumps({**self.facts, **{name: str(value) for name, value in facts.items()}})
        code = [self.python, "-I", str(self.model / "hostile.py"), given]
        done = subprocess.run([*self.user, *command, *code], capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, done.stderr
        answer: dict[str, str | int] = json.loads(done.stdout)
        return answer

    def policy(self, **fields: object) -> Policy:
        folders = {str(self.model), str(self.program), "/usr"}
        return Policy(read=sorted(folders), **fields)  # type: ignore[arg-type]


@pytest.fixture(params=USERS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    user = USERS[request.param]
    need_victims()
    with place_for(user) as folder, victim_in(folder, user) as facts:
        yield Site(DEBIAN_PYTHON, user, folder / "headrace_handler", folder / "model", facts)


def test_hostile_code_reaches_nothing(site: Site) -> None:
    policy = site.policy(network="loopback", max_processes=320, temporary_bytes=4 * MIB)
    seen = site.attack(policy)
    assert 3 * MIB < int(seen.pop("bytes in /tmp")) <= 4 * MIB
    assert 200 < int(seen.pop("processes at once")) < 320
    assert not reached(seen)
    assert not left_over(site.facts["marker"])
    assert Path(site.facts["model"], "weights").read_bytes() == b"weights"


def test_the_same_code_without_a_sandbox_shows_that_the_attacks_are_real(site: Site) -> None:
    seen = site.attack(None, most_processes=30)
    left_over(site.facts["marker"])
    expected = {
        *("arguments of another process", "signal to another process", "shared memory of another process"),
        *("another model's file", "names of other files", "another model's file through /proc/self/root"),
        *("another model's file through a link", "its own model", "a file beside the model", "a socket file"),
        *("an abstract socket", "a port on loopback", "a user namespace"),
    }
    assert expected <= {name for name, said in seen.items() if said == "done"}
    assert (seen["bytes in /tmp"], seen["processes at once"]) == (8 * MIB, 30)


def test_a_server_under_the_filter_starts_its_formatters_in_a_whole_sandbox(site: Site) -> None:
    filtered = [*site.user, site.python, "-I", "-c", IN_A_FILTERED_SERVER, str(site.program.parent)]
    policy = site.policy(is_required=True, network="loopback")
    seen = replace(site, user=filtered).attack(policy, most_bytes=MIB, most_processes=1)
    assert not reached({name: said for name, said in seen.items() if isinstance(said, str)})
    left_over(site.facts["marker"])


def test_code_has_no_network_if_it_gets_none(site: Site) -> None:
    seen = site.attack(site.policy(network="none"), most_bytes=MIB, most_processes=1)
    assert (seen["a port on loopback"], seen["an abstract socket"]) == ("EACCES", "ECONNREFUSED")
    assert site.attack(site.policy(network="all"), most_bytes=MIB, most_processes=1)["a port on loopback"] == "done"


@pytest.mark.parametrize(
    ("network", "is_reached"),
    [({"network": "none"}, False), ({"network": "loopback", "connects": False}, False), ({"network": "all"}, True)],
)
def test_a_listener_from_outside_is_no_way_into_the_network(
    site: Site, network: dict[str, object], is_reached: bool
) -> None:
    """A server in the sandbox gets one; a socket stays in the network where it was made."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        runner = [site.python, "-I", "-S", str(site.program / "__main__.py"), "--run"]
        code = [site.python, "-I", "-c", TAKE_LISTENER, str(listener.fileno()), site.facts["port"]]
        command = [*site.user, *runner, site.policy(**network).encoded(), *code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, pass_fds=[listener.fileno()])
    assert ("done" in done.stdout) == is_reached, done.stdout


def test_where_namespaces_are_not_allowed_the_rest_still_holds(site: Site) -> None:
    """Landlock keeps files and processes out of reach; their names, IPC objects and socket files stay in it."""
    if site.user:
        pytest.skip("namespaces of users are allowed here")
    bare = replace(site, user=WITHOUT_NAMESPACES)
    scratch = Path(site.facts["secret"]).parent / "scratch"
    scratch.mkdir()
    seen = bare.attack(bare.policy(scratch=str(scratch)), most_bytes=MIB, most_processes=1, scratch=scratch)
    assert {name for name, said in seen.items() if said == "done"} == {
        *("arguments of another process", "shared memory of another process"),
        *("a socket file", "a port on loopback"),
    }
    left_over(site.facts["marker"])


@pytest.mark.parametrize("demand", [{"is_required": True}, {"network": "loopback"}, {"temporary_bytes": MIB}])
def test_what_is_demanded_and_cannot_be_had_runs_no_code(site: Site, demand: dict[str, object]) -> None:
    if site.user:
        pytest.skip("namespaces of users are allowed here")
    command = [*WITHOUT_NAMESPACES, site.python, "-I", "-S", str(site.program / "__main__.py"), "--run"]
    policy = site.policy(**demand).encoded()
    done = subprocess.run([*command, policy, "/bin/echo", "ran"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Operation not permitted" in done.stderr
    assert "headrace doctor" in done.stderr


@pytest.mark.parametrize("network", ["all", "none"])
def test_an_older_kernel_has_what_it_can(site: Site, network: str) -> None:
    """Processes of the same user outside of a user namespace do not count; root has no such namespace."""
    given = [str(site.program.parent), site.facts["abstract"], network]
    command = [*site.user, site.python, "-I", "-c", ON_LINUX_6_8, *given]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    number, is_reached, *_ = said.split()
    assert (int(number) < 320) == ("at most 320 processes" in said) == bool(site.user)
    assert ("no limit of processes (Linux 6.8.0-45-generic has none" in said) == (not site.user)
    assert (is_reached == "True") == ("abstract sockets of other programs are in reach" in said) == (network == "all")


def test_an_installer_without_namespaces_has_a_temporary_folder(site: Site) -> None:
    if site.user:
        pytest.skip("namespaces of users are allowed here")
    filled = Path(site.facts["secret"]).parent / "filled"
    filled.mkdir()
    policy = site.policy(write=[str(filled)]).encoded()
    command = [*WITHOUT_NAMESPACES, site.python, "-I", "-S", str(site.program / "__main__.py"), "--run", policy]
    code = "import tempfile; print(tempfile.mkdtemp())"
    done = subprocess.run([*command, site.python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == filled


def test_the_survey_names_what_can_be_had(site: Site) -> None:
    command = [*site.user, site.python, "-I", "-S", str(site.program / "__main__.py"), "--survey"]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert "namespaces mount ipc pid" in seen["found"]
    assert "Landlock" in seen["found"]
