"""JumpStart's ids with both SageMaker SDKs, on a platform whose catalogue has the small real model."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.parity.checkpoints import write_checkpoint

from .running import IMAGE, Running, until
from .sdk_scripts import PATIENCE_S, Command

pytestmark = pytest.mark.model

SDK2, SDK3 = (Path(__file__).parent / "jumpstart_sdk2.py", Path(__file__).parent / "jumpstart_sdk3.py")
FILES = "a-llm/a-llm-small/artifacts/inference-prepack"


@pytest.fixture(scope="module")
def rows(platform: Running, smollm2_path: Path, minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Four ids, added while the platform runs."""
    tiny = tmp_path_factory.mktemp("tiny")
    write_checkpoint("llama", tiny)
    models = {
        ("a-llm-tiny",): tiny,
        ("a-llm-small", "--server", "tgi", "--version", "2.3.4"): smollm2_path,
        ("a-llm-gated", "--gated"): smollm2_path,
        ("a-embedding-small", "--server", "embedding"): minilm_path,
    }
    for arguments, path in models.items():
        done = platform.headrace("jumpstart", "add", *arguments, "--model", str(path))
        assert done.returncode == 0, done.stderr
    listed = platform.headrace("jumpstart", "ls", "a-llm-", "--json")
    assert [(row["id"], row["gated"]) for row in json.loads(listed.stdout)] == [
        ("a-llm-gated", True),
        ("a-llm-small", False),
        ("a-llm-tiny", False),
    ]


def shown(python: Command, script: Path, shell: Mapping[str, str], platform: Running) -> dict[str, Any]:
    """Run a script; return the JSON that it prints."""
    done = subprocess.run(
        [*python, script], env=dict(shell), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-3000:]}{platform.log()[-3000:]}"
    found: dict[str, Any] = {}
    for line in re.findall(r'^\{".*', done.stdout, re.MULTILINE):
        found |= json.loads(line)
    return found


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("rows")
def test_the_sdk_2_lists_describes_and_deploys_models_by_their_ids(
    platform: Running, shell: dict[str, str], sdk2: Command
) -> None:
    found = shown(sdk2, SDK2, shell, platform)
    assert {"a-llm-gated", "a-llm-small", "deepseek-llm-r1"} <= set(found["listed"])
    defaults = found["defaults"]
    assert defaults["instance_type"] == "ml.g5.2xlarge"
    assert "tgi-inference" in defaults["image"]
    assert defaults["model"] == f"s3://jumpstart-cache-prod-us-east-1/{FILES}/v2.3.4/"
    assert defaults["environment"]["HF_MODEL_ID"] == "/opt/ml/model"
    assert (defaults["types"], defaults["serializer"]) == (["application/json"] * 2, "JSONSerializer")
    assert "Invalid model ID: 'a-llm-smal'" in found["unknown"]
    assert "does not support training" in found["training"]
    assert re.match(r"ClientError: .*ValidationException.*The AcceptEula value must be explicitly", found["gated"])
    assert re.match(r"MarketplaceModelSubscriptionError: .*must first subscribe", found["sold"])
    assert found["predicted"][0]["generated_text"]
    assert [len(vector) for vector in found["embedded"]["embedding"]] == [384, 384]
    assert found["accepted"]["generated_text"]
    serializer, answer = found["attached"]
    assert (serializer, bool(answer[0]["generated_text"])) == ("JSONSerializer", True)
    files, environment, answer = found["optimised"]
    assert files == "s3://sagemaker-us-east-1-000000000000/awq/"
    assert environment == {"HF_MODEL_ID": "/opt/ml/model", "OPTION_QUANTIZE": "awq"}
    assert answer["generated_text"]
    ((instance_type, per_minute),) = found["sized"]
    assert (instance_type, per_minute > 0) == ("ml.m5.large", True)
    client = platform.client("sagemaker")
    until(lambda: not client.list_endpoints(NameContains="jumpstart2")["Endpoints"], "endpoints are deleted")


def test_a_model_that_cannot_be_fetched_names_the_command_that_replaces_it(platform: Running) -> None:
    client, name = platform.client("sagemaker"), "jumpstart-missing"
    done = platform.headrace("jumpstart", "add", "b-llm-missing", "--model", "missing/model")
    assert done.returncode == 0, done.stderr
    uri = "s3://jumpstart-cache-prod-us-east-1/b-llm/b-llm-missing/artifacts/inference-prepack/v1.0.0/"
    source = {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {"Image": IMAGE, "ModelDataSource": {"S3DataSource": source}}
    client.create_model(
        ModelName=name, ExecutionRoleArn="arn:aws:iam::000000000000:role/any", PrimaryContainer=container
    )
    variant = {"VariantName": "v", "ModelName": name, "InstanceType": "ml.m5.xlarge", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
    client.create_endpoint(EndpointName=name, EndpointConfigName=name)
    until(lambda: client.describe_endpoint(EndpointName=name)["EndpointStatus"] == "Failed", "the endpoint failed")
    reason = client.describe_endpoint(EndpointName=name)["FailureReason"]
    assert "JumpStart's b-llm-missing is missing/model here. `headrace jumpstart add b-llm-missing" in reason
    client.delete_endpoint(EndpointName=name)
    client.delete_endpoint_config(EndpointConfigName=name)
    client.delete_model(ModelName=name)


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("rows")
def test_the_sdk_3_searches_describes_and_deploys_a_model_by_its_id(
    platform: Running, shell: dict[str, str], sdk3: Command
) -> None:
    found = shown(sdk3, SDK3, shell, platform)
    image, files = found["defaults"]
    assert ("tgi-inference" in image, files) == (True, f"s3://jumpstart-cache-prod-us-east-1/{FILES}/v2.3.4/")
    assert sorted(found["found"]) == ["a-embedding-small", "a-llm-gated", "a-llm-small", "a-llm-tiny"]
    assert found["optimised"]
    count, first_ms = found["measured"]
    assert (count, first_ms > 0) == (3, True)
    assert found["document"] == ["2.3.4", True, files]
    assert found["predicted"][0]["generated_text"]
    client = platform.client("sagemaker")
    until(lambda: not client.list_endpoints(NameContains="jumpstart3")["Endpoints"], "endpoints are deleted")
