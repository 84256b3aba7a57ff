"""
CreateInferenceExperiment and the other operations on inference experiments.

They only write what is requested; `loops.experiments` reads it from the store and updates the endpoint.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from headrace.platform.control.api.context import CallContext, list_page, without
from headrace.platform.control.api.definitions import check_shadow
from headrace.platform.control.model.definitions import MODEL
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord
from headrace.platform.control.model.experiment import (
    ENDED,
    INFERENCE_EXPERIMENT,
    ExperimentRecord,
    ExperimentSpec,
    ExperimentState,
    StopRequest,
    end_actions,
    experiment_revision,
    visible_experiment_state,
)
from headrace.platform.control.model.names import unreadable_message
from headrace.platform.control.model.workload import failure_reason, serving_revision, visible_state
from headrace.platform.state.records import Json, Record, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError, validation_error

_DAY_S: Final = 86_400.0
DEFAULT_DURATION_S: Final = 7 * _DAY_S
"""Source: SageMaker API reference, CreateInferenceExperiment, as the longest one."""
MAX_DURATION_S: Final = 30 * _DAY_S
_DEPLOYED_MEMBERS: Final = frozenset({"ModelVariants", "DataStorageConfig", "ShadowModeConfig"})


def create_experiment(context: CallContext, params: Json) -> Json:
    name = params["Name"]
    context.refuse_existing(INFERENCE_EXPERIMENT, name)
    endpoint = context.get(ENDPOINT, params["EndpointName"])
    for other in context.store.each(INFERENCE_EXPERIMENT):
        if isinstance(other, Record) and other.spec.endpoint_uid == endpoint.uid and other.status.state not in ENDED:
            raise AwsError(
                "ResourceInUse", f"Endpoint {endpoint.name} is used by the inference experiment {other.name}. Stop it."
            )
    schedule = {"StartTime": context.now_s, **(params.get("Schedule") or {})}
    members = {
        **without(params, "Tags"),
        "EndpointName": endpoint.name,
        "Schedule": {"EndTime": schedule["StartTime"] + DEFAULT_DURATION_S, **schedule},
    }
    spec = ExperimentSpec(members=members, endpoint_uid=endpoint.uid)
    _check(context, spec, endpoint)
    return {"InferenceExperimentArn": context.create(INFERENCE_EXPERIMENT, name, spec=spec, params=params)}


def describe_experiment(context: CallContext, params: Json) -> Json:
    record = _get(context, params["Name"])
    endpoint = context.store.find(ENDPOINT, record.spec.members["EndpointName"])
    metadata: Json = {"EndpointName": record.spec.members["EndpointName"]}
    if isinstance(endpoint, Record):
        metadata["EndpointConfigName"] = serving_revision(endpoint).config_name
        if reason := failure_reason(endpoint):
            metadata["FailureReason"] = reason
    if endpoint is not None:
        metadata["EndpointStatus"] = visible_state(endpoint).value
    return {
        **without(record.spec.members, "EndpointName", "Name", "ModelVariants"),
        **_summary(context, record),
        "Arn": context.arn(INFERENCE_EXPERIMENT, record.name),
        "EndpointMetadata": metadata,
        "ModelVariants": [
            {**variant, "Status": _variant_status(context, record, variant["VariantName"])}
            for variant in record.spec.members["ModelVariants"]
        ],
    }


def list_experiments(context: CallContext, params: Json) -> Json:

    def read(selection: Selection) -> Iterator[Json]:
        for record in context.store.each(INFERENCE_EXPERIMENT, selection):
            if isinstance(record, Record):
                yield _summary(context, record)

    return list_page(read, params, word="", member="InferenceExperiments")


def update_experiment(context: CallContext, params: Json) -> Json:
    record = _get(context, params["Name"])
    state = _require(context, record, "updated", "Created", "Running")
    schedule = params.get("Schedule") or {}
    before = record.spec.members["Schedule"]
    if state == "Running" and schedule.get("StartTime", before["StartTime"]) != before["StartTime"]:
        raise validation_error("The inference experiment is running: only the EndTime of its Schedule can be changed.")
    members = {**record.spec.members, **without(params, "Name"), "Schedule": {**before, **schedule}}
    changed = [name for name in _DEPLOYED_MEMBERS if members.get(name) != record.spec.members.get(name)]
    is_deployed = state == "Running" and bool(changed)
    spec = replace(record.spec, members=members, changes=record.spec.changes + is_deployed)
    _check(context, spec, context.get(ENDPOINT, members["EndpointName"]), record=record)
    context.store.update(record, spec=spec)
    return _arn(context, record)


def start_experiment(context: CallContext, params: Json) -> Json:
    record = _get(context, params["Name"])
    _require(context, record, "started", "Created")
    schedule = {**record.spec.members["Schedule"], "StartTime": context.now_s}
    spec = replace(record.spec, members={**record.spec.members, "Schedule": schedule})
    _check_schedule(context, schedule)
    context.store.update(record, spec=spec)
    return _arn(context, record)


def stop_experiment(context: CallContext, params: Json) -> Json:
    record = _get(context, params["Name"])
    _require(context, record, "stopped", "Created", "Running")
    stop = StopRequest(
        actions=params["ModelVariantActions"],
        variants=params.get("DesiredModelVariants") or [],
        state=params.get("DesiredState", "Cancelled"),
        reason=params.get("Reason", ""),
    )
    spec = replace(record.spec, stop=stop)
    actions = zip((spec.source, spec.shadow), end_actions(spec), strict=True)
    kept = {name for name, action in actions if action != "Remove"}
    for variant in stop.variants:
        if variant["VariantName"] not in kept:
            raise validation_error(
                f"DesiredModelVariants has {variant['VariantName']}; expected variants that stay: "
                f"{', '.join(sorted(kept))}."
            )
        context.get(MODEL, variant["ModelName"])
    context.store.update(record, spec=spec)
    return _arn(context, record)


def delete_experiment(context: CallContext, params: Json) -> Json:
    """Answer DeleteInferenceExperiment: remove the record; the endpoint keeps its variants."""
    record = _find(context, params["Name"])
    if isinstance(record, Record):
        _require(context, record, "deleted", "Created", *sorted(ENDED))
    context.store.remove(record)
    return _arn(context, record)


def _check(
    context: CallContext, spec: ExperimentSpec, endpoint: EndpointRecord, *, record: ExperimentRecord | None = None
) -> None:
    """Refuse an experiment that cannot be run on the endpoint."""
    _check_schedule(context, spec.members["Schedule"])
    names = [variant["VariantName"] for variant in spec.members["ModelVariants"]]
    if spec.shadow not in names or len(set(names)) < len(names) or set(names) - {spec.source, spec.shadow}:
        raise validation_error(
            f"ModelVariants are {', '.join(names)}; expected the shadow variant {spec.shadow} and, to change it, the "
            f"production variant {spec.source}, which are the names in ShadowModeConfig."
        )
    if spec.source == spec.shadow:
        raise validation_error(f"The production variant and the shadow variant are both {spec.source}.")
    percentage = spec.members["ShadowModeConfig"]["ShadowModelVariants"][0]["SamplingPercentage"]
    if percentage < 0:
        raise validation_error(f"SamplingPercentage is {percentage}; expected 0 to 100.")
    models = {
        name: context.get(MODEL, name).spec.deployed()
        for name in {variant["ModelName"] for variant in spec.members["ModelVariants"]}
    }
    original = serving_revision(endpoint) if record is None else record.status.original or serving_revision(endpoint)
    revision = experiment_revision(spec, original, models)
    check_shadow(revision.config, revision.models)


def _check_schedule(context: CallContext, schedule: Json) -> None:
    start_s, end_s = schedule["StartTime"], schedule["EndTime"]
    if end_s <= max(start_s, context.now_s):
        raise validation_error("The EndTime of the Schedule has passed, or is not after its StartTime.")
    if end_s - start_s > MAX_DURATION_S:
        raise validation_error(
            f"The Schedule has {(end_s - start_s) / _DAY_S:.1f} days; expected at most {MAX_DURATION_S / _DAY_S:.0f}."
        )


def _require(context: CallContext, record: ExperimentRecord, done: str, *states: ExperimentState) -> ExperimentState:
    """Refuse an operation in other states than these."""
    state = visible_experiment_state(record, context.now_s)
    if state not in states:
        raise AwsError(
            "ConflictException",
            f"Inference experiment {record.name} is {state} and cannot be {done}; expected {' or '.join(states)}.",
        )
    return state


def _summary(context: CallContext, record: ExperimentRecord) -> Json:
    """Return the members that Describe and List share."""
    members, status = record.spec.members, record.status
    reason = status.reason or (record.spec.stop.reason if record.spec.stop is not None else "")
    ended = {} if status.ended_s is None else {"CompletionTime": status.ended_s}
    return {
        **{name: members[name] for name in ("Type", "Schedule", "Description", "RoleArn") if name in members},
        **({"StatusReason": reason} if reason else {}),
        **ended,
        "Name": record.name,
        "Status": visible_experiment_state(record, context.now_s),
        "CreationTime": record.created_s,
        "LastModifiedTime": record.modified_s,
    }


def _variant_status(context: CallContext, record: ExperimentRecord, variant: str) -> str:
    state = visible_experiment_state(record, context.now_s)
    is_shadow = variant == record.spec.shadow
    action = end_actions(record.spec)[is_shadow]
    if state in ("Creating", "Created", "Starting"):
        return "Creating" if is_shadow else "InService"
    if state == "Stopping" and action == "Remove":
        return "Deleting"
    if state in ENDED and action == "Remove":
        return "Deleted"
    return "Updating" if state == "Updating" else "InService"


def _arn(context: CallContext, record: ExperimentRecord | Unreadable) -> Json:
    return {"InferenceExperimentArn": context.arn(INFERENCE_EXPERIMENT, record.name)}


def _find(context: CallContext, name: str) -> ExperimentRecord | Unreadable:
    record = context.store.find(INFERENCE_EXPERIMENT, name)
    if record is None:
        raise AwsError("ResourceNotFound", f"Inference experiment {name} does not exist")
    return record


def _get(context: CallContext, name: str) -> ExperimentRecord:
    record = _find(context, name)
    if isinstance(record, Unreadable):
        raise validation_error(unreadable_message(record))
    return record
