"""A batch transform job on a platform with a real model, object storage and processes that are killed."""

import json
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

from .endpoints import is_alive, workers
from .running import IMAGE, until, up

pytestmark = pytest.mark.model

NUM_RECORDS, NUM_KILLS = 60, 2


def test_a_job_outlives_two_kills_of_the_platform(tmp_path: Path, smollm2_path: Path) -> None:
    folder = tmp_path / "data"
    running = up(folder)
    bodies = [{"inputs": f"{number} and", "parameters": {"max_new_tokens": 6}} for number in range(NUM_RECORDS)]
    lines = [json.dumps(body).encode() for body in bodies]
    s3, client = running.client("s3"), running.client("sagemaker")
    s3.create_bucket(Bucket="batch")
    s3.put_object(Bucket="batch", Key="in/many.jsonl", Body=b"\n".join(lines[:50]))
    s3.put_object(Bucket="batch", Key="in/sub/few.jsonl", Body=b"\n".join(lines[50:]))
    container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path), "MAX_BATCH_SIZE": "4"}}
    client.create_model(ModelName="m", PrimaryContainer=container, ExecutionRoleArn="arn:aws:iam::000000000000:role/r")
    client.create_transform_job(
        TransformJobName="job",
        ModelName="m",
        TransformInput={
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://batch/in/"}},
            "ContentType": "application/json",
            "SplitType": "Line",
        },
        TransformOutput={"S3OutputPath": "s3://batch/out", "AssembleWith": "Line"},
        TransformResources={"InstanceType": "ml.g5.2xlarge", "InstanceCount": 1},
        DataProcessing={"JoinSource": "Input"},
    )

    def num_answers() -> int:
        return sum(len(path.read_text().splitlines()) for path in folder.glob("transforms/*/*.index"))

    try:
        for number in range(NUM_KILLS):
            least = (number + 1) * NUM_RECORDS // 6
            until(lambda least=least: num_answers() >= least, "answers")
            before = workers(running)
            running.close()
            running.kill()
            running = up(folder)
            assert workers(running) == before
        client = running.client("sagemaker")
        until(lambda: "TransformEndTime" in client.describe_transform_job(TransformJobName="job"), "its end")
        found = client.describe_transform_job(TransformJobName="job")
        assert found["TransformJobStatus"] == "Completed", found
        listed = running.headrace("ls")
        assert [line.split()[:2] for line in listed.stdout.splitlines()[-1:]] == [["job", "Completed"]], listed
        answers = []
        for key in ("out/many.jsonl.out", "out/sub/few.jsonl.out"):
            with running.client("s3").get_object(Bucket="batch", Key=key)["Body"] as body:
                answers += [json.loads(line) for line in body.read().splitlines()]
        assert [{name: answer[name] for name in ("inputs", "parameters")} for answer in answers] == bodies
        assert all(answer["SageMakerOutput"][0]["generated_text"] for answer in answers)
        until(lambda: not any(map(is_alive, before.values())), "its worker is gone")
        logs = running.client("logs")
        streams = logs.describe_log_streams(logGroupName="/aws/sagemaker/TransformJobs", logStreamNamePrefix="job/")
        (stream,) = streams["logStreams"]
        read = logs.get_log_events(logGroupName="/aws/sagemaker/TransformJobs", logStreamName=stream["logStreamName"])
        assert read["events"]
    finally:
        running.close()
        running.process.terminate()
        running.process.wait(timeout=WAIT_S)
