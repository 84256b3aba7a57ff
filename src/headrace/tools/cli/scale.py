"""`headrace scale`: scale an endpoint or an inference component automatically with its load."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import ABOVE_0, UserFailed
from headrace.tools.cli.platform_client import Platform, error_of, opened_platform, platform_option, unknown_name
from headrace.tools.cli.scale_report import report
from headrace.tools.cli.tables import count_of

LOAD_POLICY = "headrace-load"
IDLE_POLICY = "headrace-idle"
_PERIOD_S, _LONG_PERIOD_S = 10, 60
_LONG_IDLE_S = 3600
"""Above this idle time the alarm uses one-minute periods: finer datapoints are not retained long enough."""
_NUM_SHOWN = 10
_VARIANT = "sagemaker:variant:DesiredInstanceCount"
_COMPONENT = "sagemaker:inference-component:DesiredCopyCount"

EXAMPLES = """
headrace scale chat --min 1 --max 4                 by concurrent requests
headrace scale chat --min 0 --max 2 --idle-s 300    to zero after 5 min
headrace scale chat --describe                      what scales it, and when
headrace scale chat --off                           keep the current capacity
"""


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@click.argument("name")
@platform_option
@click.option(
    "--min", "minimum", type=click.IntRange(0, 100), help="Minimum workers or copies; 0 allows scale to zero."
)
@click.option("--max", "maximum", type=click.IntRange(1, 100), help="Maximum workers or copies.")
@click.option("--target", type=ABOVE_0, default=4.0, help="Target of concurrent requests on each worker or copy.")
@click.option(
    "--idle-s", type=click.IntRange(10, 86_400), help="Scale to the minimum after this many seconds without a request."
)
@click.option("--variant", metavar="NAME", help="Variant of the endpoint.  [default: the only one]")
@click.option("--describe", "is_describing", is_flag=True, help="Show bounds, policies and activities; change nothing.")
@click.option("--off", "is_off", is_flag=True, help="Delete what this command created; the capacity stays unchanged.")
@click.option("--json", "as_json", is_flag=True, help="With --describe: print JSON.")
def scale(  # noqa: PLR0913 -- its options
    *,
    name: str,
    url: str | None,
    minimum: int | None,
    maximum: int | None,
    target: float,
    idle_s: int | None,
    variant: str | None,
    is_describing: bool,
    is_off: bool,
    as_json: bool,
) -> None:
    """
    Scale the endpoint or inference component NAME between --min and --max.

    It registers a scalable target and a target-tracking policy on the number of concurrent requests. With --idle-s it
    adds a step policy and an alarm that scale it to the minimum when there are no requests.
    """
    with opened_platform(url) as platform:
        identity = _identity(platform, name, variant)
        if is_describing:
            _describe(platform, identity, as_json=as_json)
        elif is_off:
            click.echo(_switch_off(platform, identity, name))
        else:
            if minimum is None or maximum is None:
                raise UserFailed("Give both --min and --max; --describe shows the current bounds, --off ends scaling.")
            if minimum > maximum:
                raise UserFailed(f"--min is {minimum} and --max {maximum}; expected --min not above --max.")
            _refuse_host(platform, name, identity)
            _, desired = _counts(platform, identity["ResourceId"])
            _register(platform, identity, minimum=minimum, maximum=maximum, target=target, idle_s=idle_s)
            click.echo(
                f"{name} is scaled between {minimum} and {maximum}, targeting {target:g} concurrent requests on each.\n"
                f"`headrace scale {name} --describe{platform.option}` shows the activities."
            )
            if note := change_note(identity, desired, minimum=minimum, maximum=maximum):
                click.echo(note, err=True)


def watched(identity: dict[str, str], period_s: int) -> list[dict[str, Any]]:
    """
    Return the metric queries of the idle alarm: the maximum of requests in flight and requests completed.

    In-flight requests alone miss short requests, because they are sampled once a second; completed ones miss long ones.
    """
    kind, name, *rest = identity["ResourceId"].split("/")
    if kind == "inference-component":
        under_way, dimensions = "ConcurrentRequestsPerCopy", {"InferenceComponentName": name}
    else:
        under_way, dimensions = "ConcurrentRequestsPerModel", {"EndpointName": name, "VariantName": rest[-1]}
    pairs = [{"Name": key, "Value": value} for key, value in dimensions.items()]

    def query(query_id: str, metric: str, statistic: str) -> dict[str, Any]:
        named = {"Namespace": "AWS/SageMaker", "MetricName": metric, "Dimensions": pairs}
        stat = {"Metric": named, "Period": period_s, "Stat": statistic}
        return {"Id": query_id, "MetricStat": stat, "ReturnData": False}

    return [
        query("under_way", under_way, "Maximum"),
        query("ended", "Invocations", "Sum"),
        {"Id": "requests", "Expression": "MAX([under_way, ended])", "Label": "Requests", "ReturnData": True},
    ]


def change_note(identity: dict[str, str], desired: int, *, minimum: int, maximum: int) -> str:
    """Return what new bounds change at once; empty if the desired capacity is between them."""
    noun, plural = ("copy", "copies") if identity["ScalableDimension"] == _COMPONENT else ("worker", "workers")
    if desired > maximum:
        return f"{count_of(desired - maximum, noun, plural)} of {desired} will end."
    if desired < minimum:
        more = count_of(minimum - desired, f"more {noun}", f"more {plural}")
        return f"{more} will start, as far as the platform has room."
    return ""


def tracking(identity: dict[str, str], target: float) -> dict[str, Any]:
    kind = "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    if identity["ScalableDimension"] == _COMPONENT:
        kind = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
    return {
        "TargetValue": target,
        "PredefinedMetricSpecification": {"PredefinedMetricType": kind},
        "ScaleOutCooldown": 30,
        "ScaleInCooldown": 120,
    }


def _identity(platform: Platform, name: str, variant: str | None) -> dict[str, str]:
    """Return the scalable target of a name: a variant of an endpoint, else a component."""
    if (endpoint := platform.endpoint(name)) is None:
        if platform.component(name) is None:
            raise unknown_name(name)
        resource_id, dimension = f"inference-component/{name}", _COMPONENT
    else:
        variants = [found["VariantName"] for found in endpoint["ProductionVariants"]]
        if variant is None and len(variants) > 1:
            raise UserFailed(f"{name} has the variants {', '.join(variants)}; choose one with --variant.")
        chosen = variant or variants[0]
        if chosen not in variants:
            raise UserFailed(f"{name} has no variant {chosen}. It has: {', '.join(variants)}.")
        resource_id, dimension = f"endpoint/{name}/variant/{chosen}", _VARIANT
    return {"ServiceNamespace": "sagemaker", "ResourceId": resource_id, "ScalableDimension": dimension}


def _refuse_host(platform: Platform, name: str, identity: dict[str, str]) -> None:
    """Refuse the host of inference components: each component has its own load and is scaled separately."""
    if identity["ScalableDimension"] == _VARIANT and (names := platform.component_names(name)):
        raise UserFailed(
            f"The models of {name} are inference components, each scaled separately: headrace scale {names[0]} … "
            f"(there are {', '.join(names)}). Instances follow with ManagedInstanceScaling."
        )


def _refuse_duplicate_policy(platform: Platform, client: Any, identity: dict[str, str], target: float) -> None:
    """Refuse a target where a policy of the user tracks the same metric: only one may, and the user's is kept."""
    key, metric = "TargetTrackingScalingPolicyConfiguration", "PredefinedMetricSpecification"
    tracked = tracking(identity, target)[metric]
    for policy in client.describe_scaling_policies(**identity)["ScalingPolicies"]:
        if policy["PolicyName"] != LOAD_POLICY and policy.get(key, {}).get(metric) == tracked:
            raise UserFailed(
                f"The policy {policy['PolicyName']} already tracks {tracked['PredefinedMetricType']} of "
                f"{identity['ResourceId']}, and nothing was changed. Delete it first: "
                f"aws application-autoscaling delete-scaling-policy --policy-name {policy['PolicyName']} "
                f"{_as_flags(platform, identity)}"
            )


