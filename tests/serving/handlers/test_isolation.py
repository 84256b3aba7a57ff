"""The policy of user code: its model and its Python, and nothing that a model chooses."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.handlers.assembly import install_packages, plan_handler
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.isolation import HubCache, Isolation, hub_cache, is_brought, python_folders
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler import sandbox
from headrace_handler.container_folders import CHANNELS, MODEL
from headrace_handler.contract import Load
from tests.serving.handlers.support import answer, pool_of, submit

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


def test_the_model_that_code_downloads_has_a_folder_that_no_other_model_writes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = []
    for root in (tmp_path / "m", tmp_path / "other"):
        root.mkdir()
        spec = ON.isolate(make_spec(root, HF_MODEL_ID="org/name"), root)
        assert spec.sandbox is not None
        (folder,) = spec.sandbox.write
        assert Path(folder).is_dir()
        assert Path(folder).parent == tmp_path / "hub" / "headrace-code"
        assert spec.environment["HF_HUB_CACHE"] == folder
        found.append(Path(folder))
    assert len({*found}) == 2
    found[0].rmdir()
    found[0].symlink_to("/root")
    with pytest.raises(SettingsError, match="is a link; expected a folder"):
        ON.isolate(make_spec(tmp_path / "m", HF_MODEL_ID="org/name"), tmp_path / "m")


def test_code_without_the_hub_reads_the_model_in_the_users_cache_and_changes_nothing(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub" / "models--org--name").mkdir(parents=True)
    spec = ON.isolate(make_spec(tmp_path, HF_MODEL_ID="org/name", HF_HUB_OFFLINE="1"), tmp_path)
    assert spec.sandbox is not None
    assert (spec.environment["HF_HUB_CACHE"], spec.sandbox.write) == (str(tmp_path / "hub"), [])
    assert str(tmp_path / "hub" / "models--org--name") in spec.sandbox.read
    (tmp_path / "hub" / "models--org--other").symlink_to("/root")
    with pytest.raises(SettingsError, match="is a link; expected a folder"):
        ON.isolate(make_spec(tmp_path, HF_MODEL_ID="org/other", HF_HUB_OFFLINE="1"), tmp_path)


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/b/c", "..", "a/..", "", "a b", "."])
def test_no_other_name_is_a_model_of_the_hub(tmp_path: Path, name: str) -> None:
    assert hub_cache(make_spec(tmp_path, HF_MODEL_ID=name), tmp_path) == HubCache()


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


def test_programs_that_a_model_names_are_not_run_and_give_no_other_folder_to_read(tmp_path: Path, monkeypatch) -> None:
    home, model = tmp_path / "home", tmp_path / "model"
    for name in ("home/bin/evil", "model/evil", "home/lib/python3.11/site-packages/x.pth", "cache/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho /root\n")
        (tmp_path / name).chmod(0o755)
    (model / "link").symlink_to(home / "bin" / "evil")
    (tmp_path / "cache" / "pyvenv.cfg").touch()
    (tmp_path / "cache" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (tmp_path / "cache" / "lib" / "python3.11" / "site-packages" / "x.pth").write_text("/root")
    monkeypatch.chdir(tmp_path)
    for python in (home / "bin/evil", home / "../model/evil", Path("/proc/self/cwd/model/evil"), model / "link"):
        assert python_folders(python, [model]) == []
    planted = tmp_path / "cache" / "bin" / "python"
    assert python_folders(planted, [model], [tmp_path]) == [tmp_path / "cache"]
    assert not (tmp_path / "ran").exists()


def test_settings_and_links_of_a_model_that_lead_out_of_its_folder_are_refused(tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    for folder in (model, outside):
        folder.mkdir()
    (outside / "inference.py").touch()
    (model / "code").symlink_to(outside)
    (model / "inference.py").symlink_to(outside / "inference.py")
    folders = replace(make_spec(model), container_folders={MODEL: model, MODEL.with_name("code"): model / "code"})
    entries = (outside / "inference.py", model / "inference.py", model / "../outside/inference.py")
    for spec in (folders, *(make_spec(model, entry=str(entry)) for entry in entries)):
        with pytest.raises(SettingsError, match=f"code is in {outside}.*--code-folders"):
            ON.isolate(spec, model)
        assert str(outside) in reads(replace(ON, folders=(str(outside),)).isolate(spec, model))
    channel = replace(make_spec(model), container_folders={CHANNELS / "x": outside})
    assert str(outside) in reads(ON.isolate(channel, model)), "the platform's"


def test_files_that_decide_about_the_code_are_no_links_to_others(tmp_path: Path) -> None:
    """Their content reaches the code: a link would name the server's environment, or a file with keys."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.py").write_text("def handle(inputs): pass")
    (model / "properties").write_text("option.rolling_batch=disable")
    (model / "serving.properties").symlink_to("properties")
    assert find_model(model, model_name="m", env={}).properties
    (tmp_path / "secrets").write_text("KEY=secret")
    (tmp_path / "MANIFEST.json").write_text("{}")
    for name, target in (("serving.properties", "/proc/self/environ"), ("MAR-INF", tmp_path)):
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to(target)
        with pytest.raises(SettingsError, match=r"leads to .*; expected a file in the model's folder"):
            find_model(model, model_name="m", env={})
        (model / name).unlink()
    (model / "requirements.txt").symlink_to(tmp_path / "secrets")
    found = replace(find_model(model, model_name="m", env={}), isolation=ON)
    with pytest.raises(SettingsError, match=f"is in {tmp_path}/secrets"):
        install_packages(plan_handler(found), tmp_path / "cache")


def test_an_interpreter_of_this_host_names_its_folders(tmp_path: Path) -> None:
    layered = tmp_path / "layered"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", layered], check=True)
    (site_packages,) = layered.glob("lib/python*/site-packages")
    (tmp_path / "shared").mkdir()
    (site_packages / "shared.pth").write_text(str(tmp_path / "shared"))
    found = python_folders(layered / "bin" / "python", [tmp_path / "model"])
    assert {layered, tmp_path / "shared", Path(sys.base_prefix)} <= set(found)
    link = tmp_path / "model" / "python"
    link.parent.mkdir()
    link.symlink_to(layered / "bin" / "python")
    assert tmp_path / "shared" not in python_folders(link, [tmp_path / "model"])
    assert python_folders(tmp_path / "none") == []


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
