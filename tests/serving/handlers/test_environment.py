"""
Environments are made once from local wheels, on top of the base, or not at all.

Requirements are compared by the content of everything that the installer reads.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.handlers.environment import (
    EnvironmentFailed,
    EnvironmentMaker,
    Requirements,
    environment_key,
    inspect_base,
    read_requirements,
)
from tests.serving.handlers.wheels import make_wheel
from tests.waiting import WAIT_S

VARIABLES = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PIP_NO_INDEX": "1"}


@pytest.fixture(scope="module")
def base():
    return inspect_base()


@pytest.fixture
def maker(tmp_path):
    return EnvironmentMaker(cache=ContentCache(tmp_path / "cache"), timeout_s=WAIT_S, variables=VARIABLES)


def requirements(folder: Path, text: str) -> Requirements:
    folder.mkdir(exist_ok=True)
    (folder / "requirements.txt").write_text(text)
    read = read_requirements(folder / "requirements.txt")
    assert read is not None
    return read


def run(python: str, code: str) -> str:
    return subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_has_the_packages_and_those_of_the_base_and_is_made_once(tmp_path, maker, base) -> None:
    make_wheel(
        tmp_path / "model" / "wheels", "greeting", source="text = 'hello'\ndef main(): print(text)", requires="numpy"
    )
    wanted = requirements(tmp_path / "model", "greeting\nnumpy\n")

    with ThreadPoolExecutor(2) as threads:  # two workers at once: one builds, the other waits
        other = EnvironmentMaker(cache=ContentCache(tmp_path / "cache"), timeout_s=WAIT_S, variables=VARIABLES)
        first, second = threads.map(lambda each: each.python_for(wanted, base), (maker, other))

    assert first == second
    assert run(first, "import greeting, numpy, headrace_handler; print(greeting.text, numpy.__file__)").split() == [
        "hello",
        run(sys.executable, "import numpy; print(numpy.__file__)"),  # not installed a second time
    ]
    command = Path(first).with_name("greeting-command")
    assert subprocess.run([str(command)], capture_output=True, text=True, check=True).stdout == "hello\n"
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


def test_a_package_of_the_model_takes_precedence_over_the_base(tmp_path, maker, base) -> None:
    make_wheel(tmp_path / "model" / "requirements", "click", version="99.0", source="mark = 'of the model'")
    python = maker.python_for(requirements(tmp_path / "model", "click==99.0\n"), base)
    assert run(python, "import click; print(click.mark)") == "of the model"
    assert not hasattr(__import__("click"), "mark")


def test_a_failed_installation_names_the_package_and_leaves_nothing(tmp_path, maker, base) -> None:
    make_wheel(tmp_path / "model" / "wheels", "greeting")
    wanted = requirements(tmp_path / "model", "greeting\nnothere-at-all==3\n")
    with pytest.raises(EnvironmentFailed, match=r"exit status 1.*No matching distribution found for nothere-at-all==3"):
        maker.python_for(wanted, base)
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_a_wheel_for_another_python_is_named(tmp_path, maker, base) -> None:
    wheel = make_wheel(tmp_path / "model" / "wheels", "greeting")
    wheel.rename(wheel.with_name("greeting-1.0-cp27-none-any.whl"))
    wanted = requirements(tmp_path / "model", "greeting\n")
    with pytest.raises(
        EnvironmentFailed, match=r"for Python 3\..*greeting-1.0-cp27-none-any.whl is not a supported wheel"
    ):
        maker.python_for(wanted, base)


def test_an_installation_is_stopped_at_its_deadline_with_what_it_started(tmp_path, base) -> None:
    pid = tmp_path / "pid"
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\nsleep 3600 & echo $! > {pid}\nwait\n")
    slow.chmod(0o755)
    maker = EnvironmentMaker(cache=ContentCache(tmp_path / "cache"), timeout_s=1, variables=VARIABLES)
    with pytest.raises(EnvironmentFailed, match="not installed within 1 s"):
        maker.python_for(requirements(tmp_path / "model", "a\n"), replace(base, python=str(slow)))
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    if pid.exists():  # on a busy host it may not have come so far
        deadline_s = time.monotonic() + WAIT_S
        while (stat := Path(f"/proc/{pid.read_text().strip()}/stat")).exists() and " Z " not in stat.read_text():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false"])
def test_an_interpreter_that_cannot_be_run_is_named(python) -> None:
    with pytest.raises(EnvironmentFailed, match=python):
        inspect_base(python)


def test_the_name_depends_on_requirements_base_and_index(tmp_path, base) -> None:
    first = requirements(tmp_path / "one", "a\n")
    keys = {
        environment_key(first, base, {}),
        environment_key(requirements(tmp_path / "two", "b\n"), base, {}),
        environment_key(first, base, {"PIP_INDEX_URL": "https://index"}),
        environment_key(first, replace(base, packages=("a-1.dist-info",)), {}),
    }
    assert len(keys) == 4
    assert environment_key(requirements(tmp_path / "three", "a\n"), base, {"PATH": "/x"}) == environment_key(
        first, base, {}
    )


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("numpy>=1  # arrays\n-r more.txt\n./local\n")
    (tmp_path / "more.txt").write_text("-c constraints.txt\n-r requirements.txt\n")
    (tmp_path / "constraints.txt").write_text("numpy<3\n")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "setup.py").write_text("1")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a-1-py3-none-any.whl").write_bytes(b"1")
    return path


def digest(file: Path) -> str:
    requirements = read_requirements(file)
    assert requirements is not None
    return requirements.digest


@pytest.mark.parametrize(
    "name",
    ["requirements.txt", "more.txt", "constraints.txt", "local/setup.py", "wheels/a-1-py3-none-any.whl"],
)
def test_each_file_that_is_read_counts(file, name) -> None:
    before = digest(file)
    path = file.parent / name
    path.write_bytes(path.read_bytes() + b"\n# other")
    assert digest(file) != before


def test_the_place_of_the_folder_does_not_count(file, tmp_path) -> None:
    before = digest(file)
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    assert digest(moved / "requirements.txt") == before


def test_other_files_do_not_count(file) -> None:
    before = digest(file)
    (file.parent / "model.py").write_text("print()")
    assert digest(file) == before


@pytest.mark.parametrize("text", ["", "\n \n", "# numpy\n", "\ufeff# nothing\n"])
def test_a_file_without_packages_asks_for_no_environment(tmp_path, text) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    assert read_requirements(tmp_path / "requirements.txt") is None


@pytest.mark.parametrize("line", ["x" * 5000, "a/../../b", "name @ https://host/x.whl", "-e", "-r", "\x00", "--pre"])
def test_lines_that_name_no_local_file_are_left_to_the_installer(tmp_path, line) -> None:
    (tmp_path / "requirements.txt").write_text(line)
    assert read_requirements(tmp_path / "requirements.txt") is not None


@pytest.mark.parametrize("name", ["requirements", "wheels"])
def test_a_folder_of_packages_is_found(tmp_path, name) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("a")
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("")
    assert read_requirements(file).wheels is None  # type: ignore[union-attr]
    (tmp_path / name / "a-1-py3-none-any.whl").write_bytes(b"")
    assert read_requirements(file).wheels == tmp_path / name  # type: ignore[union-attr]


NEURON = """\
--extra-index-url https://pip.repos.neuron.amazonaws.com
torch-neuronx==1.13.1.1.9.0
Transformers_NeuronX>=0.5 ; python_version < "4"
transformers==4.31.0
-r more.txt
--constraint=https://host/constraints.txt
"""


def test_packages_of_neuron_devices_are_left_out_and_other_lines_can_be_read_from_elsewhere(tmp_path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(NEURON)
    (tmp_path / "more.txt").write_text("sentencepiece\n")
    read = read_requirements(path)
    assert read is not None
    assert read.left_out == ("torch-neuronx==1.13.1.1.9.0", 'Transformers_NeuronX>=0.5 ; python_version < "4"')
    assert read.installed_lines() == [
        "--extra-index-url https://pip.repos.neuron.amazonaws.com",
        "transformers==4.31.0",
        f"-r {tmp_path / 'more.txt'}",
        "--constraint=https://host/constraints.txt",
    ]


def test_requirements_of_neuron_devices_alone_ask_for_no_environment(tmp_path) -> None:
    (tmp_path / "requirements.txt").write_text("--extra-index-url https://host\nneuronx-cc\ntorch-neuronx\n")
    assert read_requirements(tmp_path / "requirements.txt") is None


def test_names_that_contain_the_letters_of_an_option_are_kept(tmp_path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("google-cloud-storage\nopencv-contrib-python\n-c limits.txt\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    read = read_requirements(file)
    assert read is not None
    assert read.installed_lines() == ["google-cloud-storage", "opencv-contrib-python", f"-c {tmp_path}/limits.txt"]