def _register(
    platform: Platform, identity: dict[str, str], *, minimum: int, maximum: int, target: float, idle_s: int | None
) -> None:
    client, cloudwatch = platform.client("application-autoscaling"), platform.client("cloudwatch")
    _refuse_duplicate_policy(platform, client, identity, target)
    client.register_scalable_target(**identity, MinCapacity=minimum, MaxCapacity=maximum)
    client.put_scaling_policy(
        **identity,
        PolicyName=LOAD_POLICY,
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration=tracking(identity, target),
    )
    if idle_s is None:
        cloudwatch.delete_alarms(AlarmNames=[_idle_alarm(identity)])
        _unless_missing(lambda: client.delete_scaling_policy(**identity, PolicyName=IDLE_POLICY))
        return
    step = {"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": minimum}
    policy = client.put_scaling_policy(
        **identity,
        PolicyName=IDLE_POLICY,
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={"AdjustmentType": "ExactCapacity", "StepAdjustments": [step], "Cooldown": 30},
    )
    period_s = _PERIOD_S if idle_s <= _LONG_IDLE_S else _LONG_PERIOD_S
    cloudwatch.put_metric_alarm(
        AlarmName=_idle_alarm(identity),
        AlarmActions=[policy["PolicyARN"]],
        AlarmDescription=f"No request for {idle_s} s; made by `headrace scale`.",
        Metrics=watched(identity, period_s),
        EvaluationPeriods=math.ceil(idle_s / period_s),
        Threshold=0.0,
        ComparisonOperator="LessThanOrEqualToThreshold",
        TreatMissingData="breaching",
    )


