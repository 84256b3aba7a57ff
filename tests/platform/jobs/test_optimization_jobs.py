"""Optimization jobs by boto3: real models of random weights, quantized and packed by real child processes."""

import json
import shutil
from functools import partial
from types import SimpleNamespace as Usage
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.core.processes import processes_with_argument
from headrace.serving.artifacts.fetch_bounds import RESERVE_BYTES
from tests.parity.checkpoints import write_checkpoint
from tests.platform.control.calls import refusal
from tests.platform.control.support import ROLE

from .conftest import Scene

QUANTIZED = {"ModelQuantizationConfig": {"OverrideEnvironment": {"OPTION_QUANTIZE": "awq"}}}


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("llama")
    write_checkpoint("llama", folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def upload(scene: Scene, files: dict[str, bytes]) -> None:
    scene.objects.objects |= {f"s3://models/base/{name}": (content, "") for name, content in files.items()}


def create(scene: Scene, job: str = "job", *configs: dict[str, Any], **more: Any) -> dict[str, Any]:
    created: dict[str, Any] = scene.client.create_optimization_job(
        OptimizationJobName=job,
        **{
            "RoleArn": ROLE,
            "ModelSource": {"S3": {"S3Uri": "s3://models/base"}},
            "DeploymentInstanceType": "ml.g5.2xlarge",
            "OptimizationConfigs": list(configs or (QUANTIZED,)),
            "OutputConfig": {"S3OutputLocation": f"s3://models/out/{job}/"},
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
            **more,
        },
    )
    return created


def ended(scene: Scene, job: str, state: str = "COMPLETED") -> dict[str, Any]:
    def described() -> dict[str, Any] | None:
        found: dict[str, Any] = scene.client.describe_optimization_job(OptimizationJobName=job)
        return found if found["OptimizationJobStatus"] in {"COMPLETED", "FAILED", "STOPPED"} else None

    found: dict[str, Any] = scene.until(described, f"the end of {job}")
    assert found["OptimizationJobStatus"] == state, found
    return found


def stored(scene: Scene, job: str) -> dict[str, bytes]:
    start = f"s3://models/out/{job}/"
    return {uri.removeprefix(start): body for uri, (body, _) in scene.objects.objects.items() if uri.startswith(start)}


def test_a_model_is_quantized_packed_and_stored_and_a_killed_platform_goes_on(
    scene: Scene, model_files: dict[str, bytes]
) -> None:
    upload(scene, model_files)
    created = create(scene, "My-Job", QUANTIZED, {"ModelCompilationConfig": {"Image": "i/djl-inference:1"}})
    assert created["OptimizationJobArn"] == "arn:aws:sagemaker:us-east-1:123456789012:optimization-job/my-job"
    scene.until(lambda: children(scene), "a child quantizes")
    scene.kill()
    found = ended(scene, "My-Job")
    assert found["OptimizationOutput"] == {"RecommendedInferenceImage": "i/djl-inference:1"}
    assert found["CreationTime"] <= found["OptimizationStartTime"] <= found["OptimizationEndTime"]
    assert found["OptimizationConfigs"][0] == QUANTIZED
    assert found["OutputConfig"] == {"S3OutputLocation": "s3://models/out/My-Job/"}
    files = stored(scene, "My-Job")
    (started,) = scene.platform.machine.started
    assert started.startswith("transform-job.optimization-job.My-Job.0-AllTraffic-i-")
    assert json.loads(files["config.json"])["quantization_config"]["quant_method"] == "compressed-tensors"
    assert {"model.safetensors", "tokenizer.json", "README.md"} <= files.keys()
    scene.until(lambda: not list((scene.folder / "transforms").iterdir()), "its folder is gone")
    (row,) = scene.client.list_optimization_jobs(OptimizationContains="quant")["OptimizationJobSummaries"]
    assert (row["OptimizationTypes"], row["OptimizationJobStatus"]) == (["Quantization", "Compilation"], "COMPLETED")
    assert not scene.client.list_optimization_jobs(OptimizationContains="shard")["OptimizationJobSummaries"]
    scene.client.delete_optimization_job(OptimizationJobName="My-Job")
    with pytest.raises(scene.client.exceptions.ResourceNotFound):
        scene.client.describe_optimization_job(OptimizationJobName="my-job")


def children(scene: Scene) -> list[Any]:
    return [
        process
        for folder in (scene.folder / "transforms").glob("*")
        for process in processes_with_argument(str(folder / "model"))
    ]


def test_a_model_is_not_fetched_to_a_full_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.objects.objects["s3://models/base/config.json"] = (b"{}", "")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(free=RESERVE_BYTES + 1))
    create(scene)
    reason = ended(scene, "job", "FAILED")["FailureReason"]
    assert reason.startswith("InternalServerError: s3://models/base/config.json cannot be stored: The disk of ")


def test_a_stop_kills_the_child_and_a_failure_quotes_it(scene: Scene, model_files: dict[str, bytes]) -> None:
    upload(scene, model_files)
    create(scene)
    scene.until(lambda: children(scene), "a child quantizes")
    assert "Stop it" in refusal(scene.client.delete_optimization_job, OptimizationJobName="job")
    scene.client.stop_optimization_job(OptimizationJobName="job")
    ended(scene, "job", "STOPPED")
    assert not children(scene)
    assert stored(scene, "job") == {}
    del scene.objects.objects["s3://models/base/config.json"]
    create(scene, "broken")
    assert "config.json" in ended(scene, "broken", "FAILED")["FailureReason"]
    create(scene, "nothing", ModelSource={"S3": {"S3Uri": "s3://models/none/"}})
    reason = ended(scene, "nothing", "FAILED")["FailureReason"]
    assert reason == "ClientError: No objects found under s3://models/none/."


@pytest.mark.parametrize(
    ("configs", "more", "why"),
    [
        ([{"ModelShardingConfig": {"Image": "i"}}], {}, "ModelShardingConfig is not supported by Headrace"),
        ([{"ModelShardingConfig": {}}], {}, "OptimizationConfigs is empty"),
        ([{"ModelSpeculativeDecodingConfig": {"Technique": "EAGLE"}}], {}, "OPTION_SPECULATIVE_DRAFT_MODEL"),
        ([{"ModelQuantizationConfig": {}}], {}, "OPTION_QUANTIZE in OverrideEnvironment is missing; expected one of"),
        ([QUANTIZED, QUANTIZED], {}, "OptimizationConfigs has ModelQuantizationConfig twice"),
        ([QUANTIZED], {"ModelSource": {"S3": {"S3Uri": "s3://b/model.tar.gz"}}}, "the unpacked files of a model"),
        ([QUANTIZED], {"ModelSource": {}}, "both S3 and SageMakerModel, or neither"),
        ([QUANTIZED], {"ModelSource": {"SageMakerModel": {"ModelName": "none"}}}, 'Could not find model "arn:'),
    ],
)
def test_what_cannot_be_done_is_refused(
    shared_scene: Scene, configs: list[dict[str, Any]], more: dict[str, Any], why: str
) -> None:
    assert why in refusal(partial(create, shared_scene, "job", *configs), **more)


def test_a_name_is_taken_once(shared_scene: Scene) -> None:
    create(shared_scene, "twice", ModelSource={"S3": {"S3Uri": "s3://models/none/"}})
    with pytest.raises(ClientError, match="a job with this name already exists"):
        create(shared_scene, "Twice")
    ended(shared_scene, "twice", "FAILED")
