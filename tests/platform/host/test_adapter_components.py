"""Adapter components on a real platform with the real small model: created, invoked, updated and deleted with boto3."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_reader import read_gguf_spec
from tests.inference.models.adapter_files import random_tensors, write_adapter
from tests.waiting import WAIT_S

from .endpoints import archive
from .running import IMAGE, Running, until

pytestmark = pytest.mark.model

ROLE = "arn:aws:iam::000000000000:role/any"
NEED = {"NumberOfCpuCoresRequired": 1, "MinMemoryRequiredInMb": 1024}
LORA = {
    "OPTION_ENABLE_LORA": "true",
    "OPTION_MAX_LORAS": "3",
    "OPTION_GENERATION_CONFIG": "vllm",  # greedy texts of OpenAI's API are compared with those of SageMaker's
    "MAX_TOTAL_TOKENS": "128",
}


def upload_adapters(platform: Running, model: Path, folder: Path) -> None:
    """Put the adapter of seed 1 as an archive and that of seed 2 as a folder into a bucket."""
    s3, (_, spec) = platform.client("s3"), read_gguf_spec(open_gguf(model))
    s3.create_bucket(Bucket="adapters")
    for seed in (1, 2):
        made = write_adapter(folder / str(seed), random_tensors(spec, seed=seed, scale=2.0))
        files = {file.name: file for file in made.iterdir()}
        if seed == 1:
            s3.upload_fileobj(io.BytesIO(archive(dict(files))), "adapters", "one.tar.gz")
        else:
            for name, file in files.items():
                s3.upload_file(str(file), "adapters", f"two/{name}")
    s3.upload_fileobj(io.BytesIO(archive({"readme.txt": b"x"})), "adapters", "empty.tar.gz")


def host(platform: Running, model: Path) -> None:
    """An endpoint with the base component `chat`, in service."""
    client = platform.client("sagemaker")
    variant = {"VariantName": "v", "InstanceType": "ml.m5.4xlarge", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName="lora", ExecutionRoleArn=ROLE, ProductionVariants=[variant])
    client.create_endpoint(EndpointName="lora", EndpointConfigName="lora")
    container = {"Image": IMAGE, "ModelDataUrl": str(model), "Environment": LORA}
    client.create_model(ModelName="lora", PrimaryContainer=container, ExecutionRoleArn=ROLE)
    specification = {"ModelName": "lora", "ComputeResourceRequirements": NEED}
    client.create_inference_component(
        InferenceComponentName="chat", EndpointName="lora", VariantName="v", Specification=specification
    )
    until(lambda: described(platform, "chat")["InferenceComponentStatus"] == "InService", "chat is in service")


def create(platform: Running, name: str, url: str) -> None:
    platform.client("sagemaker").create_inference_component(
        InferenceComponentName=name,
        EndpointName="lora",
        Specification={"BaseInferenceComponentName": "chat", "Container": {"ArtifactUrl": url}},
    )


def described(platform: Running, name: str) -> Any:
    return platform.client("sagemaker").describe_inference_component(InferenceComponentName=name)


def settled(platform: Running, name: str) -> str:
    """Return the status of a component once it is none that ends by itself."""
    until(
        lambda: described(platform, name)["InferenceComponentStatus"] not in ("Creating", "Updating"),
        f"{name} is settled",
    )
    return str(described(platform, name)["InferenceComponentStatus"])


def text_of(platform: Running, component: str) -> str:
    body = {"inputs": "The sea is", "parameters": {"max_new_tokens": 8}}
    answer = platform.client("sagemaker-runtime").invoke_endpoint(
        EndpointName="lora", InferenceComponentName=component, ContentType="application/json", Body=json.dumps(body)
    )
    decoded = json.loads(answer["Body"].read())
    return str((decoded[0] if isinstance(decoded, list) else decoded)["generated_text"])


@pytest.mark.timeout(600)
def test_adapters_are_created_invoked_updated_and_deleted_on_the_copies_of_their_base(
    platform: Running, smollm2_path: Path, tmp_path: Path
) -> None:
    import openai

    sagemaker = platform.client("sagemaker")
    upload_adapters(platform, smollm2_path, tmp_path)
    host(platform, smollm2_path)
    create(platform, "one", "s3://adapters/one.tar.gz")
    create(platform, "two", "s3://adapters/two/")
    create(platform, "empty", "s3://adapters/empty.tar.gz")
    assert settled(platform, "one") == settled(platform, "two") == "InService"
    assert settled(platform, "empty") == "Failed"
    assert "adapter_config.json" in described(platform, "empty")["FailureReason"]
    base, first, second = (text_of(platform, name) for name in ("chat", "one", "two"))
    assert len({base, first, second}) == 3
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key=platform.key.secret, timeout=WAIT_S) as client:
        by_model = client.completions.create(model="one", prompt="The sea is", max_tokens=8, temperature=0)
        assert by_model.choices[0].text == first.removeprefix("The sea is")
    path = f"{platform.url}/endpoints/lora/inference-components/two/openai/v1"
    with openai.OpenAI(base_url=path, api_key=platform.key.secret, timeout=WAIT_S) as client:
        by_path = client.completions.create(model="", prompt="The sea is", max_tokens=8, temperature=0)
        assert by_path.choices[0].text == second.removeprefix("The sea is")

    specification = {"BaseInferenceComponentName": "chat", "Container": {"ArtifactUrl": "s3://adapters/two/"}}
    sagemaker.update_inference_component(InferenceComponentName="one", Specification=specification)
    assert settled(platform, "one") == "InService"
    assert text_of(platform, "one") == second

    scale = sagemaker.update_inference_component_runtime_config
    scale(InferenceComponentName="chat", DesiredRuntimeConfig={"CopyCount": 0})
    until(lambda: described(platform, "chat")["InferenceComponentStatus"] == "InService", "chat is at zero")
    assert text_of(platform, "one") == second  # wakes the base, which loads its adapters again

    for name in ("one", "empty"):
        sagemaker.delete_inference_component(InferenceComponentName=name)
    listed = sagemaker.list_inference_components
    until(lambda: len(listed(EndpointNameEquals="lora")["InferenceComponents"]) == 2, "two adapters are deleted")
    assert text_of(platform, "chat") == base
    assert "on chat" in platform.headrace("ls").stdout
    assert "s3://adapters/two/" in platform.headrace("describe", "two").stdout
    removed = platform.headrace("rm", "chat", "lora", "two")
    assert removed.returncode == 0, removed.stderr
    sagemaker.delete_endpoint_config(EndpointConfigName="lora")
    sagemaker.delete_model(ModelName="lora")
