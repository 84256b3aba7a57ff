"""The pytest plugin, in sessions of its own, as a project that installs Headrace sees it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest

from headrace.core.processes import is_session_running, process_id
from headrace.pytest import read_timeout
from tests.platform.host.running import clean_environment, until
from tests.waiting import WAIT_S

EXAMPLE = Path(__file__).parent.parent / "examples" / "07-pytest"
GUIDE = EXAMPLE.parent.parent / "docs" / "guides" / "pytest.md"
PYTEST = (sys.executable, "-P", "-m", "pytest", "-p", "headrace.pytest")

ENVIRONMENT = clean_environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")

FAILING = """
    import boto3

    def test_a_failure(headrace_env):
        boto3.client("sagemaker").describe_endpoint(EndpointName="absent")
"""

WAITING = """
    import time
    from pathlib import Path

    def test_a_wait(headrace_platform):
        part = Path("started.partial")
        part.write_text(str(headrace_platform.log_path))
        part.rename("started")
        time.sleep(600)
"""


def project(folder: Path, code: str, ini: str = "") -> Path:
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    (folder / "test_it.py").write_text(textwrap.dedent(code))
    return folder


def test_the_plugin_imports_nothing_of_headrace_before_a_fixture_is_used() -> None:
    code = (
        "import headrace.pytest, sys; print(*(name for name in sys.modules if name.startswith(('headrace', 'boto'))))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"headrace", "headrace.pytest"}


@pytest.mark.model
def test_the_example_runs_in_two_processes_and_a_failure_shows_the_log_of_its_platform(
    tmp_path: Path, smollm2_path: Path
) -> None:
    folder = project(tmp_path, FAILING, f"headrace_model = {smollm2_path}")
    for path in EXAMPLE.glob("*.py"):
        shutil.copy(path, folder)
    command = [*PYTEST, "-p", "xdist", "-n", "2", "--basetemp", str(tmp_path / "temporary")]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert 'Could not find endpoint "arn:aws:sagemaker:us-east-1:000000000000:endpoint/absent"' in done.stdout
    shown = done.stdout.split("Headrace platform log")[1]
    logs = [path.read_text() for path in folder.rglob("platform.log")]
    urls = [re.search(r"platform\.ready +url=(\S+)", log)[1] for log in logs]
    assert len(set(urls)) == 2
    assert [url in shown for url in urls].count(True) == 1
    assert all("platform.stopped" in log for log in logs)
    assert [*folder.rglob("records.sqlite")] == []
    for url in urls:
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", trust_env=False)


def test_a_killed_session_leaves_no_platform(tmp_path: Path) -> None:
    folder = project(tmp_path, WAITING)
    command = [*PYTEST, "--basetemp", str(tmp_path / "temporary")]
    with (tmp_path / "output").open("wb") as output:
        tests = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: (folder / "started").exists() or tests.poll() is not None, (tmp_path / "output").read_text)
        assert tests.poll() is None, (tmp_path / "output").read_text()
        log_path = Path((folder / "started").read_text())
        (child,) = Path(f"/proc/{tests.pid}/task/{tests.pid}/children").read_text().split()
        platform = process_id(int(child))
        assert platform is not None
    finally:
        os.kill(tests.pid, signal.SIGKILL)
        tests.wait()
    until(lambda: not is_session_running(platform), log_path.read_text)
    assert "platform.stopped" in log_path.read_text()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan", ""])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"headrace_timeout_s is '{text}'; expected a number of seconds"):
        read_timeout(text)
    assert read_timeout("2.5") == 2.5


@pytest.mark.parametrize("name", ["writer.py", "test_writer.py"])
def test_the_guide_shows_the_example(name: str) -> None:
    code = (EXAMPLE / name).read_text().split('"""\n\n', 1)[1]
    assert code in GUIDE.read_text()
