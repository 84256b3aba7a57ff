"""The policy of user code: its model and its Python, and nothing that a model chooses."""

import ast
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.handlers.environment import EnvironmentMaker, inspect_base, read_requirements
from headrace.serving.handlers.isolation import Isolation, hub_cache, is_brought, python_folders
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.settings.loading import load_settings
from headrace_handler import sandbox
from headrace_handler.container_folders import MODEL
from headrace_handler.contract import Load
from tests.serving.handlers.support import answer, pool_of, submit
from tests.waiting import WAIT_S

ON = Isolation(is_on=True)


def make_spec(folder: Path, *, entry: str = "", **environment: str) -> HandlerSpec:
    return HandlerSpec(
        contract="sagemaker", load=Load(model_name="m", model_dir=folder, entry=entry), environment=environment
    )


def reads(spec: HandlerSpec) -> set[str]:
    assert spec.sandbox is not None
    return set(spec.sandbox.read)


def test_code_reads_its_model_its_python_and_the_package_that_runs_it(tmp_path: Path) -> None:
    found = reads(ON.isolate(make_spec(tmp_path), tmp_path))
    own = str(Path(sandbox.__file__).parent)
    assert {str(tmp_path), sys.prefix, sys.base_prefix, own} <= found
    assert not any(Path(path) in (Path("/"), Path("/root"), Path.home(), Path("/tmp")) for path in found)


def test_without_isolation_the_spec_stays_as_it_is(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    assert Isolation().isolate(spec, tmp_path) is spec


def test_settings_and_the_environment_of_a_model_cannot_add_folders_but_the_owner_can(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, PYTHONPATH="/root/secret", LD_LIBRARY_PATH="/root/secret", HEADRACE_CODE_FOLDERS="/root")
    assert not any("/root/secret" in path for path in reads(ON.isolate(spec, tmp_path)))
    assert "/srv/data" in reads(replace(ON, folders=("/srv/data",)).isolate(spec, tmp_path))


def test_a_snapshot_of_the_hub_is_read_with_the_files_that_its_links_lead_to(tmp_path: Path) -> None:
    blob = tmp_path / "hub" / "models--org--m" / "blobs" / "1"
    snapshot = tmp_path / "hub" / "models--org--m" / "snapshots" / "main"
    for folder in (blob.parent, snapshot):
        folder.mkdir(parents=True)
    blob.write_bytes(b"weights")
    (snapshot / "weights").symlink_to(blob)
    found = reads(ON.isolate(make_spec(snapshot), snapshot))
    assert str(tmp_path / "hub" / "models--org--m") in found
    assert str(tmp_path / "hub") not in found


def test_the_model_that_code_downloads_has_folders_of_its_own_in_the_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = ON.isolate(make_spec(tmp_path / "m", HF_MODEL_ID="org/name"), tmp_path / "m")
    assert spec.sandbox is not None
    folders = [tmp_path / "hub" / "models--org--name", tmp_path / "hub" / ".locks" / "models--org--name"]
    assert [Path(path) for path in spec.sandbox.write] == folders
    assert all(folder.is_dir() for folder in folders)
    assert spec.environment["HF_HUB_CACHE"] == str(tmp_path / "hub")


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/b/c", "..", "a/..", "", "a b", "."])
def test_no_other_name_is_a_model_of_the_hub(tmp_path: Path, name: str) -> None:
    assert hub_cache(make_spec(tmp_path, HF_MODEL_ID=name)) is None


def test_an_interpreter_that_a_model_brings_is_not_believed(tmp_path: Path) -> None:
    model = tmp_path / "cache" / "model"
    for name in ("bin/python", "python"):
        place = model / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(sys.executable)
        assert is_brought(place, [model])
        assert not any(path.is_relative_to(tmp_path) for path in python_folders(place, [model]))
        place.unlink()
        place.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho /root\n")
        place.chmod(0o755)
        assert python_folders(place, [model]) == []
    assert not (tmp_path / "ran").exists()


def test_an_interpreter_of_this_host_names_its_folders(tmp_path: Path) -> None:
    layered = tmp_path / "layered"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", layered], check=True)
    (site_packages,) = layered.glob("lib/python*/site-packages")
    (tmp_path / "shared").mkdir()
    (site_packages / "shared.pth").write_text(str(tmp_path / "shared"))
    found = python_folders(layered / "bin" / "python", [tmp_path / "model"])
    assert {layered, tmp_path / "shared", Path(sys.base_prefix)} <= set(found)
    assert python_folders(tmp_path / "none") == []


def test_a_required_sandbox_refuses_code_inside_the_server() -> None:
    with pytest.raises(SettingsError, match="sandbox is require and trust_remote_code is true"):
        load_settings({"model": "m", "sandbox": "require", "trust_remote_code": "true"}, {})


CODE = """
import json, os
def model_fn(folder):
    return folder
def transform_fn(folder, body, content_type, accept):
    with open("/lib/of-the-model.so", "w") as library:
        library.write("own")
    try:
        open("/lib/os-release", "r+b")
    except OSError as error:
        other = type(error).__name__
    return json.dumps([os.listdir("/opt/ml/model"), os.listdir("/opt/ml"), other]), accept
"""


async def test_code_finds_its_folders_and_adds_libraries_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "inference.py").write_text(CODE)
    spec = make_spec(tmp_path, entry="inference.py", PATH="/usr/bin:/bin")
    spec = replace(spec, container_folders={MODEL: tmp_path}, private_folders=[Path("/lib")])
    async with pool_of(ON.isolate(spec, tmp_path)) as pool:
        status, body = await answer(await submit(pool, "invocations"))
    assert (status, json.loads(body)) == (200, [["inference.py"], ["model"], "OSError"])
    assert not Path("/lib/of-the-model.so").exists()


