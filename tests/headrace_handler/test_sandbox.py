"""Hostile code reaches nothing outside of its sandbox, whether the server runs as root or as another user."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headrace_handler import landlock, syscall_filter
from headrace_handler.sandbox import Policy

SOURCE = Path(__file__).parents[2] / "src" / "headrace_handler"
HOSTILE = Path(__file__).with_name("hostile.py")
DEBIAN_PYTHON = "/usr/bin/python3"
USERS = {
    "root": [],
    "another user": ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
}
WITHOUT_NAMESPACES = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
"""As in most containers."""
VICTIM = """
import ctypes, socket, sys, time
folder, key = sys.argv[1], int(sys.argv[2])
places = (f"{folder}/socket", f"\\0{folder}")
sockets = [socket.socket(socket.AF_UNIX) for _ in places]
for each, place in zip(sockets, places):
    each.bind(place)
    each.listen()
port = socket.create_server(("127.0.0.1", 0))
assert ctypes.CDLL(None).shmget(key, 4096, 0o1600) >= 0, "IPC_CREAT"
print(port.getsockname()[1], flush=True)
sys.stdin.read()
"""
MIB = 1 << 20
REFUSED = {
    "arguments of another process": {"ENOENT", "EACCES", "ESRCH"},
    "a port on loopback": {"ECONNREFUSED", "EACCES"},
    "an abstract socket": {"EPERM", "ECONNREFUSED"},
    "the hypervisor": {"EAFNOSUPPORT", "EACCES"},
    "a raw socket": {"EAFNOSUPPORT", "EACCES"},
    "clone3": {"ENOSYS"},
    "getpid of the x32 ABI": {"ENOSYS"},
    "another root": {"EPERM"},
    "rights of a file": {"EPERM"},
    "inherited descriptors": {"ENOENT"},
}
"""Outcomes that are expected where a refusal is more than EACCES, EPERM or ENOENT."""
ANY_REFUSAL = {"EACCES", "EPERM", "ENOENT", "ENOTDIR", "ESRCH", "EXDEV", "EROFS", "ENOSYS"}


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
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not Path(DEBIAN_PYTHON).exists():
        pytest.skip("needs root, setpriv and a Python that every user may run")
    if landlock.abi() == 0 or not syscall_filter.is_available():
        pytest.skip("this kernel has no Landlock or no seccomp")
    with place_for(user) as folder, victim_in(folder, user) as facts:
        yield Site(DEBIAN_PYTHON, user, folder / "headrace_handler", folder / "model", facts)


@contextmanager
def place_for(user: list[str]) -> Iterator[Path]:
    """Yield a folder of the user, outside of pytest's own, which only root may enter."""
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-") as name:
        folder = Path(name)
        shutil.copytree(SOURCE, folder / "headrace_handler")
        for part in ("model", "platform"):
            (folder / part).mkdir()
        shutil.copy(HOSTILE, folder / "model")
        (folder / "model" / "weights").write_bytes(b"weights")
        (folder / "platform" / "database").write_bytes(b"keys")
        owner = 65534 if user else 0
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner, owner)
        yield folder


@contextmanager
def victim_in(folder: Path, user: list[str]) -> Iterator[dict[str, str]]:
    """Run a process of the same user that has secrets and sockets; yield where they are."""
    platform = folder / "platform"
    key = os.getpid() % 30_000 + (30_000 if user else 0) + 1
    command = [*user, DEBIAN_PYTHON, "-c", VICTIM, str(platform), str(key)]
    with ExitStack() as stack:
        victim = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"KEY": "secret"})
        )
        stack.callback(victim.kill)
        stack.callback(remove_memory, key)
        assert victim.stdout is not None
        port = victim.stdout.readline().strip()
        yield {
            "victim": str(victim.pid),
            "secret": str(platform / "database"),
            "model": str(folder / "model"),
            "socket": str(platform / "socket"),
            "abstract": str(platform),
            "port": port,
            "memory_key": str(key),
            "marker": str(victim.pid),
            "most_bytes": str(8 * MIB),
            "most_processes": "400",
        }


def remove_memory(key: int) -> None:
    libc = ctypes.CDLL(None)
    libc.shmctl(libc.shmget(key, 0, 0), 0, None)


def left_over(marker: str) -> list[int]:
    """Return the processes that the hostile program has left behind; they are killed."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_left = entry.name.isdigit() and f"1000.{marker}" in (entry / "cmdline").read_text()
        except OSError:
            continue
        if is_left:
            found.append(int(entry.name))
            os.kill(found[-1], signal.SIGKILL)
    return found


def test_hostile_code_reaches_nothing(site: Site) -> None:
    policy = site.policy(network="loopback", max_processes=320, temporary_bytes=4 * MIB)
    seen = site.attack(policy)
    assert 3 * MIB < int(seen.pop("bytes in /tmp")) <= 4 * MIB
    assert 200 < int(seen.pop("processes at once")) < 320
    reached = {name: said for name, said in seen.items() if said not in REFUSED.get(name, ANY_REFUSAL)}
    assert not reached
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


def test_code_has_no_network_if_it_gets_none(site: Site) -> None:
    seen = site.attack(site.policy(network="none"), most_bytes=MIB, most_processes=1)
    assert (seen["a port on loopback"], seen["an abstract socket"]) == ("EACCES", "EPERM")
    assert site.attack(site.policy(network="all"), most_bytes=MIB, most_processes=1)["a port on loopback"] == "done"


def test_where_namespaces_are_not_allowed_the_rest_still_holds(site: Site) -> None:
    """Landlock keeps files and processes out of reach; their names, IPC objects and socket files stay in it."""
    if site.user:
        pytest.skip("namespaces of users are allowed here")
    bare = replace(site, user=WITHOUT_NAMESPACES)
    scratch = Path(site.facts["secret"]).parent / "scratch"
    scratch.mkdir()
    seen = bare.attack(bare.policy(scratch=str(scratch)), most_bytes=MIB, most_processes=1, scratch=scratch)
    reached = {name for name, said in seen.items() if said == "done"}
    assert reached == {
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
