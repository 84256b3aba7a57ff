"""
Write the store of a platform that was stopped in the middle of things, and what its API described at that moment.

`python -m tests.control.upgrade.write_store FILE` writes FILE (the database), FILE.sql (its dump) and FILE.json (the
answers). The fixtures in this folder were written by it at the commit that their names stand for:

    store_1.sql, described_1.json    6e72c42, the last one before records had schema versions

Imports differ between commits; the calls do not.
"""

import asyncio
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from headrace.autoscaling.planning.targets import read_key
from headrace.autoscaling.records.copies import keep_copies
from headrace.control.access_keys import AccessKeys
from headrace.control.api.context import CallContext
from headrace.platform.operations import OPERATIONS
from headrace.state.sql import open_store
from headrace.testing.fake_launcher import FakeMachine, ManualClock, fails_after, ready_after
from tests.control.support import AWS_SCOPE, IMAGE, ROLE, ListedLogs, reconciler_of

NEED = {"NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 1024}
TYPE = "ml.p3.8xlarge"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"


def script(spec: Any) -> Any:
    return fails_after(message="It is bad.") if spec.environment["HF_MODEL_ID"] == "bad" else ready_after(1.0)


async def main(path: str) -> None:  # noqa: PLR0915 -- a list of calls
    clock = ManualClock()
    store = open_store(path, now_s=clock)
    machine = FakeMachine(clock=clock, script=script)
    reconciler = reconciler_of(store, machine, clock=clock)

    def context() -> CallContext:
        return CallContext(
            store=store, logs=ListedLogs(), aws_scope=AWS_SCOPE, identity_arn="", now_s=clock(), request_id="r"
        )

    def call(service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        return OPERATIONS[service, operation](context(), params)

    async def settle(seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            clock.advance(0.5)
            await reconciler.pass_once()

    for name in ("m", "n", "bad"):
        container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": name}}
        call(
            "sagemaker",
            "CreateModel",
            {
                "ModelName": name,
                "PrimaryContainer": container,
                "ExecutionRoleArn": ROLE,
                "Tags": [{"Key": "team", "Value": "x"}],
            },
        )

    def config(name: str, *variants: Any, **more: Any) -> None:
        call(
            "sagemaker",
            "CreateEndpointConfig",
            {"EndpointConfigName": name, "ProductionVariants": list(variants), **more},
        )

    def variant(name: str, model: str, count: int = 1, **more: Any) -> dict[str, Any]:
        return {
            "VariantName": name,
            "ModelName": model,
            "InstanceType": "ml.g5.xlarge",
            "InitialInstanceCount": count,
            **more,
        }

    config("plain", variant("a", "m", 2, InitialVariantWeight=3.0), variant("b", "n"))
    config(
        "next",
        variant("a", "n", 2),
        variant("b", "n"),
        AsyncInferenceConfig={"OutputConfig": {"S3OutputPath": "s3://b/out/"}},
    )
    config("bad", variant("a", "bad"))
    host = {
        "VariantName": "v",
        "InstanceType": TYPE,
        "InitialInstanceCount": 2,
        "ManagedInstanceScaling": {
            "Status": "ENABLED",
            "MinInstanceCount": 1,
            "MaxInstanceCount": 2,
            "ScaleInPolicy": {"Strategy": "CONSOLIDATION", "CooldownInMinutes": 5},
        },
    }
    config("host", host, ExecutionRoleArn=ROLE)
    call(
        "cloudwatch",
        "PutMetricAlarm",
        {
            "AlarmName": "errors",
            "MetricName": "Invocation5XXErrors",
            "Namespace": "AWS/SageMaker",
            "Statistic": "Sum",
            "Period": 60,
            "EvaluationPeriods": 1,
            "Threshold": 1.0,
            "ComparisonOperator": "GreaterThanThreshold",
        },
    )
    call("cloudwatch", "SetAlarmState", {"AlarmName": "errors", "StateValue": "OK", "StateReason": "calm"})

    call(
        "sagemaker",
        "CreateEndpoint",
        {"EndpointName": "plain", "EndpointConfigName": "plain", "Tags": [{"Key": "team", "Value": "x"}]},
    )
    call("sagemaker", "CreateEndpoint", {"EndpointName": "updating", "EndpointConfigName": "plain"})
    call("sagemaker", "CreateEndpoint", {"EndpointName": "scaled", "EndpointConfigName": "plain"})
    call("sagemaker", "CreateEndpoint", {"EndpointName": "failed", "EndpointConfigName": "bad"})
    call("sagemaker", "CreateEndpoint", {"EndpointName": "leaving", "EndpointConfigName": "plain"})
    call("sagemaker", "CreateEndpoint", {"EndpointName": "host", "EndpointConfigName": "host"})
    await settle(8)

    def component(name: str, copies: int, specification: dict[str, Any], **more: Any) -> None:
        call(
            "sagemaker",
            "CreateInferenceComponent",
            {
                "InferenceComponentName": name,
                "EndpointName": "host",
                "RuntimeConfig": {"CopyCount": copies},
                "Specification": {"ComputeResourceRequirements": NEED, **specification},
                **more,
            },
        )

    component("named", 2, {"ModelName": "m"})
    component(
        "contained",
        1,
        {
            "Container": {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "n"}},
            "StartupParameters": {"ContainerStartupHealthCheckTimeoutInSeconds": 300},
            "SchedulingConfig": {"PlacementStrategy": "BINPACK"},
        },
    )
    component("crowded", 1, {"ModelName": "m"})
    component("broken", 1, {"ModelName": "bad"})
    call(
        "sagemaker",
        "CreateInferenceComponent",
        {
            "InferenceComponentName": "typed",
            "EndpointName": "host",
            "RuntimeConfig": {"CopyCount": 1},
            "Specifications": [
                {"InstanceType": TYPE, "ModelName": "n", "ComputeResourceRequirements": NEED},
                {"InstanceType": "ml.g5.xlarge", "ModelName": "n", "ComputeResourceRequirements": NEED},
            ],
        },
    )
    await settle(8)
    call(
        "sagemaker",
        "UpdateInferenceComponent",
        {
            "InferenceComponentName": "named",
            "Specification": {"ModelName": "n", "ComputeResourceRequirements": NEED},
            "DeploymentConfig": {
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
                    "WaitIntervalInSeconds": 600,
                }
            },
        },
    )
    await settle(4)
    call(
        "sagemaker",
        "UpdateInferenceComponentRuntimeConfig",
        {"InferenceComponentName": "crowded", "DesiredRuntimeConfig": {"CopyCount": 9}},
    )
    await settle(6)

    call(
        "sagemaker",
        "UpdateEndpointWeightsAndCapacities",
        {
            "EndpointName": "scaled",
            "DesiredWeightsAndCapacities": [
                {"VariantName": "a", "DesiredInstanceCount": 1},
                {"VariantName": "b", "DesiredInstanceCount": 0},
            ],
        },
    )
    await settle(6)
    call(
        "application-autoscaling",
        "RegisterScalableTarget",
        {
            "ServiceNamespace": "sagemaker",
            "ResourceId": "endpoint/plain/variant/a",
            "ScalableDimension": DIMENSION,
            "MinCapacity": 1,
            "MaxCapacity": 4,
        },
    )
    call(
        "application-autoscaling",
        "PutScalingPolicy",
        {
            "PolicyName": "load",
            "ServiceNamespace": "sagemaker",
            "ResourceId": "endpoint/plain/variant/a",
            "ScalableDimension": DIMENSION,
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": {
                "TargetValue": 5.0,
                "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
            },
        },
    )
    call(
        "application-autoscaling",
        "PutScheduledAction",
        {
            "ScheduledActionName": "night",
            "ServiceNamespace": "sagemaker",
            "ResourceId": "endpoint/plain/variant/a",
            "ScalableDimension": DIMENSION,
            "Schedule": "rate(1 day)",
            "ScalableTargetAction": {"MinCapacity": 1},
        },
    )
    keep_copies(
        store,
        AWS_SCOPE,
        read_key(
            {
                "ServiceNamespace": "sagemaker",
                "ResourceId": "endpoint/host/variant/v",
                "ScalableDimension": DIMENSION,
            }
        ),
        2,
        now_s=clock(),
    )
    AccessKeys(store).create(note="ours")
    call(
        "sagemaker",
        "UpdateEndpoint",
        {
            "EndpointName": "updating",
            "EndpointConfigName": "next",
            "DeploymentConfig": {
                "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
                "BlueGreenUpdatePolicy": {
                    "TerminationWaitInSeconds": 60,
                    "TrafficRoutingConfiguration": {
                        "Type": "CANARY",
                        "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
                        "WaitIntervalInSeconds": 600,
                    },
                },
            },
        },
    )
    await settle(6)
    call("sagemaker", "DeleteEndpoint", {"EndpointName": "leaving"})
    await settle(0.5)
    call("sagemaker", "CreateEndpoint", {"EndpointName": "new", "EndpointConfigName": "plain"})
    described: dict[str, Any] = {"now_s": clock()}
    for service, operation, params in CALLS:
        described[f"{service} {operation} {json.dumps(params)}"] = call(service, operation, params)
    store.close()
    with sqlite3.connect(path) as connection:
        Path(f"{path}.sql").write_text("\n".join(connection.iterdump()) + "\n")
    Path(f"{path}.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")


