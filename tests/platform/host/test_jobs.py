"""Jobs that measure and optimise models, on a platform with a real model and an object storage."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parity.checkpoints import write_checkpoint

from .running import IMAGE, Running, until, up

pytestmark = pytest.mark.model

ROLE = "arn:aws:iam::000000000000:role/any"
WORKLOAD = {
    "benchmark": {"type": "aiperf"},
    "parameters": {
        "concurrency": 2,
        "request_count": 4,
        "prompt_input_tokens_mean": 16,
        "prompt_input_tokens_stddev": 4,
        "output_tokens_mean": 8,
        "warmup_request_count": 0,
    },
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Running]:
    running = up(tmp_path_factory.mktemp("jobs") / "data")
    client = running.client("sagemaker")
    running.client("s3").create_bucket(Bucket="jobs")
    container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}}
    client.create_model(ModelName="m", PrimaryContainer=container, ExecutionRoleArn=ROLE)
    yield running
    running.stop()


def ended(describe: Callable[..., Any], status: str, **named: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(describe(**named))
        return str(found[status]).lower() in {"completed", "failed", "stopped"}

    until(has_ended, lambda: f"the end of {named}: {found}")
    assert found[status].lower() == "completed", found
    return found


def test_an_endpoint_is_benchmarked_as_aws_does(platform: Running) -> None:
    client = platform.client("sagemaker")
    variant = {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName="c", ProductionVariants=[variant])
    client.create_endpoint(EndpointName="chat", EndpointConfigName="c")
    platform.until_in_service("chat")
    client.create_ai_workload_config(
        AIWorkloadConfigName="load", AIWorkloadConfigs={"WorkloadSpec": {"Inline": json.dumps(WORKLOAD)}}
    )
    client.create_ai_benchmark_job(
        AIBenchmarkJobName="bench",
        BenchmarkTarget={"Endpoint": {"Identifier": "chat"}},
        OutputConfig={"S3OutputLocation": "s3://jobs/benchmarks/"},
        AIWorkloadConfigIdentifier="load",
        RoleArn=ROLE,
    )
    found = ended(client.describe_ai_benchmark_job, "AIBenchmarkJobStatus", AIBenchmarkJobName="bench")
    assert found["OutputConfig"]["S3OutputLocation"] == "s3://jobs/benchmarks/bench/"
    body = platform.client("s3").get_object(Bucket="jobs", Key="benchmarks/bench/output/output.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        file = archive.extractfile("profile_export_aiperf.json")
        assert file is not None
        profile = json.load(file)
    assert profile["request_count"]["avg"] == 4
    assert profile["output_sequence_length"]["avg"] == 8
    assert 9 <= profile["input_sequence_length"]["avg"] <= 23
    assert profile["time_to_first_token"]["p50"] <= profile["request_latency"]["p50"]
    (logs,) = found["OutputConfig"]["CloudWatchLogs"]
    lines = platform.client("logs").get_log_events(
        logGroupName=logs["LogGroupArn"].rpartition(":")[2], logStreamName=logs["LogStreamName"], startFromHead=True
    )["events"]
    assert lines[0]["message"].startswith("Running headrace bench")
    client.delete_ai_benchmark_job(AIBenchmarkJobName="bench")
    client.delete_ai_workload_config(AIWorkloadConfigName="load")
    client.delete_endpoint(EndpointName="chat")


def test_instance_types_and_variables_are_recommended(platform: Running) -> None:
    client = platform.client("sagemaker")
    client.create_inference_recommendations_job(
        JobName="recommend",
        JobType="Advanced",
        RoleArn=ROLE,
        InputConfig={
            "ModelName": "m",
            "TrafficPattern": {"Stairs": {"DurationInSeconds": 1, "NumberOfSteps": 1, "UsersPerStep": 2}},
            "EndpointConfigurations": [
                {
                    "InstanceType": "ml.m5.large",
                    "EnvironmentParameterRanges": {
                        "CategoricalParameterRanges": [{"Name": "MAX_BATCH_SIZE", "Value": ["4"]}]
                    },
                },
                {"InstanceType": "ml.g5.xlarge"},
            ],
        },
        StoppingConditions={"FlatInvocations": "Continue"},
    )
    found = ended(client.describe_inference_recommendations_job, "Status", JobName="recommend")
    rows = found["InferenceRecommendations"]
    assert len(rows) == 2
    by_basis = {row["EndpointConfiguration"]["VariantName"]: row for row in rows}
    assert by_basis.keys() == {"measured", "estimated"}
    assert by_basis["estimated"]["EndpointConfiguration"]["InstanceType"] == "ml.g5.xlarge"
    for row in rows:
        metrics = row["Metrics"]
        assert metrics["MaxInvocations"] > 0
        assert 0 < metrics["ModelLatency"] < 60e6
        assert metrics["CostPerInference"] == pytest.approx(
            metrics["CostPerHour"] / 60 / metrics["MaxInvocations"], rel=0.1
        )
        assert metrics["CpuUtilization"] > 0
    variables = [row["ModelConfiguration"].get("EnvironmentParameters", []) for row in rows]
    assert sorted(each[0]["Value"] for each in variables if each) == ["4"]
    steps = client.list_inference_recommendations_job_steps(JobName="recommend")["Steps"]
    assert [step["Status"] for step in steps] == ["COMPLETED"] * 2
    (row,) = client.list_inference_recommendations_jobs(ModelNameEquals="m")["InferenceRecommendationsJobs"]
    assert (row["JobName"], row["Status"]) == ("recommend", "COMPLETED")
    assert not client.list_endpoints(NameContains="recommend")["Endpoints"]


def test_an_optimised_model_is_served_from_packed_weights(platform: Running, tmp_path: Path) -> None:
    write_checkpoint("llama", tmp_path)
    s3, client = platform.client("s3"), platform.client("sagemaker")
    for path in tmp_path.iterdir():
        s3.upload_file(str(path), "jobs", f"base/{path.name}")
    client.create_optimization_job(
        OptimizationJobName="smaller",
        RoleArn=ROLE,
        ModelSource={"S3": {"S3Uri": "s3://jobs/base/"}},
        DeploymentInstanceType="ml.g5.2xlarge",
        OptimizationConfigs=[
            {"ModelQuantizationConfig": {"OverrideEnvironment": {"OPTION_QUANTIZE": "awq"}}},
            {"ModelCompilationConfig": {}},
        ],
        OutputConfig={"S3OutputLocation": "s3://jobs/awq/"},
        StoppingCondition={"MaxRuntimeInSeconds": 600},
    )
    found = ended(client.describe_optimization_job, "OptimizationJobStatus", OptimizationJobName="smaller")
    source = {"S3Uri": "s3://jobs/awq/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {
        "Image": found["OptimizationOutput"]["RecommendedInferenceImage"],
        "ModelDataSource": {"S3DataSource": source},
    }
    client.create_model(ModelName="smaller", PrimaryContainer=container, ExecutionRoleArn=ROLE)
    variant = {"VariantName": "v", "ModelName": "smaller", "InstanceType": "ml.g5.2xlarge", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName="smaller", ProductionVariants=[variant])
    client.create_endpoint(EndpointName="smaller", EndpointConfigName="smaller")
    platform.until_in_service("smaller")

    def said(group: str) -> str:
        events = platform.client("logs").filter_log_events(logGroupName=group)["events"]
        return "\n".join(event["message"] for event in events)

    assert "w4a16" in said("/aws/sagemaker/Endpoints/smaller")
    assert "Packing weights" not in said("/aws/sagemaker/Endpoints/smaller"), "the job has packed them"
    assert "Packing weights" in said("/aws/sagemaker/OptimizationJobs")
    client.delete_endpoint(EndpointName="smaller")
