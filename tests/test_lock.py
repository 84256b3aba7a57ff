"""The locks in `requirements/` are those of pyproject.toml, and have a hash for every package."""

import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SPEC = spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
lock = module_from_spec(SPEC)
SPEC.loader.exec_module(lock)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(name: str) -> dict[str, set[str]]:
    """Return the versions of each package in a lock; there are several where Pythons need different ones."""
    found: dict[str, set[str]] = {}
    for package, version in re.findall(
        r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE
    ):
        found.setdefault(package, set()).add(version)
    return found


def wanted(groups: list[str], extras: list[str]) -> list[Requirement]:
    lists = [
        PROJECT["project"]["dependencies"],
        *(PROJECT["project"]["optional-dependencies"][name] for name in extras),
    ]
    lists += [PROJECT["dependency-groups"][name] for name in groups]
    return [Requirement(text) for texts in lists for text in texts if isinstance(text, str)]


@pytest.mark.parametrize("name", lock.LOCKS)
def test_a_lock_is_written_again_when_what_it_is_resolved_from_has_changed(name: str) -> None:
    first = (ROOT / "requirements" / f"{name}.txt").read_text().partition("\n")[0]
    assert lock.inputs_digest(name) in first, f"requirements/{name}.txt is old. Run: python scripts/lock.py {name}"


@pytest.mark.parametrize("name", lock.LOCKS)
def test_each_package_of_a_lock_has_a_version_and_hashes(name: str) -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements" / f"{name}.txt").read_text().strip())[1:]
    assert [
        entry
        for entry in entries
        if not re.match(r"[\w.-]+==[^\s;]+[^\n]*( \\\n +--hash=sha256:[0-9a-f]{64})+$", entry)
    ] == []


@pytest.mark.parametrize(
    ("name", "groups", "extras"),
    [
        ("image", [], ["s3", "postgres", "otel", "ray"]),
        ("ci", ["build", "docs", "test", "test-all", "lint"], ["s3", "postgres", "otel", "ray"]),
    ],
)
def test_a_lock_has_what_the_project_asks_for(name: str, groups: list[str], extras: list[str]) -> None:
    versions = pinned(name)
    unfit = {
        str(requirement): versions.get(requirement.name.lower().replace("_", "-"))
        for requirement in wanted(groups, extras)
        if not all(map(requirement.specifier.contains, versions.get(requirement.name.lower().replace("_", "-"), [""])))
    }
    assert unfit == {}


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested = pinned("ci")
    assert {name: versions for name, versions in pinned("image").items() if tested.get(name) != versions} == {}


def test_the_build_for_cpus_is_of_the_version_in_the_lock() -> None:
    text = (ROOT / "requirements" / "torch-cpu.lock").read_text()
    assert set(re.findall(r"^torch==(\S+)\+cpu", text, re.MULTILINE)) == pinned("ci")["torch"]


def test_a_lock_has_the_files_of_the_pythons_and_machines_that_wheels_are_built_for() -> None:
    built = re.findall(r"cp3(\d+)-", PROJECT["tool"]["cibuildwheel"]["build"])
    assert [int(minor) for minor in built] == list(lock.PYTHONS)
    kept = ["a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"]
    kept += ["a-1-cp39-abi3-manylinux_2_28_aarch64.whl", "a-1-py3-none-linux_x86_64.whl"]
    others = ["a-1-cp310-cp310-manylinux_2_17_x86_64.whl", "a-1-cp311-cp311-macosx_11_0_arm64.whl"]
    others += ["a-1-cp313-cp313t-manylinux_2_17_x86_64.whl", "a-1-cp312-cp312-musllinux_1_2_x86_64.whl"]
    assert [name for name in kept + others if lock._is_for_us(name)] == kept
