"""`/opt/ml/model` in a process: each test runs a process of its own, with and without root's rights."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_handler.container_folders import CODE, CONTAINER_ROOT, MODEL, explain

SOURCE = Path(__file__).parents[2] / "src"
LOOK = """
import errno, json, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from headrace_handler.container_folders import provide
from headrace_handler.privileges import give_up_privileges

def write(path):
    try:
        Path(path).write_text("x")
    except OSError as error:
        return errno.errorcode[error.errno]
    return "written"

before = sorted(os.listdir("/opt"))
private = [Path(folder) for folder in sys.argv[3:]]
notice = provide({Path(path): Path(folder) for path, folder in json.loads(sys.argv[2]).items()}, private)
give_up_privileges()
facts = {"notice": notice, "user": os.getuid(), "before": before}
if not notice:
    status = Path("/proc/self/status").read_text().splitlines()
    facts |= {
        "after": sorted(os.listdir("/opt")),
        "texts": {path: Path(path, "name.txt").read_text() for path in json.loads(sys.argv[2])},
        "written": [write("/opt/ml/model/new.txt"), write("/opt/ml/new.txt")],
        "private": [[write(folder / "new.txt"), sorted(os.listdir(folder))] for folder in private],
        "capabilities": sum(int(line.split()[1], 16) for line in status if line.startswith("Cap")),
    }
print(json.dumps(facts))
"""
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can read, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def look(folders: dict[Path, Path], prefix: list[str], *private: Path) -> dict[str, object]:
    """Return what a process sees; skip where no such process can be."""
    if prefix and (os.geteuid() != 0 or shutil.which(prefix[0]) is None):
        pytest.skip("only root can run a program with other rights")
    wanted = json.dumps({str(path): str(folder) for path, folder in folders.items()})
    command = [*prefix, sys.executable, "-c", LOOK, str(SOURCE), wanted, *map(str, private)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Permission denied" in done.stderr:
        pytest.skip(f"another user cannot run this Python: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("prefix", [[], UNPRIVILEGED], ids=["this user", "another user"])
def test_each_process_has_its_own_folders_read_only_and_the_host_does_not_change(
    folder: Path, prefix: list[str]
) -> None:
    had_root = CONTAINER_ROOT.exists()
    for name in ("first", "second"):
        (folder / name / "code").mkdir(parents=True)
        (folder / name / "name.txt").write_text(name)
        (folder / name / "code" / "name.txt").write_text(f"code of {name}")

    for name in ("first", "second"):
        seen = look({MODEL: folder / name, CODE: folder / name / "code"}, prefix)
        if seen["notice"]:
            assert "mount namespace" in str(seen["notice"])
            pytest.skip(f"namespaces are forbidden here: {seen['notice']}")
        assert seen["texts"] == {str(MODEL): name, str(CODE): f"code of {name}"}
        assert seen["written"] == ["EROFS", "written"]
        assert set(seen["after"]) == {*seen["before"], "ml"}
        assert not seen["capabilities"]
    assert not list(folder.glob("*/new.txt"))
    assert CONTAINER_ROOT.exists() == had_root


def test_a_folder_with_links_is_linked_so_that_relative_ones_lead_on(folder: Path) -> None:
    (folder / "blobs").mkdir()
    (folder / "blobs" / "1").write_text("of the blob")
    (folder / "snapshot").mkdir()
    (folder / "snapshot" / "name.txt").symlink_to("../blobs/1")

    seen = look({MODEL: folder / "snapshot"}, [])

    if seen["notice"]:
        pytest.skip(str(seen["notice"]))
    assert seen["texts"] == {str(MODEL): "of the blob"}


@pytest.mark.parametrize("prefix", [[], UNPRIVILEGED], ids=["this user", "another user"])
def test_a_private_folder_keeps_what_it_has_and_what_is_added_stays_in_the_process(
    folder: Path, prefix: list[str]
) -> None:
    (folder / "name.txt").write_text("model")
    library = folder / "lib"
    (library / "sub").mkdir(parents=True)
    (library / "a.so").write_text("a")
    (library / "b.so").symlink_to("a.so")
    library.chmod(0o555)

    seen = look({MODEL: folder}, prefix, library)

    if seen["notice"]:
        pytest.skip(str(seen["notice"]))
    assert seen["private"] == [["written", ["a.so", "b.so", "new.txt", "sub"]]]
    assert sorted(path.name for path in library.iterdir()) == ["a.so", "b.so", "sub"]


def test_a_process_that_may_not_make_namespaces_is_told_why_and_what_to_do(folder: Path) -> None:
    seen = look({MODEL: folder}, ["setpriv", "--bounding-set=-all"])

    assert seen["notice"] == (
        f"/opt/ml/model does not exist for the model's code: its files are in {folder}, and a mount namespace cannot "
        "be made (Operation not permitted). Give the container of this server the capability SYS_ADMIN, or link the "
        f"folder: mkdir -p /opt/ml && ln -s {folder} /opt/ml/model, or let the code use the argument of model_fn, or "
        "the variable SM_MODEL_DIR, in place of the path."
    )


def test_an_error_about_a_missing_path_is_explained_also_behind_another_one() -> None:
    missing = FileNotFoundError(2, "No such file or directory", "/opt/ml/model/code/serve.pkl")
    wrapped = ValueError("no model")
    wrapped.__cause__ = missing

    assert explain(missing, "the notice") == "the notice"
    assert explain(wrapped, "the notice") == "the notice"
    assert explain(FileNotFoundError(2, "No such file or directory", "/data/model"), "the notice") == ""
    assert explain(None, "the notice") == ""
    itself = ValueError("other")
    itself.__cause__ = itself  # by `raise error from error`
    assert explain(itself, "the notice") == ""
