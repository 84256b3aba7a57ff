"""AWS CLI v2 of Debian 12, whose commands need --endpoint-url: 2.9 does not read AWS_ENDPOINT_URL."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from common import MODEL, PLATFORM, expect, step

PROGRAM = os.environ["CLIENT_PROGRAM"]


def aws(*arguments: str) -> str:
    variables = {**os.environ, "AWS_PAGER": "", "AWS_DEFAULT_OUTPUT": "json"}
    command = [PROGRAM, "--endpoint-url", PLATFORM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-300:])
    return done.stdout


def sagemaker(*arguments: str) -> Any:
    """Run a command and return its output."""
    output = aws("sagemaker", *arguments)
    return json.loads(output) if output.strip() else {}


def model_of(endpoint: str) -> str:
    config = sagemaker("describe-endpoint", "--endpoint-name", endpoint)["EndpointConfigName"]
    variants = sagemaker("describe-endpoint-config", "--endpoint-config-name", config)["ProductionVariants"]
    return str(variants[0]["ModelName"])


with step("sagemaker describe-endpoint, list-endpoints, wait"):
    sagemaker("wait", "endpoint-in-service", "--endpoint-name", MODEL)
    listed = sagemaker("list-endpoints", "--name-contains", MODEL)["Endpoints"]
    expect(MODEL in [endpoint["EndpointName"] for endpoint in listed], "the endpoint")
with step("sagemaker create-model, list-models, create-endpoint-config, delete-*"):
    model = sagemaker("describe-model", "--model-name", model_of(MODEL))
    container = json.dumps({"Image": model["PrimaryContainer"]["Image"], "Environment": {"HF_MODEL_ID": MODEL}})
    options = ("--execution-role-arn", model["ExecutionRoleArn"], "--primary-container", container)
    sagemaker("create-model", "--model-name", "by-cli", *options)
    variant = "VariantName=one,ModelName=by-cli,InitialInstanceCount=1,InstanceType=ml.c5.xlarge"
    sagemaker("create-endpoint-config", "--endpoint-config-name", "by-cli", "--production-variants", variant)
    expect(sagemaker("list-models", "--name-contains", "by-cli")["Models"], "the model")
    sagemaker("delete-endpoint-config", "--endpoint-config-name", "by-cli")
    sagemaker("delete-model", "--model-name", "by-cli")
    expect(not sagemaker("list-models", "--name-contains", "by-cli")["Models"], "no model")
with step("sagemaker-runtime invoke-endpoint"), tempfile.TemporaryDirectory() as folder:
    target = Path(folder, "answer.json")
    body = json.dumps({"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}})
    options = ("--content-type", "application/json", "--cli-binary-format", "raw-in-base64-out", "--body", body)
    aws("sagemaker-runtime", "invoke-endpoint", "--endpoint-name", MODEL, *options, str(target))
    expect(json.loads(target.read_text(encoding="utf-8")), "text")
with step("s3 mb, cp, ls, rb"), tempfile.TemporaryDirectory() as folder:
    sent, received = Path(folder, "sent"), Path(folder, "received")
    sent.write_bytes(os.urandom(9 * 2**20))  # more than one part
    aws("s3", "mb", "s3://by-cli")
    aws("s3", "cp", str(sent), "s3://by-cli/folder/file")
    expect("file" in aws("s3", "ls", "s3://by-cli/folder/"), "the file")
    aws("s3", "cp", "s3://by-cli/folder/file", str(received))
    expect(received.read_bytes() == sent.read_bytes(), "the same bytes")
    aws("s3", "rb", "--force", "s3://by-cli")
with step("logs tail"):
    expect(aws("logs", "tail", f"/aws/sagemaker/Endpoints/{MODEL}", "--since", "1h"), "lines of the worker")
