"""Models with code of their own, deployed and invoked by the SageMaker SDK 2.x on one platform."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.serving.handlers.wheels import make_wheel
from tests.waiting import WAIT_S

from .running import Running, until
from .sdk_scripts import Command

SCRIPT = Path(__file__).parent / "deploy_code.py"
PACKAGES = "with the packages of requirements.txt in an environment."
DESCRIPTIONS = {
    "SKLearnModel": ("by the contract sagemaker (inference.py)", "It runs in Headrace's Python."),
    "XGBoostModel": ("by the contract sagemaker (inference.py)", "It runs in Headrace's Python."),
    "PyTorchModel": ("by the contract sagemaker (inference.py)", "It runs in Headrace's Python."),
    "HuggingFaceModel": ("by the contract sagemaker (inference.py)", PACKAGES),
    "DJLModel": ("by the contract djl: model.py defines handle.", PACKAGES),
}
"""Contract, file and Python, as `headrace describe` shows them."""


@pytest.mark.timeout(900)
def test_sdk_models_with_code_are_deployed_and_invoked_in_their_formats(
    platform: Running, shell: dict[str, str], sdk2: Command, tmp_path: Path
) -> None:
    make_wheel(tmp_path, "greeting", source="text = 'hello'")
    done = subprocess.run(
        [*sdk2, SCRIPT, tmp_path], env=shell, capture_output=True, text=True, timeout=3 * WAIT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-3000:]}{platform.log()[-3000:]}"
    answers: dict[str, object] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            answers |= json.loads(line)
    sklearn, xgboost, torch = answers["sklearn"], answers["xgboost_"], answers["pytorch"]
    assert sklearn["npy"] == pytest.approx([3, 7], abs=1e-4)
    assert [float(row[0]) for row in sklearn["csv"]] == pytest.approx([3, 7], abs=1e-4)
    assert sklearn["json"] == pytest.approx([3, 7], abs=1e-4)
    assert [float(value) for row in xgboost["csv"] for value in row] == pytest.approx([3, 7], abs=0.1)
    assert torch["npy"] == torch["json"] == [[7.0], [15.0]]
    assert answers["huggingface"] == {"length": 17, "greeting": "hello"}
    assert answers["djl"] == {"text": "hello", "given": {"inputs": "abc"}}
    described = answers["described"]
    assert isinstance(described, dict)
    for kind, words in DESCRIPTIONS.items():
        for word in words:
            assert word in described[kind]
    client = platform.client("sagemaker")
    until(lambda: not client.list_endpoints(NameContains="code-")["Endpoints"], "endpoints were deleted")
