"""`headrace scale`: let an endpoint or an inference component grow and shrink with its load, with one command."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import click

from headrace.cli.group import Examples, UserFailed
from headrace.cli.platform_client import Platform, error_of, find_platform, is_not_found, platform_option, told
from headrace.cli.scale_report import report

LOAD_POLICY = "headrace-load"
IDLE_POLICY = "headrace-idle"
_PERIOD_S, _LONG_PERIOD_S = 10, 60
_LONG_IDLE_S = 3600
"""An idle time that is longer than this is looked at by the minute: finer values are not kept so long."""
_NUM_SHOWN = 10
_VARIANT = "sagemaker:variant:DesiredInstanceCount"
_COMPONENT = "sagemaker:inference-component:DesiredCopyCount"

EXAMPLES = """
headrace scale chat --min 1 --max 4                  between one and four, 4 requests at a time for each
headrace scale chat --min 0 --max 2 --idle-s 300     to zero after five minutes without a request
headrace scale chat --describe                       bounds, policies, and what happened
headrace scale chat --off                            as it is now, from now on; own policies stay
"""


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("name")
@platform_option
@click.option("--min", "minimum", type=click.IntRange(0, 100), help="Fewest workers or copies; 0: may sleep.")
@click.option("--max", "maximum", type=click.IntRange(1, 100), help="Most workers or copies.")
@click.option(
    "--target",
    type=click.FloatRange(min=0, min_open=True),
    default=4.0,
    show_default=True,
    help="Requests at a time that each shall have.",
)
@click.option(
    "--idle-s", type=click.IntRange(10, 86_400), help="Without a request for so many seconds: down to the minimum."
)
@click.option("--variant", help="Which variant of the endpoint.  [default: the only one]")
@click.option("--describe", "is_describing", is_flag=True, help="Show what is set and what happened; change nothing.")
@click.option("--off", "is_off", is_flag=True, help="Take back what this command made; the capacity stays as it is.")
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

    It registers a scalable target and puts a target-tracking policy on the requests that are answered at a time; with
    --idle-s also a step policy with an alarm, which takes it down to the minimum when nobody asks.
    """
    platform = find_platform(url)
    with told():
        identity = _identity(platform, name, variant)
        if is_describing:
            _describe(platform, identity, as_json=as_json)
        elif is_off:
            click.echo(_switch_off(platform, identity, name))
        else:
            if minimum is None or maximum is None:
                raise UserFailed("Both --min and --max are wanted; --describe shows what is set, --off ends it.")
            if minimum > maximum:
                raise UserFailed(f"--min is {minimum} and --max {maximum}; wanted: --min not above --max.")
            _refuse_host(platform, name, identity)
            _register(platform, identity, minimum=minimum, maximum=maximum, target=target, idle_s=idle_s)
            click.echo(
                f"{name} is scaled between {minimum} and {maximum}, {target:g} requests at a time for each. "
                f"`headrace scale {name} --describe` tells what happens."
            )


