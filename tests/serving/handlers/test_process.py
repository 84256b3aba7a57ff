"""A child process that cannot be started."""

import os
import resource
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from headrace.serving.handlers.channel import new_tail
from headrace.serving.handlers.code_metrics import CodeMetrics
from headrace.serving.handlers.isolation import child_command
from headrace.serving.handlers.process import ChildProcess
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler.contract import Load
from headrace_handler.policy import Policy
from headrace_handler.sandbox import LATER, PARTS
from tests.serving.handlers.support import num_descriptors, spec_for


async def test_a_child_that_cannot_be_started_for_want_of_descriptors_leaves_none(tmp_path: Path) -> None:
    spec, tail, metrics = spec_for(tmp_path), new_tail(), CodeMetrics()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_before = num_descriptors()
    limit = 1 + max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    with ExitStack() as restored:
        restored.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        with suppress(OSError):
            while True:
                restored.callback(os.close, os.dup(0))
        for num_free in range(7):  # a socket pair, two pipes, and the list of inheritable descriptors
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit + num_free, hard))
            with pytest.raises(OSError, match="Too many open files"):
                ChildProcess(spec, tail, metrics)
    assert num_descriptors() <= num_before


@pytest.mark.parametrize(
    ("environment", "python", "expected"),
    [
        ({"PATH": "/bin", PARTS: "claimed"}, sys.executable, (False, {"PATH": "/bin"})),
        ({"LD_PRELOAD": "/own.so"}, sys.executable, (True, {f"{LATER}LD_PRELOAD": "/own.so"})),
        ({"PYTHONUNBUFFERED": "1"}, "/usr/bin/python3", (True, {"PYTHONUNBUFFERED": "1"})),
    ],
)
def test_what_a_model_chooses_does_not_run_before_the_sandbox(
    environment: dict[str, str], python: str, expected: tuple[bool, dict[str, str]], tmp_path: Path
) -> None:
    spec = HandlerSpec(
        contract="sagemaker",
        load=Load(model_name="m", model_dir=tmp_path, entry=""),
        python=Path(python),
        environment=environment,
        container_folders={Path("/opt/ml/model"): tmp_path},
    )
    command, given = child_command(spec, Policy())
    assert ("--run" in command, given) == expected
    assert (command[0] == sys.executable, str(tmp_path) in " ".join(command)) == (True, True)
