"""The SageMaker SDK 3.x, in an environment of its own: it has the name of 2.x, which the other tests use."""

import os
import subprocess
from pathlib import Path

import pytest

from .running import Running, clean_environment, until
from .test_sdks import check_all, started

pytestmark = pytest.mark.model

REPOSITORY = Path(__file__).parent.parent.parent
EXAMPLES = REPOSITORY / "examples" / "sagemaker" / "sdk3"
PIECES = {
    "resources": ("at once:", "found:    ['smollm2-resources-"),
    "components": ("at once:", "copies:   2", "found:    ['smollm2-sdk3-component-"),
    "model_builder": ("at once:", "streamed:"),
    "inference_spec": ("answer: Hello, sea", "answer: Hello, river"),
}
ALIASES = {"inference_spec": "Greeter"}
"""What a script serves if it is not `smollm2`: its own class."""


@pytest.fixture(scope="module")
def sdk3_python() -> str:
    """A Python with the SDK; making it takes a minute the first time, and the network."""
    made = subprocess.run(
        [REPOSITORY / "scripts" / "environment", "sdk3"], env=clean_environment(), capture_output=True, text=True
    )
    if made.returncode != 0:
        why = f"the SDK 3.x cannot be installed: {made.stderr[-1000:]}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return made.stdout.strip()


@pytest.mark.timeout(1200)
def test_resource_classes_and_the_model_builder_run_and_leave_nothing(
    platform: Running, shell: dict[str, str], sdk3_python: str, smollm2_path: Path, tmp_path: Path
) -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert {script.stem for script in scripts} == set(PIECES)
    processes = {
        script.stem: started(
            *(sdk3_python, script, shell, smollm2_path, tmp_path / script.stem),
            alias=ALIASES.get(script.stem, "smollm2"),
        )
        for script in scripts
    }
    check_all(processes, PIECES, platform)
    client = platform.client("sagemaker")
    for prefix in ("smollm2-resources", "smollm2-sdk3-component", "smollm2-builder", "greeter-spec"):
        until(lambda part=prefix: not client.list_endpoints(NameContains=part)["Endpoints"], "endpoints are deleted")
        assert not client.list_models(NameContains=prefix)["Models"]
        assert not client.list_endpoint_configs(NameContains=prefix)["EndpointConfigs"]
