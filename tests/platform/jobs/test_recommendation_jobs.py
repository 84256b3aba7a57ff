"""Inference recommendations jobs by boto3 on played workers; levels, limits and workloads as tables."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from headrace.platform.control.model.endpoint import JOB_ENDPOINT
from headrace.platform.control.model.recommendation import Level, Limits, Measured, levels_of, metrics_of
from headrace.platform.control.model.workload_spec import (
    WorkloadInvalid,
    bench_arguments,
    dataset_lines,
    read_workload,
)
from headrace.platform.jobs.inputs import MAX_SAMPLE_BYTES, read_samples
from headrace.platform.jobs.splitting import InputBroken
from headrace.testing.fake_launcher import fails_after, ready_after
from tests.platform.control.calls import refusal
from tests.platform.control.support import ROLE

from .conftest import Scene

STAIRS = {"TrafficType": "STAIRS", "Stairs": {"DurationInSeconds": 1, "NumberOfSteps": 1, "UsersPerStep": 2}}


def create(scene: Scene, job: str = "job", types: tuple[str, ...] = ("ml.m5.large",), **more: Any) -> None:
    configs = [{"InstanceType": name} for name in types]
    config = {"ModelName": "m", "TrafficPattern": STAIRS, "EndpointConfigurations": configs, **more.pop("config", {})}
    config = {name: value for name, value in config.items() if value is not None}
    scene.client.create_inference_recommendations_job(
        JobName=job, JobType="Advanced", RoleArn=ROLE, InputConfig=config, **more
    )


def ended(scene: Scene, job: str, state: str = "COMPLETED") -> dict[str, Any]:
    def described() -> dict[str, Any] | None:
        found: dict[str, Any] = scene.client.describe_inference_recommendations_job(JobName=job)
        return found if found["Status"] in {"COMPLETED", "FAILED", "STOPPED"} else None

    found: dict[str, Any] = scene.until(described, f"the end of {job}")
    assert found["Status"] == state, found
    return found


def test_a_killed_platform_repeats_one_test_and_a_failed_one_is_a_step(scene: Scene) -> None:
    scene.platform.machine.script = lambda spec: (
        fails_after(message="No such model.") if "m5.xlarge" in str(spec) or ".1-" in spec.name else ready_after()
    )
    config = sample_payload(scene, b"1,2")
    create(scene, types=("ml.m5.large", "ml.m5.xlarge", "ml.m5.4xlarge"), config=config)
    scene.until(lambda: len(steps(scene)) >= 1, "the first test is done")
    scene.kill()
    found = ended(scene, "job")
    assert [step["Status"] for step in steps(scene)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert "No such model." in steps(scene)[1]["InferenceBenchmark"]["FailureReason"]
    assert [step["Status"] for step in steps(scene, Status="FAILED")] == ["FAILED"]
    rows = {row["EndpointConfiguration"]["InstanceType"]: row for row in found["InferenceRecommendations"]}
    assert rows.keys() == {"ml.m5.large", "ml.m5.4xlarge"}
    assert {kind: row["EndpointConfiguration"]["VariantName"] for kind, row in rows.items()} == {
        "ml.m5.large": "measured",
        "ml.m5.4xlarge": "estimated",
    }
    assert set(scene.bodies) == {b"1,2"}
    scene.until(lambda: not scene.platform.store.list(JOB_ENDPOINT), "its workers are gone")
    policy = scene.client.get_scaling_configuration_recommendation(
        InferenceRecommendationsJobName="job", RecommendationId=rows["ml.m5.large"]["RecommendationId"]
    )
    assert policy["Metric"]["InvocationsPerInstance"] == rows["ml.m5.large"]["Metrics"]["MaxInvocations"] // 2
    assert policy["DynamicScalingConfiguration"]["MaxCapacity"] in (2, 3)


def sample_payload(scene: Scene, content: bytes) -> dict[str, Any]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("a.csv")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    scene.objects.objects["s3://b/payload.tar.gz"] = (packed.getvalue(), "")
    payload = {"SamplePayloadUrl": "s3://b/payload.tar.gz", "SupportedContentTypes": ["text/csv"]}
    return {"ContainerConfig": {"PayloadConfig": payload}}


def test_a_small_archive_of_large_samples_fails_the_job(scene: Scene) -> None:
    create(scene, config=sample_payload(scene, bytes(MAX_SAMPLE_BYTES + 1)))
    reason = ended(scene, "job", "FAILED")["FailureReason"]
    assert reason == "ClientError: The files of s3://b/payload.tar.gz have 67108865 bytes; expected at most 67108864."


def test_a_data_set_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    (tmp_path / "other").write_bytes(b"1")
    assert read_samples(tmp_path, "*.jsonl", "s3://b/data") == [b"{}"]
    with (tmp_path / "b.jsonl").open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(InputBroken, match="s3://b/data have 4294967298 bytes"):
        read_samples(tmp_path, "*.jsonl", "s3://b/data")


def steps(scene: Scene, **filters: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scene.client.list_inference_recommendations_job_steps(JobName="job", **filters)[
        "Steps"
    ]
    return found


def test_a_model_that_refuses_its_payload_fails_the_job_and_a_stop_removes_workers(scene: Scene) -> None:
    async def refuse(exchange: Any) -> None:
        exchange.whole(b"what?", status="400 Bad Request")

    scene.script = refuse
    create(scene, "refused")
    assert ended(scene, "refused", "FAILED")["FailureReason"] == (
        "ClientError: the model answered the sample payload with 400: what?"
    )

    async def hang(exchange: Any) -> None:
        await exchange.until_gone()

    scene.script = hang
    before = len(scene.bodies)
    create(scene, "stopped")
    scene.until(lambda: len(scene.bodies) > before, "the model is asked")
    scene.client.stop_inference_recommendations_job(JobName="stopped")
    ended(scene, "stopped", "STOPPED")
    scene.until(lambda: not list(scene.platform.machine.living()), "its workers are gone")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"config": {"ModelName": None}}, "both ModelName and ModelPackageVersionArn, or neither"),
        (
            {"config": {"ResourceLimit": {"MaxNumberOfTests": 1}}, "types": ("ml.m5.large", "ml.c5.large")},
            "make 2 tests",
        ),
        ({"config": {"Endpoints": [{"EndpointName": "e"}]}}, "Endpoints is not supported by Headrace"),
        ({"StoppingConditions": {"ModelLatencyThresholds": [{"Percentile": "P0"}]}}, "The Percentile is P0"),
    ],
)
def test_what_cannot_be_done_is_refused(shared_scene: Scene, more: dict[str, Any], why: str) -> None:
    assert why in refusal(create, scene=shared_scene, **more)


def test_levels_follow_the_traffic_pattern() -> None:
    def levels(traffic: dict[str, Any]) -> list[tuple[int, float]]:
        return [(level.users, level.duration_s) for level in levels_of({"InputConfig": {"TrafficPattern": traffic}})]

    assert levels(STAIRS | {"Stairs": {"DurationInSeconds": 9, "NumberOfSteps": 3, "UsersPerStep": 2}}) == [
        (2, 9),
        (4, 9),
        (6, 9),
    ]
    phase = {"InitialNumberOfUsers": 1, "SpawnRate": 2, "DurationInSeconds": 90}
    assert levels({"TrafficType": "PHASES", "Phases": [phase, phase]}) == [(1, 60), (3, 30), (4, 60), (6, 30)]
    assert [users for users, _ in levels({})] == [1, 2, 4, 8, 16, 32, 64]
    assert Level(users=1, duration_s=2)


def test_limits_choose_the_level_that_is_recommended() -> None:
    def level(users: int, *latencies_s: float) -> Measured:
        return Measured(users=users, duration_s=1.0, latencies_s=latencies_s)

    slow, fast = level(2, 0.1, 0.2, 0.9), level(1, 0.1, 0.1)
    limits = Limits.of({"StoppingConditions": {"ModelLatencyThresholds": [{"ValueInMilliseconds": 500}]}})
    assert (limits.best([fast, slow]), limits.has_seen_enough([fast, slow])) == (fast, True)
    assert not limits.has_seen_enough([fast])
    anything = Limits.of({"StoppingConditions": {"FlatInvocations": "Continue"}})
    assert (anything.best([fast, slow]), anything.has_seen_enough([slow, fast])) == (slow, False)
    assert Limits.of({}).has_seen_enough([slow, fast]), "more users bring no more"
    assert Limits.of({"StoppingConditions": {"MaxInvocations": 100}}).has_seen_enough([fast])
    metrics = metrics_of("ml.m5.large", fast, 2.0, {})
    assert metrics == {
        "MaxInvocations": 240,
        "ModelLatency": 50_000,
        "CostPerHour": 0.115,
        "CostPerInference": 0.115 / 60 / 240,
    }
    assert "CostPerHour" not in metrics_of("ml.trn2.48xlarge", fast, 1.0, {})


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ({}, ["--prompt-tokens", "256", "--output-tokens", "256"]),
        (
            {"concurrency": 4, "request_count": 9, "prompt_input_tokens_mean": 100, "prompt_input_tokens_stddev": 10},
            ["--concurrency", "4", "--requests", "9", "--prompt-tokens", "83-117", "--output-tokens", "256"],
        ),
        (
            {"concurrency": 4, "request_rate": 2.5, "endpoint_type": "chat", "tokenizer": "x", "output_tokens_mean": 8},
            ["--rate", "2.5", "--api", "openai-chat", "--prompt-tokens", "256", "--output-tokens", "8"],
        ),
        ({"concurrency": "1,8"}, "concurrency is '1,8'; expected a number"),
        ({"model": 5}, "model is 5; expected text"),
        ({"gpu": 1}, "parameters.gpu is not supported by Headrace; expected"),
        ({"endpoint_type": "embeddings"}, "endpoint_type is 'embeddings'; expected chat or completions"),
        ({"custom_dataset_type": "mooncake_trace"}, "custom_dataset_type is 'mooncake_trace'; expected single_turn"),
        ({"output_tokens_mean": 0}, "output_tokens_mean is 0; expected at least 1"),
    ],
)
def test_a_workload_is_what_the_load_tool_is_told(parameters: dict[str, Any], arguments: list[str] | str) -> None:
    inline = f"{{benchmark: {{type: aiperf}}, parameters: {parameters!r}}}"  # YAML
    if isinstance(arguments, str):
        with pytest.raises(WorkloadInvalid, match=arguments.replace(".", "[.]")):
            read_workload(inline)
    else:
        assert bench_arguments(read_workload(inline)) == arguments


def test_a_workload_must_be_one_of_aiperf_and_its_data_set_json_lines() -> None:
    for inline in ("", "[1]", "{", '{"benchmark": {"type": "other"}}'):
        with pytest.raises(WorkloadInvalid):
            read_workload(inline)
    assert dataset_lines('{"text": "a", "x": 1}\n\n{"messages": []}') == '{"prompt": "a", "x": 1}\n{"messages": []}'
    with pytest.raises(WorkloadInvalid, match="Line 2 of the data set is not JSON"):
        dataset_lines("{}\n{")
