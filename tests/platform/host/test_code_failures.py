"""Models whose code cannot be loaded: what their endpoints, their logs and `headrace` say, on one platform."""

import json
from pathlib import Path

import pytest

from tests.serving.handlers.wheels import make_wheel

from .running import Running, until

REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
DJL = f"{REGISTRY}/djl-inference:0.26.0-deepspeed0.12.6-cu121"
TORCHSERVE = f"{REGISTRY}/pytorch-inference:2.0.1-cpu-py310"
TRANSFORMERS = f"{REGISTRY}/huggingface-pytorch-inference:2.1.0-transformers4.37.0-cpu-py310"
SKLEARN = "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.2-1-cpu-py3"
MANIFEST = {"runtime": "python", "model": {"modelName": "m", "handler": "service.py", "modelVersion": "1.0"}}
HANDLER = """
import time
class Handler:
    def initialize(self, context):
        {}
    def handle(self, data, context):
        return data
"""
Files = dict[str, str | bytes]


def torchserve(line: str, **files: str) -> Files:
    return {"MAR-INF/MANIFEST.json": json.dumps(MANIFEST), "service.py": HANDLER.format(line), **files}


def models(folder: Path) -> dict[str, tuple[str, Files, str, str]]:
    """Image, files, the cause in `FailureReason`, and a line of the log, by the name of the endpoint."""
    wheel = make_wheel(folder, "greeting").read_bytes()
    handle = "def handle(inputs):\n    return None\n"
    model_fn = "def model_fn(folder):\n    {}\n"
    return {
        "no-package": (
            DJL,
            {"model.py": handle, "requirements.txt": "nothere-at-all==3\n"},
            "No matching distribution found for nothere-at-all==3",
            '"event": "environment.installing"',
        ),
        "other-python": (
            TRANSFORMERS,
            {
                "config.json": "{}",
                "code/inference.py": model_fn.format("return 1"),
                "code/requirements.txt": "greeting\n",
                "code/requirements/greeting-1.0-cp27-none-any.whl": wheel,
            },
            "greeting-1.0-cp27-none-any.whl is not a supported wheel on this platform.",
            "greeting-1.0-cp27-none-any.whl is not a supported wheel",
        ),
        "raises": (
            TORCHSERVE,
            torchserve("raise ValueError('tp_degree is 3')"),
            "Reason: Load model raises failed: ValueError: tp_degree is 3\n",
            "line 5, in initialize",
        ),
        "late": (
            TORCHSERVE,
            torchserve("time.sleep(600)", **{"model-config.yaml": "startupTimeout: 1\n"}),
            "Reason: The code was not loaded within 1 s. Raise startupTimeout in model-config.yaml if it needs longer.",
            "handler.failed",
        ),
        "no-syntax": (
            DJL,
            {"model.py": "def handle(inputs)\n    return None\n"},
            "Reason: model.py cannot be imported: SyntaxError: expected ':' (model.py, line 1)",
            "SyntaxError: expected ':'",
        ),
        "no-entry": (
            DJL,
            {"model.py": handle, "serving.properties": "option.entryPoint=absent.py\n"},
            "Reason: entry-point file not found ",
            "entry-point file not found",
        ),
        "no-module": (
            SKLEARN,
            {"code/inference.py": "import not_there\n" + model_fn.format("return 1")},
            "Reason: ModuleNotFoundError: No module named 'not_there'. not_there is neither a file of the model nor",
            "import not_there",
        ),
        "no-memory": (
            SKLEARN,
            {"code/inference.py": "import os\n" + model_fn.format("print('weights'); os.kill(os.getpid(), 9)")},
            "Reason: The process ended with signal 9 (SIGKILL, which the kernel sends when memory runs out)",
            '"line": "weights"',
        ),
    }


def deploy(platform: Running, name: str, image: str, files: Files) -> None:
    s3, client = platform.client("s3"), platform.client("sagemaker")
    for file, content in files.items():
        s3.put_object(Bucket="failing-code", Key=f"{name}/{file}", Body=content)
    source = {"S3Uri": f"s3://failing-code/{name}/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {
        "Image": image,
        "ModelDataSource": {"S3DataSource": source},
        "Environment": {"SERVING_OFFLINE": "true", "SAGEMAKER_PROGRAM": "inference.py" if image == SKLEARN else ""},
    }
    client.create_model(ModelName=name, PrimaryContainer=container)
    variant = {"VariantName": "v", "ModelName": name, "InstanceType": "ml.c5.large", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
    client.create_endpoint(EndpointName=name, EndpointConfigName=name)


@pytest.mark.timeout(600)
def test_endpoints_say_why_code_cannot_be_loaded_and_name_the_log_that_has_it_all(
    platform: Running, tmp_path: Path
) -> None:
    platform.client("s3").create_bucket(Bucket="failing-code")
    client, logs = platform.client("sagemaker"), platform.client("logs")
    cases = models(tmp_path)
    for name, (image, files, _, _) in cases.items():
        deploy(platform, name, image, files)
    for name, (_, _, cause, line) in cases.items():
        until(lambda name=name: client.describe_endpoint(EndpointName=name)["EndpointStatus"] == "Failed", name)
        reason = client.describe_endpoint(EndpointName=name)["FailureReason"]
        group = f"/aws/sagemaker/Endpoints/{name}"
        assert reason.startswith("The primary container for production variant v did not pass the ping health check.")
        assert cause in reason
        assert f"\nIts log ({group}, stream v/" in reason
        events = logs.filter_log_events(logGroupName=group)["events"]
        named = [event["message"] for event in events if f'"model": "{name}"' in event["message"]]
        assert any(line in message for message in named), named
    shown = platform.headrace("describe", "raises", "--url", platform.url)
    assert "ValueError: tp_degree is 3" in shown.stdout
    printed = platform.headrace("logs", "raises", "--url", platform.url)
    assert "line 5, in initialize" in printed.stdout
    for name in cases:
        client.delete_endpoint(EndpointName=name)