TARGET = {"ServiceNamespace": "sagemaker"}
CALLS = [
    *(
        ("sagemaker", "DescribeEndpoint", {"EndpointName": name})
        for name in ("plain", "updating", "scaled", "failed", "leaving", "host", "new")
    ),
    *(
        ("sagemaker", "DescribeInferenceComponent", {"InferenceComponentName": name})
        for name in ("named", "contained", "crowded", "broken", "typed")
    ),
    *(("sagemaker", "DescribeModel", {"ModelName": name}) for name in ("m", "bad")),
    ("sagemaker", "DescribeEndpointConfig", {"EndpointConfigName": "host"}),
    ("sagemaker", "ListEndpoints", {}),
    ("sagemaker", "ListInferenceComponents", {}),
    ("sagemaker", "ListEndpointConfigs", {}),
    ("sagemaker", "ListModels", {"NameContains": "a"}),
    ("sagemaker", "ListTags", {"ResourceArn": "arn:aws:sagemaker:us-east-1:123456789012:endpoint/plain"}),
    ("cloudwatch", "DescribeAlarms", {}),
    ("cloudwatch", "DescribeAlarmHistory", {"AlarmName": "errors"}),
    ("application-autoscaling", "DescribeScalableTargets", TARGET),
    ("application-autoscaling", "DescribeScalingPolicies", TARGET),
    ("application-autoscaling", "DescribeScheduledActions", TARGET),
    ("application-autoscaling", "DescribeScalingActivities", TARGET),
]


asyncio.run(main(sys.argv[1]))
