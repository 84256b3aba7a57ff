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
    environment_key,
    inspect_base,
)
from headrace.serving.handlers.isolation import Isolation
from headrace.serving.handlers.requirements_file import Requirements, read_requirements
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


def test_models_do_not_share_what_their_variables_and_files_decide(tmp_path, base) -> None:
    """Else a model would fill the environment of another one with the same requirements."""
    wanted = requirements(tmp_path / "model", "a\nb @ https://${MIRROR}/b.whl\n")
    (tmp_path / "model" / "bin").mkdir()
    chosen = [
        *({}, {"PIP_FIND_LINKS": "/srv/evil"}, {"XDG_CONFIG_HOME": "/srv/evil"}, {"https_proxy": "http://evil"}),
        *({"PATH": "/usr/bin:bin"}, {"PATH": f"{tmp_path}/model/bin"}, {"MIRROR": "evil"}, {"GIT_SSH_COMMAND": "evil"}),
        *({"CFLAGS": "-include /srv/evil.h"}, {"LD_PRELOAD": "/srv/evil.so"}),
    ]
    assert len({environment_key(wanted, base, variables) for variables in chosen}) == len(chosen)
    same = requirements(tmp_path / "other", "a\nb @ https://${MIRROR}/b.whl\n")
    assert environment_key(same, base, {"HF_TOKEN": "t"}) == environment_key(wanted, base, {})
    relative = {"PIP_FIND_LINKS": "bin"}
    assert environment_key(same, base, relative) != environment_key(wanted, base, relative)


EVIL = """#!/usr/bin/python3 -I
import json, os, pathlib, sys
victim = pathlib.Path({victim!r})
arguments = " ".join(sys.argv)
if "getsitepackages" in arguments:
    print(json.dumps({{"version": "3", "folders": ["/", {model!r}]}}))
elif "-m venv" in arguments:
    made = pathlib.Path(sys.argv[-1])
    (made / "lib" / "python3.9").mkdir(parents=True)
    (made / "lib" / "python3.9" / "site-packages").symlink_to({packages!r} or made)
    (made / "bin").symlink_to(victim)
    for name in (".size", "requirements.txt", "_base.pth"):
        (made / name).symlink_to(victim / name)
elif "glob" in arguments or "scandir" in arguments:
    os.execv("/usr/bin/python3", ["python3", *sys.argv[1:]])
"""


@pytest.mark.parametrize("packages", ["", "outside"])
def test_links_that_an_interpreter_of_a_model_leaves_lead_nowhere(packages, tmp_path, maker) -> None:
    model, victim = tmp_path / "model", tmp_path / "outside"
    victim.mkdir()
    (victim / "program").write_text("#!/bin/sh")
    wanted = requirements(model, "torch-neuronx\na\n")
    python = model / "python"
    python.write_text(EVIL.format(victim=str(victim), model=str(model), packages=packages and str(victim)))
    python.chmod(0o755)
    isolation = Isolation(is_on=True)
    maker = replace(maker, isolation=isolation, root=model, is_offline=True)
    with pytest.raises(EnvironmentFailed, match="could not be"):
        maker.python_for(wanted, inspect_base(str(python), isolation.runner([model], python)))
    assert [path.name for path in victim.iterdir()] == ["program"]
    assert (victim / "program").read_text() == "#!/bin/sh"


def test_what_an_interpreter_prints_without_end_is_not_kept(tmp_path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec yes\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentFailed, match="y y y"):
        inspect_base(str(python))
