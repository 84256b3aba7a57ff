"""A model with several containers on a platform: code, a language model and code, while a container is killed."""

import io
import json
import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .endpoints import archive
from .running import IMAGE, Running, until

pytestmark = pytest.mark.model

CODE_IMAGE = "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.2-1-cpu-py3"
ROLE = "arn:aws:iam::000000000000:role/any"
TEMPLATE = b"""
import json
def model_fn(model_dir):
    return "{} is"
def transform_fn(model, data, content_type, accept):
    asked = json.loads(data)
    body = {"inputs": model.format(asked["about"]), "parameters": {"max_new_tokens": 6}, "stream": "stream" in asked}
    return json.dumps(body), "application/json"
"""
PARSE = b"""
import json
def model_fn(model_dir):
    return None
def transform_fn(model, data, content_type, accept):
    return json.dumps({"answer": json.loads(data)[0]["generated_text"], "type": content_type}), accept
"""
TOPICS = ("The sea", "A horse", "Music", "The night")


def upload(running: Running, name: str, code: bytes) -> dict[str, Any]:
    files = io.BytesIO(archive({"code/inference.py": code}))
    running.client("s3").upload_fileobj(files, "containers", f"{name}.tar.gz")
    return {"Image": CODE_IMAGE, "ContainerHostname": name, "ModelDataUrl": f"s3://containers/{name}.tar.gz"}


def ask(client: Any, body: dict[str, Any], *, endpoint: str = "several", **more: Any) -> Any:
    call = {"EndpointName": endpoint, "Body": json.dumps(body), "ContentType": "application/json", **more}
    with client.invoke_endpoint(**call)["Body"] as stream:
        return json.loads(stream.read())


def streamed(client: Any, body: dict[str, Any], **more: Any) -> list[bytes]:
    call = {"EndpointName": "several", "Body": json.dumps(body), "ContentType": "application/json", **more}
    events = client.invoke_endpoint_with_response_stream(**call)["Body"]
    return [event["PayloadPart"]["Bytes"] for event in events]


@pytest.mark.timeout(600)
def test_a_pipeline_answers_while_a_container_is_killed_and_becomes_one_of_direct_invocation(
    platform: Running, smollm2_path: Path
) -> None:
    platform.client("s3").create_bucket(Bucket="containers")
    template, parse = upload(platform, "template", TEMPLATE), upload(platform, "parse", PARSE)
    chat = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}, "ContainerHostname": "chat"}
    client = platform.client("sagemaker")
    direct = {"InferenceExecutionConfig": {"Mode": "Direct"}}
    client.create_model(ModelName="pipe", ExecutionRoleArn=ROLE, Containers=[template, chat, parse])
    client.create_model(ModelName="direct", ExecutionRoleArn=ROLE, Containers=[template, chat], **direct)
    capture = {
        "InitialSamplingPercentage": 100,
        "DestinationS3Uri": "s3://containers/captured",
        "CaptureOptions": [{"CaptureMode": "InputAndOutput"}],
        "CaptureContentTypeHeader": {"JsonContentTypes": ["application/json"]},
    }
    for name in ("pipe", "direct"):
        variant = {"VariantName": "v", "ModelName": name, "InitialInstanceCount": 1, "InstanceType": "ml.m5.large"}
        client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], DataCaptureConfig=capture)
    client.create_endpoint(EndpointName="several", EndpointConfigName="pipe")
    platform.until_in_service("several")
    pipeline_answers(platform)
    chaos(platform)
    client.update_endpoint(EndpointName="several", EndpointConfigName="direct")
    platform.until_in_service("several")
    direct_answers(platform)
    written(platform)
    client.delete_endpoint(EndpointName="several")
    until(lambda: not list(platform.folder.glob("workers/several-*")), "no worker of it")
    group = "/aws/sagemaker/Endpoints/several"
    streams = platform.client("logs").describe_log_streams(logGroupName=group)["logStreams"]
    assert {stream["logStreamName"].partition("/")[2].partition("/")[2] for stream in streams} == {
        *("", "template", "chat", "parse")
    }