def _idle_alarm(identity: dict[str, str]) -> str:
    return f"headrace-idle-{identity['ResourceId']}"


def _unless_missing(call: Callable[[], Any]) -> bool:
    """Delete an object of Application Auto Scaling; return whether it existed."""
    from botocore.exceptions import ClientError

    try:
        call()
    except ClientError as error:
        if error_of(error)[0] == "ObjectNotFoundException":
            return False
        raise
    return True


def _switch_off(platform: Platform, identity: dict[str, str], name: str) -> str:
    """Delete what `headrace scale` created, and the scalable target unless it has other policies; return a summary."""
    client = platform.client("application-autoscaling")
    own, others = _policies_and_schedules(client, identity)
    if not others:
        platform.client("cloudwatch").delete_alarms(AlarmNames=[_idle_alarm(identity)])
        if not _unless_missing(lambda: client.deregister_scalable_target(**identity)):
            raise UserFailed(f"{identity['ResourceId']} is not scaled.")
        return f"{name} is no longer scaled."
    kept = (
        f"Not created by `headrace scale`, and kept: {', '.join(others)}. To delete these too: "
        f"aws application-autoscaling deregister-scalable-target {_as_flags(platform, identity)}"
    )
    if not own:
        raise UserFailed(f"`headrace scale` has no policy on {identity['ResourceId']}, and nothing was changed. {kept}")
    platform.client("cloudwatch").delete_alarms(AlarmNames=[_idle_alarm(identity)])
    for policy in own:
        _unless_missing(partial(client.delete_scaling_policy, **identity, PolicyName=policy))
    return f"{name} is no longer scaled by `headrace scale`; its bounds stay. {kept}"


def _as_flags(platform: Platform, identity: dict[str, str]) -> str:
    """Return the flags of the AWS CLI for the platform and the target."""
    return (
        f"--endpoint-url {platform.url} --service-namespace {identity['ServiceNamespace']} "
        f"--resource-id {identity['ResourceId']} --scalable-dimension {identity['ScalableDimension']}"
    )


def _policies_and_schedules(client: Any, identity: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of the policies that `headrace scale` created, and descriptions of everything else."""
    pages = client.get_paginator("describe_scaling_policies").paginate(**identity)
    policies = [policy["PolicyName"] for page in pages for policy in page["ScalingPolicies"]]
    pages = client.get_paginator("describe_scheduled_actions").paginate(**identity)
    schedules = [action["ScheduledActionName"] for page in pages for action in page["ScheduledActions"]]
    own = (LOAD_POLICY, IDLE_POLICY)
    others = [f"policy {name}" for name in policies if name not in own]
    return [name for name in policies if name in own], [*others, *(f"scheduled action {name}" for name in schedules)]


def _describe(platform: Platform, identity: dict[str, str], *, as_json: bool) -> None:
    client, namespace = platform.client("application-autoscaling"), {"ServiceNamespace": "sagemaker"}
    resource_id, dimension = identity["ResourceId"], identity["ScalableDimension"]
    found = client.describe_scalable_targets(**namespace, ResourceIds=[resource_id], ScalableDimension=dimension)
    targets = found["ScalableTargets"]
    policies = client.describe_scaling_policies(**namespace, ResourceId=resource_id)["ScalingPolicies"]
    activities = client.describe_scaling_activities(
        **namespace, ResourceId=resource_id, MaxResults=_NUM_SHOWN, IncludeNotScaledActivities=True
    )["ScalingActivities"]
    if as_json:
        values = {"ScalableTargets": targets, "ScalingPolicies": policies, "ScalingActivities": activities}
        click.echo(json.dumps(values, indent=2, default=str))
        return
    if not targets:
        click.echo(f"{resource_id} is not scaled. `headrace scale NAME --min 1 --max 4` starts it.")
        return
    names = [alarm["AlarmName"] for policy in policies for alarm in policy["Alarms"]]
    found = platform.client("cloudwatch").describe_alarms(AlarmNames=names)["MetricAlarms"] if names else []
    alarms = {alarm["AlarmName"]: alarm["StateValue"] for alarm in found}
    counts, now = _counts(platform, resource_id), datetime.now(UTC)
    click.echo(report(targets[0], counts=counts, policies=policies, alarms=alarms, activities=activities, now=now))


def _counts(platform: Platform, resource_id: str) -> tuple[int, int]:
    kind, name, *rest = resource_id.split("/")
    if kind == "inference-component":
        found = platform.sagemaker.describe_inference_component(InferenceComponentName=name)["RuntimeConfig"]
        return found["CurrentCopyCount"], found["DesiredCopyCount"]
    variants = platform.sagemaker.describe_endpoint(EndpointName=name)["ProductionVariants"]
    variant = next(variant for variant in variants if variant["VariantName"] == rest[-1])
    return variant["CurrentInstanceCount"], variant["DesiredInstanceCount"]
