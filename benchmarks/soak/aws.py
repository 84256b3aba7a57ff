"""The work of a team on a platform: deployments, components, scaling, asynchronous invocations, uploads, reads."""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import httpx
from benchmarks.harness.platforms import (
    ROLE,
    TGI_IMAGE,
    VARIANT,
    aws_client,
    create_endpoint,
    is_in_service,
    scale,
)
from benchmarks.soak.load import Activity, Unexpected, until
from benchmarks.soak.requests import TIMEOUT_S, ModelClient
from botocore.exceptions import ClientError

MAIN, SCALED, HOST, COMPONENT, TEMPORARY = "soak", "soak-scaled", "soak-host", "soak-component", "soak-temporary"
BUCKET = "soak"
INSTANCE_TYPE = "ml.c6i.xlarge"
ENVIRONMENT = {"MAX_INPUT_LENGTH": "2047", "MAX_TOTAL_TOKENS": "2048", "HEADRACE_KV_CACHE_BYTES": "64MiB"}
"""A small KV cache: the prefix cache fills it within the warm-up."""
_READS = (
    *("/console", "/console/api/home", "/console/api/rates", "/metrics", "/health", "/v1/models"),
    f"/console/api/traffic?endpoint={MAIN}&since=-600",
    f"/console/api/components?endpoint={HOST}",
)


