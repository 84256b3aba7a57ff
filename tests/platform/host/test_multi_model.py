"""A multi-model endpoint on a platform with object storage: models of user code and of language, with little memory."""

import io
import json
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests import plain_http
from tests.waiting import WAIT_S

from .running import IMAGE, Running, until
from .sdk_scripts import EXAMPLES, Command

CODE_IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-py312"
CODE = """
import json
from pathlib import Path

def model_fn(folder):
    return json.loads(Path(folder, "weights.json").read_text()), bytearray(b"x" * (60 << 20))

def input_fn(body, content_type):
    return json.loads(body)

def predict_fn(number, model):
    return number * model[0]["factor"]

def output_fn(answer, accept):
    return json.dumps(answer)
"""
NUM_MODELS, NUM_CLIENTS, NUM_REQUESTS = 3, 3, 6
MEMORY_BYTES = 420 << 20
"""Room for two of the models, which take about 160 MiB each."""


def archive(factor: int, code: str = CODE) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in (("weights.json", json.dumps({"factor": factor})), ("code/inference.py", code)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    return packed.getvalue()


def deploy(platform: Running, name: str, container: dict[str, Any]) -> None:
    client = platform.client("sagemaker")
    client.create_model(ModelName=name, ExecutionRoleArn="arn:aws:iam::000000000000:role/r", PrimaryContainer=container)
    variant = {"VariantName": "v", "ModelName": name, "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
    client.create_endpoint(EndpointName=name, EndpointConfigName=name)
    platform.until_in_service(name)


def remove(platform: Running, name: str) -> None:
    client = platform.client("sagemaker")
    client.delete_endpoint(EndpointName=name)
    client.delete_endpoint_config(EndpointConfigName=name)
    client.delete_model(ModelName=name)
    until(lambda: not client.list_endpoints(NameContains=name)["Endpoints"], "the endpoint was deleted")


def refusal(call: Any, **params: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**params)
    return str(caught.value)


def test_more_models_than_memory_answer_all_requests(platform: Running) -> None:
    s3, runtime = platform.client("s3"), platform.client("sagemaker-runtime", max_pool_connections=NUM_CLIENTS)
    s3.create_bucket(Bucket="many")
    for number in range(NUM_MODELS):
        s3.put_object(Bucket="many", Key=f"models/m{number}.tar.gz", Body=archive(number))
    container = {
        "Image": CODE_IMAGE,
        "Mode": "MultiModel",
        "ModelDataUrl": "s3://many/models/",
        "Environment": {"HEADRACE_MAX_MEMORY_BYTES": str(MEMORY_BYTES)},
    }
    deploy(platform, "many", container)

    def ask(number: int, factor: int | None = None) -> None:
        answer = runtime.invoke_endpoint(EndpointName="many", Body=b"7", TargetModel=f"m{number}.tar.gz")
        assert json.loads(answer["Body"].read()) == 7 * (number if factor is None else factor)

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        list(clients.map(ask, [number % NUM_MODELS for number in range(NUM_REQUESTS)]))

    # A model that changes in the object storage is read again when it has been unloaded.
    ask(0)
    s3.put_object(Bucket="many", Key="models/m0.tar.gz", Body=archive(100))
    ask(0)
    for number in (1, 2):
        ask(number)
    ask(0, 100)

    s3.put_object(Bucket="many", Key="models/broken.tar.gz", Body=archive(0, "raise ValueError('no weights')"))
    found = refusal(runtime.invoke_endpoint, EndpointName="many", Body=b"7", TargetModel="broken.tar.gz")
    assert "(ModelError)" in found
    assert "Received server error (500) from primary" in found
    found = refusal(runtime.invoke_endpoint, EndpointName="many", Body=b"7", TargetModel="none.tar.gz")
    assert "Failed to download model data(bucket: many, key: models/none.tar.gz)" in found
    assert "missing a target model header" in refusal(runtime.invoke_endpoint, EndpointName="many", Body=b"7")

    cloudwatch = platform.client("cloudwatch")

    def metrics() -> set[str]:
        listed = cloudwatch.list_metrics(Dimensions=[{"Name": "EndpointName", "Value": "many"}])["Metrics"]
        return {metric["MetricName"] for metric in listed}

    until(
        lambda: (
            metrics()
            >= {
                *("ModelCacheHit", "ModelLoadingWaitTime", "ModelDownloadingTime", "ModelLoadingTime"),
                *("ModelUnloadingTime", "LoadedModelCount"),
            }
        ),
        lambda: f"metrics: {metrics()}",
    )
    logs = platform.client("logs")
    events = logs.filter_log_events(logGroupName="/aws/sagemaker/Endpoints/many")["events"]
    assert any("ValueError: no weights" in event["message"] for event in events), "the log of a model is kept"
    remove(platform, "many")


def test_the_sdk_adds_and_invokes_models(platform: Running, shell: dict[str, str], sdk2: Command) -> None:
    command = [*sdk2, EXAMPLES / "multi_model.py"]
    done = subprocess.run(command, env=shell, capture_output=True, text=True, timeout=3 * WAIT_S, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-3000:]}{platform.log()[-3000:]}"
    for piece in ("models:  double.tar.gz triple.tar.gz", "double:  [2, 4, 6]", "tenfold: [10, 20, 30]"):
        assert piece in done.stdout


@pytest.mark.model
def test_a_language_model_streams_from_a_folder_of_files(platform: Running, smollm2_path: Path) -> None:
    s3, runtime = platform.client("s3"), platform.client("sagemaker-runtime")
    s3.create_bucket(Bucket="words")
    s3.upload_file(str(smollm2_path), "words", "models/smollm2/words.gguf")
    container = {"Image": IMAGE, "Mode": "MultiModel", "ModelDataUrl": "s3://words/models"}
    deploy(platform, "words", {**container, "MultiModelConfig": {"ModelCacheSetting": "Disabled"}})
    body = json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 5}, "stream": True}).encode()
    runtime.meta.events.register(
        "before-sign.sagemaker-runtime.InvokeEndpointWithResponseStream",
        lambda request, **_: request.headers.add_header("X-Amzn-SageMaker-Target-Model", "smollm2/"),
    )
    answer = runtime.invoke_endpoint_with_response_stream(
        EndpointName="words", Body=body, ContentType="application/json"
    )
    assert b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"]).count(b"data:") >= 5
    chat = {"model": "words/smollm2/", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    answered = plain_http.post(
        f"{platform.url}/v1/chat/completions", json=chat, headers=platform.bearer, timeout=WAIT_S
    )
    assert answered.json()["choices"][0]["message"]["content"], answered.text
    remove(platform, "words")