def watched(identity: dict[str, str], period_s: int) -> list[dict[str, Any]]:
    """
    What an idle alarm looks at: whichever is more of the requests under way and those that have ended.

    The first alone would overlook short requests, as it is looked at once a second; the second alone long ones.
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


def tracking(identity: dict[str, str], target: float) -> dict[str, Any]:
    """A target-tracking configuration on requests at a time."""
    kind = (
        "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
        if identity["ScalableDimension"] == _COMPONENT
        else "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    )
    return {
        "TargetValue": target,
        "PredefinedMetricSpecification": {"PredefinedMetricType": kind},
        "ScaleOutCooldown": 30,
        "ScaleInCooldown": 120,
    }


def _identity(platform: Platform, name: str, variant: str | None) -> dict[str, str]:
    """
    Which scalable target is meant by a name: a variant of an endpoint, else a component.

    Raises:
        UserFailed: there is neither, or the endpoint has several variants.
    """
    from botocore.exceptions import ClientError

    try:
        variants = [
            one["VariantName"] for one in platform.sagemaker.describe_endpoint(EndpointName=name)["ProductionVariants"]
        ]
    except ClientError as error:
        if not is_not_found(error):
            raise
        return _component_identity(platform, name)
    if variant is None and len(variants) > 1:
        raise UserFailed(f"{name} has the variants {', '.join(variants)}; say which with --variant.")
    chosen = variant or variants[0]
    if chosen not in variants:
        raise UserFailed(f"{name} has no variant {chosen}. It has: {', '.join(variants)}.")
    return _names(f"endpoint/{name}/variant/{chosen}", _VARIANT)


def _component_identity(platform: Platform, name: str) -> dict[str, str]:
    from botocore.exceptions import ClientError

    try:
        platform.sagemaker.describe_inference_component(InferenceComponentName=name)
    except ClientError as error:
        if is_not_found(error):
            raise UserFailed(
                f"There is no endpoint and no inference component called {name}. `headrace ls` lists them."
            ) from error
        raise
    return _names(f"inference-component/{name}", _COMPONENT)


def _refuse_host(platform: Platform, name: str, identity: dict[str, str]) -> None:
    """
    Refuse the host of inference components: each of them has a load of its own, and is scaled by itself.

    Raises:
        UserFailed: components stand on the endpoint; the text names them.
    """
    if identity["ScalableDimension"] != _VARIANT:
        return
    found = platform.sagemaker.list_inference_components(EndpointNameEquals=name, SortBy="Name", SortOrder="Ascending")
    names = [one["InferenceComponentName"] for one in found["InferenceComponents"]]
    if names:
        raise UserFailed(
            f"The models of {name} are inference components, and each is scaled by itself: headrace scale {names[0]} … "
            f"(there are {', '.join(names)}). Instances follow with ManagedInstanceScaling."
        )


def _refuse_twin(platform: Platform, client: Any, identity: dict[str, str], target: float) -> None:
    """
    Somebody's own policy tracks the same metric: only one may, and theirs is not replaced, nor are its bounds.

    Raises:
        UserFailed: there is one; the text names it.
    """
    key, metric = "TargetTrackingScalingPolicyConfiguration", "PredefinedMetricSpecification"
    wanted = tracking(identity, target)[metric]
    for policy in client.describe_scaling_policies(**identity)["ScalingPolicies"]:
        if policy["PolicyName"] != LOAD_POLICY and policy.get(key, {}).get(metric) == wanted:
            raise UserFailed(
                f"The policy {policy['PolicyName']} tracks {wanted['PredefinedMetricType']} of "
                f"{identity['ResourceId']} already, and nothing was changed. Delete it first: "
                f"aws application-autoscaling delete-scaling-policy --policy-name {policy['PolicyName']} "
                f"{_as_flags(platform, identity)}"
            )


def _names(resource_id: str, dimension: str) -> dict[str, str]:
    return {"ServiceNamespace": "sagemaker", "ResourceId": resource_id, "ScalableDimension": dimension}


def _register(
    platform: Platform, identity: dict[str, str], *, minimum: int, maximum: int, target: float, idle_s: int | None
) -> None:
    client, cloudwatch = platform.client("application-autoscaling"), platform.client("cloudwatch")
    _refuse_twin(platform, client, identity, target)
    client.register_scalable_target(**identity, MinCapacity=minimum, MaxCapacity=maximum)
    client.put_scaling_policy(
        **identity,
        PolicyName=LOAD_POLICY,
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration=tracking(identity, target),
    )
    alarm = _idle_alarm(identity)
    if idle_s is None:
        _drop_idle(client, cloudwatch, identity)
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
        AlarmName=alarm,
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


def _drop_idle(client: Any, cloudwatch: Any, identity: dict[str, str]) -> None:
    """Without --idle-s there shall be no idle policy, also if there was one."""
    cloudwatch.delete_alarms(AlarmNames=[_idle_alarm(identity)])
    _delete_policy(client, identity, IDLE_POLICY)


def _delete_policy(client: Any, identity: dict[str, str], name: str) -> None:
    """Also if there is none."""
    from botocore.exceptions import ClientError

    try:
        client.delete_scaling_policy(**identity, PolicyName=name)
    except ClientError as error:
        if error_of(error)[0] != "ObjectNotFoundException":
            raise


def _switch_off(platform: Platform, identity: dict[str, str], name: str) -> str:
    """
    Take away what `headrace scale` made, and the scalable target if nothing else hangs on it; tells what is left.

    Raises:
        UserFailed: it is not scaled, or only by what somebody else put there.
    """
    client = platform.client("application-autoscaling")
    made, left = _policies_and_schedules(client, identity)
    if not left:
        platform.client("cloudwatch").delete_alarms(AlarmNames=[_idle_alarm(identity)])
        _deregister(client, identity)
        return f"{name} is not scaled any more."
    kept = (
        f"Left is what `headrace scale` did not make: {', '.join(left)}. To end that too: "
        f"aws application-autoscaling deregister-scalable-target {_as_flags(platform, identity)}"
    )
    if not made:
        raise UserFailed(f"`headrace scale` has no policy on {identity['ResourceId']}, and nothing was changed. {kept}")
    platform.client("cloudwatch").delete_alarms(AlarmNames=[_idle_alarm(identity)])
    for policy in made:
        _delete_policy(client, identity, policy)
    return f"{name} is not scaled by `headrace scale` any more; its bounds stay. {kept}"


def _as_flags(platform: Platform, identity: dict[str, str]) -> str:
    """Which platform and which target, for the AWS CLI."""
    return (
        f"--endpoint-url {platform.url} --service-namespace {identity['ServiceNamespace']} "
        f"--resource-id {identity['ResourceId']} --scalable-dimension {identity['ScalableDimension']}"
    )


def _policies_and_schedules(client: Any, identity: dict[str, str]) -> tuple[list[str], list[str]]:
    """Names of the policies that `headrace scale` made, and what else there is, in words."""
    pages = client.get_paginator("describe_scaling_policies").paginate(**identity)
    policies = [one["PolicyName"] for page in pages for one in page["ScalingPolicies"]]
    pages = client.get_paginator("describe_scheduled_actions").paginate(**identity)
    schedules = [one["ScheduledActionName"] for page in pages for one in page["ScheduledActions"]]
    own = (LOAD_POLICY, IDLE_POLICY)
    others = [f"policy {name}" for name in policies if name not in own]
    return [name for name in policies if name in own], [*others, *(f"scheduled action {name}" for name in schedules)]


def _deregister(client: Any, identity: dict[str, str]) -> None:
    from botocore.exceptions import ClientError

    try:
        client.deregister_scalable_target(**identity)
    except ClientError as error:
        if error_of(error)[0] == "ObjectNotFoundException":
            raise UserFailed(f"{identity['ResourceId']} is not scaled.") from error
        raise


def _describe(platform: Platform, identity: dict[str, str], *, as_json: bool) -> None:
    client = platform.client("application-autoscaling")
    resource = {"ServiceNamespace": "sagemaker", "ResourceId": identity["ResourceId"]}
    targets = client.describe_scalable_targets(
        ServiceNamespace="sagemaker",
        ResourceIds=[identity["ResourceId"]],
        ScalableDimension=identity["ScalableDimension"],
    )["ScalableTargets"]
    policies = client.describe_scaling_policies(**resource)["ScalingPolicies"]
    activities = client.describe_scaling_activities(**resource, MaxResults=_NUM_SHOWN, IncludeNotScaledActivities=True)[
        "ScalingActivities"
    ]
    if as_json:
        found = {"ScalableTargets": targets, "ScalingPolicies": policies, "ScalingActivities": activities}
        click.echo(json.dumps(found, indent=2, default=str))
        return
    if not targets:
        click.echo(f"{identity['ResourceId']} is not scaled. `headrace scale NAME --min 1 --max 4` begins it.")
        return
    names = [alarm["AlarmName"] for policy in policies for alarm in policy["Alarms"]]
    click.echo(
        report(
            targets[0],
            counts=_counts(platform, identity["ResourceId"]),
            policies=policies,
            alarms=_alarm_states(platform, names),
            activities=activities,
            now=datetime.now(UTC),
        )
    )


def _counts(platform: Platform, resource_id: str) -> tuple[int, int]:
    """How many serve, and how many are wanted."""
    kind, name, *rest = resource_id.split("/")
    if kind == "inference-component":
        found = platform.sagemaker.describe_inference_component(InferenceComponentName=name)["RuntimeConfig"]
        return found["CurrentCopyCount"], found["DesiredCopyCount"]
    variants = platform.sagemaker.describe_endpoint(EndpointName=name)["ProductionVariants"]
    variant = next(one for one in variants if one["VariantName"] == rest[-1])
    return variant["CurrentInstanceCount"], variant["DesiredInstanceCount"]


def _alarm_states(platform: Platform, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    found = platform.client("cloudwatch").describe_alarms(AlarmNames=names)["MetricAlarms"]
    return {alarm["AlarmName"]: alarm["StateValue"] for alarm in found}