class Team:
    """The AWS clients of one team, and what it does with them."""

    def __init__(self, http: httpx.Client, key: tuple[str, str], model: str) -> None:
        self._http = http
        self._container = {"Image": TGI_IMAGE, "Environment": {"HF_MODEL_ID": model, **ENVIRONMENT}}
        port = http.base_url.port or 80
        client = partial(aws_client, port=port, key=key, connect_timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S)
        self._sagemaker = client("sagemaker")
        self._runtime = client("sagemaker-runtime")
        self._s3 = client("s3")
        self._cloudwatch = client("cloudwatch")
        self._logs = client("logs")
        self._scaling = client("application-autoscaling")
        self.client = ModelClient(http=http, model=MAIN, invocations=f"/endpoints/{MAIN}/invocations")

    def activities(self) -> Sequence[Activity]:
        """Return what the team does, the requests of its clients included."""
        return (
            *self.client.activities(),
            Activity(name="response stream", pause_s=5, act=self._response_stream),
            Activity(name="unknown model", pause_s=15, act=self._unknown_model),
            Activity(name="unknown endpoint", pause_s=15, act=self._unknown_endpoint),
            Activity(name="async invocation", pause_s=8, act=self._async_invocation),
            Activity(name="upload", pause_s=8, act=self._upload),
            Activity(name="read the console", pause_s=5, act=self._read_console),
            Activity(name="read CloudWatch", pause_s=5, act=self._read_cloudwatch),
            Activity(name="component", pause_s=5, act=self._component),
            Activity(name="component to zero", pause_s=60, act=self._component_to_zero),
            Activity(name="scale to zero and two", pause_s=45, act=self._scale),
            Activity(name="deployment", pause_s=60, act=self._deployment),
        )

    def set_up(self) -> None:
        """Create the bucket, the endpoints and the component, and wait until they are in service."""
        until(self._has_bucket, "the object storage")
        self._create(MAIN, AsyncInferenceConfig={"OutputConfig": {"S3OutputPath": f"s3://{BUCKET}/out"}})
        self._create(SCALED)
        self._create_config(HOST, {}, ExecutionRoleArn=ROLE)
        self._sagemaker.create_endpoint(EndpointName=HOST, EndpointConfigName=HOST)
        for name in (MAIN, SCALED, HOST):
            self._until_in_service(name)
        self._sagemaker.create_model(ModelName=COMPONENT, PrimaryContainer=self._container, ExecutionRoleArn=ROLE)
        needs = {"NumberOfCpuCoresRequired": 1, "MinMemoryRequiredInMb": 1024}
        self._sagemaker.create_inference_component(
            InferenceComponentName=COMPONENT,
            EndpointName=HOST,
            VariantName=VARIANT,
            Specification={"ModelName": COMPONENT, "ComputeResourceRequirements": needs},
            RuntimeConfig={"CopyCount": 1},
        )
        until(lambda: self._num_copies() == 1, "the component is in service")
        self._scaling.register_scalable_target(
            ServiceNamespace="sagemaker",
            ResourceId=f"endpoint/{SCALED}/variant/{VARIANT}",
            ScalableDimension="sagemaker:variant:DesiredInstanceCount",
            MinCapacity=0,
            MaxCapacity=2,
        )

    def tear_down(self) -> None:
        """Delete everything, and wait until it is gone."""
        self._sagemaker.delete_inference_component(InferenceComponentName=COMPONENT)
        until(lambda: not self._sagemaker.list_inference_components()["InferenceComponents"], "no component is left")
        for name in (MAIN, SCALED, HOST):
            self._sagemaker.delete_endpoint(EndpointName=name)
        until(lambda: not self._sagemaker.list_endpoints()["Endpoints"], "no endpoint is left")

    def _has_bucket(self) -> bool:
        try:
            self._s3.create_bucket(Bucket=BUCKET)
        except ClientError as error:
            return error.response["Error"]["Code"] == "BucketAlreadyOwnedByYou"
        return True

    def _create_config(self, name: str, variant: dict[str, Any], **more: Any) -> None:
        production = {"VariantName": VARIANT, "InitialInstanceCount": 1, "InstanceType": INSTANCE_TYPE, **variant}
        self._sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[production], **more)

    def _create(self, name: str, **config: Any) -> None:
        create_endpoint(self._sagemaker, name, self._container, instance_type=INSTANCE_TYPE, **config)

    def _until_in_service(self, name: str, *, instances: int | None = None) -> None:
        until(lambda: is_in_service(self._sagemaker, name, instances=instances), f"{name} is in service")

    def _num_copies(self) -> int:
        found = self._sagemaker.describe_inference_component(InferenceComponentName=COMPONENT)
        if found["InferenceComponentStatus"] == "Failed":
            raise Unexpected(found["FailureReason"])
        is_settled = found["InferenceComponentStatus"] == "InService"
        return int(found["RuntimeConfig"]["CurrentCopyCount"]) if is_settled else -1

    def _response_stream(self, random: Random) -> None:
        body = {"inputs": f"Number {random.random()}:", "parameters": {"max_new_tokens": 24}, "stream": True}
        answer = self._runtime.invoke_endpoint_with_response_stream(
            EndpointName=MAIN, ContentType="application/json", Body=json.dumps(body)
        )
        content = b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"])
        if b"generated_text" not in content:
            raise Unexpected(f"a stream without its end: {content[-300:]!r}")

    def _unknown_model(self, random: Random) -> None:
        body = {"model": f"nosuch-{random.randrange(10**6)}", "prompt": "a"}
        answer = self._http.post("/v1/completions", json=body)
        if answer.status_code != httpx.codes.NOT_FOUND:
            raise Unexpected(f"an unknown model answered {answer.status_code}: {answer.text[:300]}")

    def _unknown_endpoint(self, random: Random) -> None:
        try:
            self._runtime.invoke_endpoint(EndpointName=f"nosuch-{random.randrange(10**6)}", Body=b"{}")
        except ClientError as error:
            if error.response["Error"]["Code"] == "ValidationError":
                return
            raise
        raise Unexpected("an unknown endpoint answered")

    def _async_invocation(self, random: Random) -> None:
        body = {"inputs": f"Number {random.random()}:", "parameters": {"max_new_tokens": 8}}
        accepted = self._runtime.invoke_endpoint_async(
            EndpointName=MAIN, ContentType="application/json", Body=json.dumps(body).encode()
        )
        key = accepted["OutputLocation"].removeprefix(f"s3://{BUCKET}/")
        until(lambda: self._has_object(key), f"the output {key}")
        self._s3.delete_object(Bucket=BUCKET, Key=key)

    def _has_object(self, key: str) -> bool:
        return any(found["Key"] == key for found in self._s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()))

    def _upload(self, random: Random) -> None:
        key, content = f"upload-{random.randrange(8)}", random.randbytes(random.randint(1, 256 * 1024))
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=content)
        if self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != content:
            raise Unexpected(f"the object {key} has another content than the uploaded one")
        self._s3.delete_object(Bucket=BUCKET, Key=key)

    def _read_console(self, random: Random) -> None:
        path = random.choice(_READS)
        answer = self._http.get(path, follow_redirects=True)
        if answer.status_code != httpx.codes.OK:
            raise Unexpected(f"GET {path} answered {answer.status_code}: {answer.text[:300]}")

    def _read_cloudwatch(self, random: Random) -> None:
        reads = (self._read_metrics, self._read_logs, self._list_all)
        random.choice(reads)()

    def _read_metrics(self) -> None:
        now = datetime.now(UTC)
        dimensions = [{"Name": "EndpointName", "Value": MAIN}, {"Name": "VariantName", "Value": VARIANT}]
        metric = {"Namespace": "AWS/SageMaker", "MetricName": "Invocations", "Dimensions": dimensions}
        query = {"Id": "i", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
        self._cloudwatch.list_metrics()
        self._cloudwatch.get_metric_data(
            MetricDataQueries=[query], StartTime=now - timedelta(hours=1), EndTime=now + timedelta(minutes=1)
        )
        self._cloudwatch.describe_alarms()

    def _read_logs(self) -> None:
        self._logs.filter_log_events(logGroupName=f"/aws/sagemaker/Endpoints/{MAIN}", limit=100)

    def _list_all(self) -> None:
        self._sagemaker.list_endpoints()
        self._sagemaker.list_models()
        self._sagemaker.list_inference_components()
        self._scaling.describe_scaling_activities(ServiceNamespace="sagemaker")

    def _component(self, _random: Random) -> None:
        self.client.complete(COMPONENT)

    def _component_to_zero(self, _random: Random) -> None:
        until(self._has_zero_copies_asked, "the component accepts an update")
        time.sleep(1)
        self.client.complete(COMPONENT)  # wakes it, unless another client did

    def _has_zero_copies_asked(self) -> bool:
        """Ask for no copies; return False while an update is in progress (a request may start one)."""
        try:
            self._sagemaker.update_inference_component_runtime_config(
                InferenceComponentName=COMPONENT, DesiredRuntimeConfig={"CopyCount": 0}
            )
        except ClientError as error:
            if "in-progress" in error.response["Error"]["Message"]:
                return False
            raise
        return True

    def _scale(self, _random: Random) -> None:
        for count in (2, 0):
            scale(self._sagemaker, SCALED, count)
            self._until_in_service(SCALED, instances=count)
        self.client.complete(SCALED)  # wakes it
        self._until_in_service(SCALED, instances=1)

    def _deployment(self, _random: Random) -> None:
        other = f"{TEMPORARY}-2"
        self._create(TEMPORARY)
        try:
            self._until_in_service(TEMPORARY)
            self.client.complete(TEMPORARY)
            self._create_config(other, {"ModelName": TEMPORARY})
            self._sagemaker.update_endpoint(EndpointName=TEMPORARY, EndpointConfigName=other)
            self._until_in_service(TEMPORARY)
            self._sagemaker.delete_endpoint_config(EndpointConfigName=other)
        finally:
            self._sagemaker.delete_endpoint(EndpointName=TEMPORARY)
            until(lambda: not self._is_there(TEMPORARY), f"{TEMPORARY} is gone")
            self._sagemaker.delete_endpoint_config(EndpointConfigName=TEMPORARY)
            self._sagemaker.delete_model(ModelName=TEMPORARY)

    def _is_there(self, name: str) -> bool:
        found = self._sagemaker.list_endpoints(NameContains=name)["Endpoints"]
        return any(endpoint["EndpointName"] == name for endpoint in found)