BACKEND = """
import json, os, pathlib, socket, zipfile
def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__
def build_wheel(folder, config_settings=None, metadata_directory=None):
    secret, victim, address = json.loads(pathlib.Path("facts.json").read_text())
    seen = {
        "secret": attempt(lambda: open(secret).read()),
        "model": attempt(lambda: open("weights").read()),
        "change": attempt(lambda: open("weights", "w")),
        "environment": attempt(lambda: open(f"/proc/{victim}/environ").read()),
        "signal": attempt(lambda: os.kill(victim, 0)),
        "socket": attempt(lambda: socket.socket(socket.AF_UNIX).connect(address)),
    }
    with zipfile.ZipFile(f"{folder}/evil-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("evil.py", f"SEEN = {seen!r}")
        wheel.writestr("evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: evil\\nVersion: 1.0\\n")
        wheel.writestr("evil-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("evil-1.0.dist-info/RECORD", "")
    return "evil-1.0-py3-none-any.whl"
"""


def test_the_build_of_a_package_that_a_model_requires_runs_in_the_sandbox(tmp_path: Path) -> None:
    package, secret = tmp_path / "model" / "evil", tmp_path / "database"
    package.mkdir(parents=True)
    secret.write_text("keys")
    (package / "weights").write_text("own")
    (package / "backend.py").write_text(BACKEND)
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (package / "pyproject.toml").write_text(system + '[project]\nname = "evil"\nversion = "1.0"\n')
    (tmp_path / "model" / "requirements.txt").write_text("./evil\n")
    wanted = read_requirements(tmp_path / "model" / "requirements.txt")
    assert wanted is not None
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    maker = EnvironmentMaker(
        cache=ContentCache(tmp_path / "cache"), timeout_s=WAIT_S, variables=variables, isolation=ON
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        facts = [str(secret), os.getpid(), str(tmp_path / "socket")]
        (package / "facts.json").write_text(json.dumps(facts))
        python = maker.python_for(wanted, inspect_base())
    shown = subprocess.run([python, "-P", "-c", "import evil; print(repr(evil.SEEN))"], capture_output=True, check=True)
    seen = ast.literal_eval(shown.stdout.decode())
    assert seen.pop("model") == "own"
    assert {name for name, said in seen.items() if not said.endswith("Error")} == set()
