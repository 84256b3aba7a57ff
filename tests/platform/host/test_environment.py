"""A shell is pointed at a platform, and back; the SDKs' address of STS follows."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.platform.host.environment import (
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


def test_clients_of_openai_are_pointed_at_the_platform_unless_the_shell_has_a_key_for_them() -> None:
    target = Target(url="http://127.0.0.1:7450", region="us-east-1", access_key="k", secret_key="s3cret")
    values = variables(target, {"OPENAI_API_KEY": ""})
    assert (values["OPENAI_BASE_URL"], values["OPENAI_API_KEY"]) == (f"{target.url}/v1", "s3cret")
    assert not {"OPENAI_BASE_URL", "OPENAI_API_KEY"} & variables(target, {"OPENAI_API_KEY": "sk-own"}).keys()


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


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a sitecustomize that existed before."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['CHAINED'] = 'yes'\n")
    return tmp_path


def python(code: str, site: Path, env: dict[str, str]) -> str:
    path = os.pathsep.join([str(SHELL_FOLDER), str(site)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


CLIENTS = """
import boto3, botocore.session
keys = {"region_name": "eu-west-1", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
for service, url in (
    ("sts", "https://sts.eu-west-1.amazonaws.com"),
    ("sts", "https://STS.cn-north-1.amazonaws.com.cn:443/"),
    ("ecr", "https://ecr.eu-west-1.api.aws"),
    ("s3", "http://minio:9000"),
    ("s3", "http://minio/x.amazonaws.com"),
    ("s3", "http://amazonaws.com.example"),
    ("sagemaker", None),
):
    print(boto3.client(service, endpoint_url=url, **keys).meta.endpoint_url)
print(boto3.resource("iam", endpoint_url="https://iam.amazonaws.com", **keys).meta.client.meta.endpoint_url)
"""
OF_OTHERS = ["http://minio:9000", "http://minio/x.amazonaws.com", "http://amazonaws.com.example"]


@pytest.mark.parametrize("more", [{}, {"AWS_PROFILE": "stubborn", "AWS_CONFIG_FILE": "config"}])
def test_a_client_that_names_an_address_of_aws_gets_the_platforms(site: Path, more: dict[str, str]) -> None:
    """Also with a profile that ignores the variable: `headrace env` clears AWS_PROFILE, but a script may set it."""
    (site / "config").write_text("[profile stubborn]\nignore_configured_endpoint_urls = true\n")
    if more:
        more = {**more, "AWS_CONFIG_FILE": str(site / "config")}
    pointing = {name: value for name, value in variables(TARGET, {}).items() if value and name.startswith("AWS_")}
    found = python(CLIENTS, site, {**pointing, **more}).splitlines()
    assert found == [TARGET.url] * 3 + OF_OTHERS + [TARGET.url] * 2
    of_sts = {**pointing, "AWS_ENDPOINT_URL_STS": "http://sts"}
    assert python(CLIENTS, site, of_sts).splitlines()[0] == "http://sts"


def test_without_an_endpoint_clients_are_left_as_they_are(site: Path) -> None:
    found = python(CLIENTS, site, {}).splitlines()
    assert found[0] == "https://sts.eu-west-1.amazonaws.com"
    assert found[3:6] == OF_OTHERS
    assert found[-1] == "https://iam.amazonaws.com"


def test_nothing_is_imported_before_its_user_imports_it(site: Path) -> None:
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith(('sagemaker', 'boto'))))"
    assert python(code, site, {"AWS_ENDPOINT_URL": TARGET.url}) == "[]"


def test_the_source_of_the_module_can_be_read(site: Path) -> None:
    code = "import inspect, botocore.session; print(len(inspect.getsource(botocore.session)) > 10)"
    assert python(code, site, {"AWS_ENDPOINT_URL": TARGET.url}) == "True"


def test_a_sitecustomize_further_down_the_path_still_runs(site: Path) -> None:
    code = "import os, sitecustomize; print(os.environ.get('CHAINED'), sitecustomize.__file__)"
    assert python(code, site, {}) == f"yes {site / 'sitecustomize.py'}"
