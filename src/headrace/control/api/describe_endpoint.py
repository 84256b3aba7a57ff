"""DescribeEndpoint. Reads nothing but the endpoint's own record: configuration and models may be gone."""

from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.api.endpoints import modified_s
from headrace.control.model.kinds import ENDPOINT
from headrace.control.model.progress import EndpointView, Stage, State, ready_key, view_endpoint, visible_state
from headrace.control.model.reading import UnreadableRecord, read_endpoint, unreadable_status
from headrace.control.model.version import Variant, Version
from headrace.control.planning.rollout import Deployment, traffic_fraction
from headrace.control.planning.worker_specs import container_of
from headrace.state.records import Json, RawRecord

_MAX_MESSAGE_CHARACTERS = 1024


def describe_endpoint(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeEndpoint."""
    record = context.get(ENDPOINT, params["EndpointName"])
    try:
        return _of_view(context, record, read_endpoint(record))
    except UnreadableRecord as error:
        return {
            "EndpointName": record.name,
            "EndpointArn": context.arn(ENDPOINT, record.name),
            "EndpointStatus": unreadable_status(record),
            "FailureReason": str(error),
            "CreationTime": record.created_s,
            "LastModifiedTime": record.modified_s,
        }


def _of_view(context: CallContext, record: RawRecord, view: EndpointView) -> dict[str, Any]:
    state = visible_state(view)
    current = _current(view)
    answer: dict[str, Any] = {
        "EndpointName": record.name,
        "EndpointArn": context.arn(ENDPOINT, record.name),
        "EndpointConfigName": current.config_name,
        "ProductionVariants": [_summary(one, current, view, record, state) for one in current.variants],
        "EndpointStatus": state.value,
        "CreationTime": record.created_s,
        "LastModifiedTime": modified_s(record, view),
        **_of_config(current),
    }
    if reason := _failure_reason(view, state):
        answer["FailureReason"] = reason
    if current.raw.get("deployment"):
        answer["LastDeploymentConfig"] = current.raw["deployment"]
    pending = _pending(view, state)
    if pending is not None:
        answer["PendingDeploymentSummary"] = _pending_summary(pending, view, record, state)
    return answer


def capacities_of(record: RawRecord) -> dict[str, tuple[int, int]]:
    """Variant -> how many instances it has, and shall have; a serverless variant has none to count."""
    view = view_endpoint(record)
    state, current = visible_state(view), _current(view)
    return {
        one.name: _counts(one, current, view, record, state)
        for one in current.variants
        if "ServerlessConfig" not in _config_of(one, current)
    }


def _current(view: EndpointView) -> Version:
    """The version that serves, or the first one on its way."""
    progress = view.progress
    if progress is None:
        return view.version
    generation = progress.stable if progress.stable is not None else progress.target
    return view.versions[generation] if generation is not None else view.version


def _pending(view: EndpointView, state: State) -> Version | None:
    """The version that takes the place of the current one."""
    if state is not State.UPDATING:
        return None
    progress = view.progress
    if progress is None or progress.observed != view.asked:
        return view.version if view.version.generation != _current(view).generation else None
    return view.versions[progress.target] if progress.target is not None else None


def _failure_reason(view: EndpointView, state: State) -> str:
    progress = view.progress
    if progress is None or state is State.DELETING or progress.observed != view.asked:
        return ""
    return progress.failure_reason


def _summary(variant: Variant, version: Version, view: EndpointView, record: RawRecord, state: State) -> dict[str, Any]:
    """A `ProductionVariantSummary`."""
    config = _config_of(variant, version)
    is_host = variant.model is None
    current, desired = _counts(variant, version, view, record, state)
    summary: dict[str, Any] = {
        "VariantName": variant.name,
        "CurrentWeight": variant.weight if _is_up(state) else 0.0,
        "DesiredWeight": _desired_of(variant, version, view).weight,
        "CurrentInstanceCount": current,
        "DesiredInstanceCount": desired,
    }
    if not is_host:
        summary["DeployedImages"] = [_image(variant, version, view.created_s)]
    if "ServerlessConfig" in config:
        summary |= dict.fromkeys(("CurrentServerlessConfig", "DesiredServerlessConfig"), config["ServerlessConfig"])
        del summary["CurrentInstanceCount"], summary["DesiredInstanceCount"]
    summary |= {name: config[name] for name in ("ManagedInstanceScaling", "RoutingConfig") if name in config}
    if "InstancePools" in config:
        summary["InstancePools"] = [
            {
                "InstanceType": pool["InstanceType"],
                "CurrentInstanceCount": current if pool["InstanceType"] == variant.instance_type else 0,
            }
            for pool in config["InstancePools"]
        ]
    if status := _variant_status(variant, view, record, state):
        summary["VariantStatus"] = [status]
    return summary


def _is_up(state: State) -> bool:
    return state not in (State.CREATING, State.FAILED)


def _counts(variant: Variant, version: Version, view: EndpointView, record: RawRecord, state: State) -> tuple[int, int]:
    """How many instances of a variant there are, and shall be."""
    desired = _desired_of(variant, version, view)
    if variant.model is not None:
        return _ready_of(variant, version, record), desired.count
    hosts: list[Json] = record.status.get("instances", {}).get(variant.name, []) if _is_up(state) else []
    staying = sum(one.get("leaving_s") is None for one in hosts)
    return len(hosts), _desired_hosts(desired, _config_of(variant, version), staying)


def _ready_of(variant: Variant, version: Version, record: RawRecord) -> int:
    """Workers that serve."""
    ready: int = record.status.get("ready", {}).get(ready_key(variant.name, version.generation), 0)
    return ready


def _desired_hosts(desired: Variant, config: Json, staying: int) -> int:
    """Instances of a host of components: as many as were asked for, or as stay if they come and go by need."""
    is_managed = (config.get("ManagedInstanceScaling") or {}).get("Status") == "ENABLED"
    return staying if is_managed and staying else desired.instances


def _desired_of(variant: Variant, version: Version, view: EndpointView) -> Variant:
    """The variant with the weight and count that were asked for last."""
    if view.version.generation != version.generation:
        return variant
    return view.version.variant(variant.name) or variant


def _config_of(variant: Variant, version: Version) -> Json:
    configs: list[Json] = version.raw["config"]["ProductionVariants"]
    return next(one for one in configs if one["VariantName"] == variant.name)


def _image(variant: Variant, version: Version, resolved_s: float) -> dict[str, Any]:
    image = container_of(version.raw["models"][variant.model or ""])["Image"]
    return {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": resolved_s}


def _variant_status(variant: Variant, view: EndpointView, record: RawRecord, state: State) -> dict[str, Any] | None:
    """
    What the variant is doing, and what could not be honoured for it.

    SageMaker has no place for remarks on a variant in service: ours stand in the StatusMessage of an
    ActivatingTraffic, which no client acts upon.
    """
    notices = record.status.get("notices", {}).get(variant.name, [])
    words = {
        State.CREATING: "Creating",
        State.UPDATING: _updating_word(view),
        State.ROLLING_BACK: "Updating",
        State.DELETING: "Deleting",
    }
    word = words.get(state, "ActivatingTraffic" if notices and state is not State.FAILED else None)
    if word is None:
        return None
    status: dict[str, Any] = {"Status": word, "StartTime": modified_s(record, view)}
    if notices:
        text = "Not as on SageMaker: " + " ".join(notices)
        status["StatusMessage"] = text[:_MAX_MESSAGE_CHARACTERS]
    return status


def _updating_word(view: EndpointView) -> str:
    progress = view.progress
    if progress is None or progress.target is None or progress.observed != view.asked:
        return "Updating"
    return {Stage.PROVISIONING: "Updating", Stage.BAKING: "Baking", Stage.TERMINATING: "ActivatingTraffic"}[
        progress.stage
    ]


def _pending_summary(version: Version, view: EndpointView, record: RawRecord, state: State) -> dict[str, Any]:
    variants = []
    fraction = _fraction(view)
    for variant in version.variants:
        summary = _summary(variant, version, view, record, state)
        variants.append({**summary, "CurrentWeight": variant.weight * fraction, "InstanceType": variant.instance_type})
    return {
        "EndpointConfigName": version.config_name,
        "ProductionVariants": [{name: value for name, value in one.items() if value != ""} for one in variants],
        "StartTime": modified_s(record, view),
    }


def _fraction(view: EndpointView) -> float:
    if view.progress is None or view.progress.observed != view.asked:
        return 0.0
    return traffic_fraction(Deployment(progress=view.progress, versions=view.versions))


def _of_config(version: Version) -> dict[str, Any]:
    """Members of the configuration that DescribeEndpoint repeats."""
    config = version.raw["config"]
    repeated = {name: config[name] for name in ("AsyncInferenceConfig", "MetricsConfig") if name in config}
    if capture := config.get("DataCaptureConfig"):
        repeated["DataCaptureConfig"] = {
            "EnableCapture": capture.get("EnableCapture", False),
            "CaptureStatus": "Stopped",
            "CurrentSamplingPercentage": capture["InitialSamplingPercentage"],
            "DestinationS3Uri": capture["DestinationS3Uri"],
            "KmsKeyId": capture.get("KmsKeyId", ""),
        }
    return repeated
