"""Endpoints as a user makes, invokes and deletes them on a running platform, and their workers' processes."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from tests.waiting import WAIT_S

from .running import Running

WAIT = {"Delay": 1, "MaxAttempts": round(WAIT_S)}
PROMPT = {"inputs": "The sea is", "parameters": {"max_new_tokens": 12, "details": True}}


def make_endpoint(
    running: Running, name: str, container: dict[str, Any], *, config: Mapping[str, Any] | None = None, **variant: Any
) -> None:
    client = running.client("sagemaker")
    role = "arn:aws:iam::000000000000:role/any"
    client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=role)
    production = {
        "VariantName": "AllTraffic",
        "ModelName": name,
        "InitialInstanceCount": 1,
        "InstanceType": "ml.g5.2xlarge",
        **variant,
    }
    client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[production], **(config or {}))
    client.create_endpoint(EndpointName=name, EndpointConfigName=name)
    assert client.describe_endpoint(EndpointName=name)["EndpointStatus"] == "Creating"


def delete_endpoint(running: Running, name: str) -> None:
    client = running.client("sagemaker")
    client.delete_endpoint(EndpointName=name)
    client.get_waiter("endpoint_deleted").wait(EndpointName=name, WaiterConfig=WAIT)
    client.delete_endpoint_config(EndpointConfigName=name)
    client.delete_model(ModelName=name)


def archive(files: dict[str, bytes | Path]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def invoke(running: Running, name: str, body: dict[str, Any] = PROMPT) -> Any:
    response = running.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=name, Body=json.dumps(body), ContentType="application/json"
    )
    with response["Body"] as stream:
        return json.loads(stream.read())


def answered(running: Running, name: str) -> Any:
    try:
        return invoke(running, name)
    except ClientError:
        return None


def workers(running: Running) -> dict[str, int]:
    handles = running.folder.glob("workers/*/handle.json")
    return {path.parent.name: json.loads(path.read_text())["facts"]["process"]["pid"] for path in handles}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