def pipeline_answers(running: Running) -> None:
    runtime = running.client("sagemaker-runtime")
    answer = ask(runtime, {"about": "The sea"}, Accept="application/x-mine")
    assert (answer["answer"].startswith("The sea is"), answer["type"]) == (True, "application/json")
    for body, container in (({"wrong": 1}, "template"), ({"about": "x" * 100_000}, "chat")):
        with pytest.raises(ClientError) as caught:
            ask(runtime, body)
        assert caught.value.response["Error"]["Code"] == "ModelError"
        assert f"from {container} with message" in caught.value.response["Error"]["Message"]
    with pytest.raises(ClientError, match="is not a multi-container endpoint"):
        ask(runtime, {}, TargetContainerHostname="chat")


def chaos(running: Running) -> None:
    """Kill the language model of the replica under load: every request waits for its right answer."""
    client = running.client("sagemaker-runtime")
    expected = {topic: ask(client, {"about": topic}) for topic in TOPICS}
    wrong: list[Any] = []
    is_over = threading.Event()

    def load(number: int) -> None:
        count = 0
        while not is_over.is_set() or count < 5:
            topic = TOPICS[(number + count) % len(TOPICS)]
            count += 1
            try:
                answer = ask(client, {"about": topic})
            except ClientError as error:
                answer = error
            if answer != expected[topic]:
                wrong.append((topic, answer))
            is_over.wait(0.05)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    (killed,) = running.folder.glob("workers/several-*/containers/chat/handle.json")
    os.kill(json.loads(killed.read_text())["facts"]["process"]["pid"], signal.SIGKILL)
    others = partial(running.folder.glob, "workers/several-*/containers/chat/ready")
    until(lambda: set(others()) - {killed.with_name("ready")}, "another replica")
    is_over.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def direct_answers(running: Running) -> None:
    runtime = running.client("sagemaker-runtime")
    made = ask(runtime, {"about": "The sea"}, TargetContainerHostname="template")
    assert made["inputs"] == "The sea is"
    (answer,) = ask(runtime, made, TargetContainerHostname="chat")
    parts = streamed(runtime, {**made, "stream": True}, TargetContainerHostname="chat")
    assert len(parts) == 6
    assert json.loads(parts[-1].removeprefix(b"data:"))["generated_text"] == answer["generated_text"]
    with pytest.raises(ClientError, match="requires the target container hostname header"):
        ask(runtime, made)


def written(running: Running) -> None:
    """Check what was measured, logged and captured."""
    now = datetime.now(UTC)

    def latency(container: str) -> float:
        names = {"EndpointName": "several", "VariantName": "v", "ContainerName": container}
        found = running.client("cloudwatch").get_metric_statistics(
            Namespace="AWS/SageMaker",
            MetricName="ContainerLatency",
            Dimensions=[{"Name": name, "Value": value} for name, value in names.items()],
            StartTime=now - timedelta(hours=1),
            EndTime=now + timedelta(hours=1),
            Period=3600,
            Statistics=["Average"],
        )["Datapoints"]
        return max(point["Average"] for point in found)

    assert latency("chat") > latency("parse") > 0
    s3 = running.client("s3")
    until(lambda: s3.list_objects_v2(Bucket="containers", Prefix="captured/").get("Contents"), "a captured file")
    key = s3.list_objects_v2(Bucket="containers", Prefix="captured/")["Contents"][0]["Key"]
    with s3.get_object(Bucket="containers", Key=key)["Body"] as body:
        line = json.loads(body.read().splitlines()[0])["captureData"]
    assert json.loads(line["endpointInput"]["data"]) == {"about": "The sea"}
    assert '"answer": "The sea is' in line["endpointOutput"]["data"] or line["endpointOutput"]["encoding"] == "BASE64"
