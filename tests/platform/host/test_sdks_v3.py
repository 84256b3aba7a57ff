"""The SageMaker SDK 3.x, in an environment of its own: it has the name of 2.x, which the other tests use."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.needs import ROOT

from .running import Running, until
from .sdk_scripts import Command, check_all, check_session_helpers, cold_python, started

pytestmark = pytest.mark.model

EXAMPLES = ROOT / "examples" / "sagemaker" / "sdk3"
PIECES = {
    "resources": ("at once:", "found:    ['smollm2-resources-"),
    "components": ("at once:", "copies:   2", "found:    ['smollm2-sdk3-component-"),
    "model_builder": ("at once:", "streamed:"),
    "multi_model": ("double:  [2, 4, 6]", "triple:  [3, 6, 9]"),
    "pipeline": ("answer:   The sea is",),
    "registry": ("version:  1 Approved", "answer:   The sea"),
    "batch_transform": ("4 answers to 4 prompts, joined: ['SageMakerOutput', 'inputs', 'parameters']",),
    "benchmark": ("time_to_first_token", "answers: 8"),
    "shadow_test": ("answered by: Now", "then by:     Next", "captured:    ['Next', 'Now']"),
    "inference_spec": ("answer: Hello, sea", "answer: Hello, river"),
}
BUILDER = Path(__file__).parent / "deploy_builder.py"
BUILDER_PIECES = (
    '{"sklearn": [3.0, 7.0]}',
    '{"xgboost": [3.0, 7.0]}',
    '{"pytorch": [7.0, 15.0]}',
    '{"huggingface": ["good", "bad"]}',
)
ALIASES = {"inference_spec": "Greeter", "multi_model": "MultiModel"}
"""What a script serves if it is not `smollm2`: its own class, or its own models."""


@pytest.fixture(scope="module")
def layered_python(sdk3_python: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with the SDK 3.x, and behind it the frameworks of this one, whose SDK is 2.x."""
    folder = tmp_path_factory.mktemp("layers")
    subprocess.run([sdk3_python, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    (sdk,) = Path(sdk3_python).parent.parent.glob("lib/python3.*/site-packages")
    (site / "layers.pth").write_text(f"{sdk}\n{sysconfig.get_path('purelib')}\n")
    return str(folder / "bin" / "python")


@pytest.mark.timeout(600)
def test_no_session_helper_of_the_sdk_3_reaches_aws(shell: dict[str, str], sdk3: Command) -> None:
    check_session_helpers(sdk3, shell, "sagemaker.core.helper.session_helper")


@pytest.mark.timeout(1200)
def test_resource_classes_and_the_model_builder_run_and_leave_nothing(
    platform: Running,
    shell: dict[str, str],
    sdk3: Command,
    layered_python: str,
    smollm2_path: Path,
    tmp_path: Path,
) -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert {script.stem for script in scripts} == set(PIECES)
    processes = {
        script.stem: started(
            *(sdk3, script, shell, smollm2_path, tmp_path / script.stem),
            alias=ALIASES.get(script.stem, "smollm2"),
        )
        for script in scripts
    }
    objects = started(
        cold_python(layered_python), BUILDER, shell, tmp_path / "objects", tmp_path / "builder", alias="ModelBuilder"
    )
    check_all({**processes, "builder": objects}, {**PIECES, "builder": BUILDER_PIECES}, platform)
    client = platform.client("sagemaker")
    for prefix in (
        "smollm2-resources",
        "smollm2-sdk3-component",
        "smollm2-sdk3-registry",
        "smollm2-builder",
        "smollm2-batch3",
        "smollm2-pipeline",
        "smollm2-benchmark",
        "smollm2-shadow",
        "greeter-spec",
        "builder-",
    ):
        until(lambda part=prefix: not client.list_endpoints(NameContains=part)["Endpoints"], "endpoints are deleted")
        assert not client.list_models(NameContains=prefix)["Models"]
        assert not client.list_endpoint_configs(NameContains=prefix)["EndpointConfigs"]
