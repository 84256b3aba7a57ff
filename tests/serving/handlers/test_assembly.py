"""A model's folder becomes the description of its handler, with the packages that its code asks for."""

import json
import os
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.handlers.assembly import describe_python, install_packages, plan_handler, unpack_model
from headrace.serving.handlers.exchange import HandlerRequest, request_part
from headrace.serving.handlers.found import find_model
from tests.serving.handlers.support import answer, pool_of
from tests.serving.handlers.wheels import make_wheel

HANDLER = """
import greeting
def handle(data, context):
    return None if data is None else [greeting.text for _ in data]
"""
MANIFEST = {
    "runtime": "python",
    "model": {"modelName": "m", "handler": "service.py", "modelVersion": "1.0", "requirementsFile": "requirements.txt"},
}
ENV = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "SERVING_OFFLINE": "true"}


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "model"
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(MANIFEST))
    (folder / "service.py").write_text(HANDLER)
    (folder / "requirements.txt").write_text("torch-neuronx==1.13.1.1.9.0\ngreeting==1.0\n")
    make_wheel(folder / "wheels", "greeting", source="text = 'hello'")
    return folder


def plan_of(folder: Path, **env: str):
    return plan_handler(find_model(folder, model_name="m", env={**ENV, **env}))


async def test_a_handler_imports_a_package_of_its_requirements(folder, tmp_path) -> None:
    plan = plan_of(folder)
    spec = install_packages(plan, tmp_path / "cache")
    assert spec.python != Path(sys.executable)
    async with pool_of(spec) as pool:
        request = HandlerRequest(request_id="r", parts=[await request_part(b"{}")])
        assert await answer(pool.submit(request)) == (200, b"hello")


def test_the_description_of_the_python_names_what_of_neuron_has_no_effect(folder) -> None:
    why = "no Neuron device or compiler is used: the model runs on the CPU."
    assert describe_python(plan_of(folder, NEURON_CC_FLAGS="-O1", NEURONX_CACHE="on", OTHER="1")) == (
        "It runs in Headrace's Python, with the packages of requirements.txt in an environment.",
        [
            f"torch-neuronx==1.13.1.1.9.0 of requirements.txt is not installed: {why}",
            f"NEURON_CC_FLAGS has no effect: {why}",
            f"NEURONX_CACHE has no effect: {why}",
        ],
    )
    (folder / "requirements.txt").unlink()
    assert describe_python(plan_of(folder, PYTHON_EXECUTABLE="/opt/bin/python3")) == (
        "It runs in /opt/bin/python3.",
        [],
    )


def test_requirements_are_installed_only_if_the_contract_would(folder) -> None:
    assert plan_of(folder).requirements == folder / "requirements.txt"
    assert plan_of(folder, TS_INSTALL_PY_DEP_PER_MODEL="false").requirements is None
    (folder / "requirements.txt").unlink()
    assert plan_of(folder).requirements is None


def test_without_packages_the_interpreter_is_the_servers_or_the_named_one(folder, tmp_path) -> None:
    (folder / "requirements.txt").write_text("# none\n")
    assert install_packages(plan_of(folder), tmp_path).python == Path(sys.executable)
    assert install_packages(plan_of(folder, PYTHON_EXECUTABLE="/opt/python"), tmp_path).python == Path("/opt/python")


def test_the_code_does_not_see_the_keys_of_the_server(folder) -> None:
    environment = plan_of(folder, HEADRACE_API_KEY="secret", MINE="1").spec.environment
    assert environment["MINE"] == "1"
    assert "secret" not in environment.values()


def test_an_archive_is_unpacked_once_from_a_file_or_its_folder(folder, tmp_path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with zipfile.ZipFile(store / "noop.mar", "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder))
    with closing(ContentCache(tmp_path / "cache")) as cache:
        first = unpack_model(store / "noop.mar", cache)
        assert unpack_model(store, cache) == first
        assert unpack_model(folder, cache) == folder
    assert (first / "MAR-INF" / "MANIFEST.json").is_file()
    assert first.name == "noop"


def test_a_broken_archive_is_named(tmp_path) -> None:
    (tmp_path / "broken.mar").write_bytes(b"PK\x03\x04")
    with pytest.raises(SettingsError, match=r"broken\.mar is "):
        unpack_model(tmp_path / "broken.mar", ContentCache(tmp_path / "cache"))


def test_variables_of_djls_properties_come_before_those_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def handle(inputs): ...\n")
    (tmp_path / "serving.properties").write_text("option.env=A=file\n")

    plan = plan_handler(find_model(tmp_path, model_name="m", env={"A": "server", "B": "2"}))

    assert plan.spec is not None
    assert {name: plan.spec.environment[name] for name in "AB"} == {"A": "file", "B": "2"}
