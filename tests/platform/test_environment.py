"""A shell is pointed at a platform, and back; the SDKs' address of STS follows."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.platform.environment import (
    SHELL_FOLDER,
    Target,
    dotenv_lines,
    original_environment,
    shell_lines,
    undo_lines,
    variables,
)

TARGET = Target(url="http://127.0.0.1:7450", region="us-east-1")
SHELLS = [shell for shell in ("sh", "bash", "zsh", "dash") if shutil.which(shell)]


def in_shell(shell: str, lines: list[str], env: dict[str, str]) -> dict[str, str]:
    """The environment of a program that is started after the lines."""
    script = "\n".join([*lines, f"exec {shutil.which('env')} -0"])
    done = subprocess.run([shell, "-c", script], env=env, capture_output=True, check=True)
    pairs = (entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    return {name: value for name, value in pairs if name not in {"PWD", "SHLVL", "_", "OLDPWD"}}


def test_variables_that_point_elsewhere_are_cleared() -> None:
    env = {"AWS_PROFILE": "work", "AWS_ENDPOINT_URL_S3": "http://minio", "AWS_SESSION_TOKEN": "t", "HOME": "/h"}
    values = variables(TARGET, env)
    assert [name for name, value in values.items() if value is None] == sorted(env.keys() - {"HOME"})
    assert values["AWS_ENDPOINT_URL"] == TARGET.url


def test_proxies_are_told_to_leave_local_addresses_alone() -> None:
    values = variables(TARGET, {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "internal,localhost"})
    assert values["NO_PROXY"] == "internal,localhost,127.0.0.1"
    assert values["no_proxy"] == "127.0.0.1,localhost"
    assert "NO_PROXY" not in variables(TARGET, {})


@pytest.mark.parametrize("shell", SHELLS)
def test_the_environment_of_a_shell_is_set_and_restored(shell: str) -> None:
    own = {"AWS_SECRET_ACCESS_KEY": 'it\'s "$HOME"\\ x', "AWS_PROFILE": "work", "PYTHONPATH": "/a:/b", "ODD": "1 2"}
    before = in_shell(shell, [], own)  # zsh adds HOME and LOGNAME
    inside = in_shell(shell, shell_lines(TARGET, before), before)
    assert inside["AWS_SECRET_ACCESS_KEY"] == "headrace"
    assert inside["PYTHONPATH"] == f"{SHELL_FOLDER}:/a:/b"
    assert "AWS_PROFILE" not in inside
    assert original_environment(inside) == before
    assert in_shell(shell, undo_lines(inside), inside) == before


@pytest.mark.parametrize("shell", SHELLS)
def test_setting_the_environment_twice_equals_setting_it_once(shell: str) -> None:
    before = {"AWS_PROFILE": "work", "PYTHONPATH": "/a"}
    other = Target(url="http://127.0.0.1:9", region="eu-west-1")
    first = in_shell(shell, shell_lines(other, before), before)
    second = in_shell(shell, shell_lines(TARGET, first), first)
    assert second == in_shell(shell, shell_lines(TARGET, before), before)


def test_secrets_of_the_shell_are_not_printed() -> None:
    lines = shell_lines(TARGET, {"AWS_SECRET_ACCESS_KEY": "precious"})
    assert not any("precious" in line for line in lines)


def test_unset_without_a_set_changes_nothing() -> None:
    assert undo_lines({"AWS_PROFILE": "work"}) == []


def test_a_marker_with_foreign_text_executes_nothing() -> None:
    assert undo_lines({"_HEADRACE_ENV": "A;touch /nowhere,$(id),B C"}) == []


def test_dotenv_files_have_names_and_values() -> None:
    assert f"AWS_ENDPOINT_URL={TARGET.url}" in dotenv_lines(TARGET, {"AWS_PROFILE": "work"})


UTILS = """
def sts_regional_endpoint(region):
    return "https://sts." + region + ".amazonaws.com"
"""


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    """Modules laid out as those of the two SDKs, and a sitecustomize that existed before."""
    for module, text in {
        "sagemaker/__init__.py": "",
        "sagemaker/core/__init__.py": "",
        "sagemaker/core/helper/__init__.py": "",
        "sagemaker/utils.py": UTILS,
        "sagemaker/session.py": "from sagemaker.utils import sts_regional_endpoint\n",
        "sagemaker/core/helper/session_helper.py": UTILS,
        "sagemaker/core/other.py": UTILS,
        "sitecustomize.py": "import os\nos.environ['CHAINED'] = 'yes'\n",
    }.items():
        path = tmp_path / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def python(code: str, sdk: Path, env: dict[str, str]) -> str:
    path = os.pathsep.join([str(SHELL_FOLDER), str(sdk)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["sagemaker.session", "sagemaker.utils", "sagemaker.core.helper.session_helper"])
def test_the_sdk_asks_the_platform_for_its_identity(sdk: Path, module: str) -> None:
    code = f"""
    import {module} as m
    print(m.sts_regional_endpoint("eu-west-1"))
    """
    assert python(code, sdk, {"AWS_ENDPOINT_URL": TARGET.url}) == TARGET.url
    assert python(code, sdk, {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_STS": TARGET.url}) == TARGET.url


def test_without_an_endpoint_the_sdk_is_left_as_it_is(sdk: Path) -> None:
    code = "from sagemaker.session import sts_regional_endpoint as f; print(f('eu-west-1'))"
    assert python(code, sdk, {}) == "https://sts.eu-west-1.amazonaws.com"


def test_nothing_is_imported_before_its_user_imports_it(sdk: Path) -> None:
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith(('sagemaker', 'boto'))))"
    assert python(code, sdk, {"AWS_ENDPOINT_URL": TARGET.url}) == "[]"


def test_other_modules_are_not_touched_and_source_can_be_read(sdk: Path) -> None:
    code = """
    import inspect, sagemaker.core.other, sagemaker.utils
    print(sagemaker.core.other.sts_regional_endpoint("x"), len(inspect.getsource(sagemaker.utils)) > 10)
    """
    assert python(code, sdk, {"AWS_ENDPOINT_URL": TARGET.url}) == "https://sts.x.amazonaws.com True"


def test_a_sitecustomize_further_down_the_path_still_runs(sdk: Path) -> None:
    code = "import os, sitecustomize; print(os.environ.get('CHAINED'), sitecustomize.__file__)"
    assert python(code, sdk, {}) == f"yes {sdk / 'sitecustomize.py'}"
