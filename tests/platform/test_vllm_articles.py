"""The examples of the Phi-3 and the LMI 0.26 article, by the SageMaker SDK, with the real vLLM behind the endpoints."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.vllm.support import vllm_environment, vllm_python

from .conftest import shell_for
from .running import Running, up
from .test_sdks import EXAMPLES, PIECES, check_all, started

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

ARTICLES = ("lmi_environment", "lmi")
"""`OPTION_ROLLING_BATCH=vllm` in the environment, and `option.rolling_batch` in `serving.properties`."""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Running]:
    """A platform in the environment of vLLM, so that its workers have it too."""
    programs = Path(sys.executable).parent
    env = {**vllm_environment(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    running = up(tmp_path / "data", env=env, program=(vllm_python(), "-m", "headrace"))
    yield running
    assert running.stop() == 0, running.log()


def test_the_examples_of_the_articles_are_served_by_vllm(
    platform: Running, smollm2_folder: Path, tmp_path: Path
) -> None:
    shell = shell_for(platform)
    processes = {
        name: started(sys.executable, quick_copy(name, tmp_path), shell, smollm2_folder, tmp_path / name)
        for name in ARTICLES
    }
    check_all(processes, PIECES, platform)
    client = platform.client("logs")
    groups = [group["logGroupName"] for group in client.describe_log_groups()["logGroups"]]
    logs = ["".join(e["message"] for e in client.filter_log_events(logGroupName=name)["events"]) for name in groups]
    assert sum('"backend": "vllm"' in log for log in logs) == len(ARTICLES), logs


def quick_copy(name: str, folder: Path) -> Path:
    """Copy an example, to ask for vLLM by name and not to compile, which takes minutes on a CPU."""
    code = (EXAMPLES / f"{name}.py").read_text()
    for text, other in (
        ("option.rolling_batch=auto", "option.rolling_batch=vllm\noption.enforce_eager=true"),
        ('"OPTION_ROLLING_BATCH": "vllm",', '"OPTION_ROLLING_BATCH": "vllm", "OPTION_ENFORCE_EAGER": "true",'),
    ):
        code = code.replace(text, other)
    assert "enforce_eager" in code.lower()
    copy = folder / f"{name}.py"
    copy.write_text(code)
    return copy
