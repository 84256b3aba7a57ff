"""
Inference experiments: a shadow variant on an endpoint for a time. Pure.

    Creating ──> Created ──start time──> Starting ──> Running ──end time, stop──> Stopping ──> Completed | Cancelled
                                                      │    ^
                                                      └ Updating

An experiment deploys revisions of its endpoint: with the shadow variant, and at its end those that its stop asks for.
Source: SageMaker API reference, DescribeInferenceExperiment.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from headrace.platform.control.model.endpoint import (
    PRODUCTION,
    SHADOWS,
    EndpointRevision,
    initial_capacity,
    model_name_of,
    variant_configs,
)
from headrace.platform.state.records import Json, Kind, Record, RecordPart
from headrace.serving.wire.aws.errors import validation_error

EndState = Literal["Completed", "Cancelled"]
ExperimentState = Literal[
    "Creating", "Created", "Starting", "Running", "Updating", "Stopping", "Completed", "Cancelled"
]
ENDED: Final[frozenset[ExperimentState]] = frozenset({"Completed", "Cancelled"})
CAPACITY_MEMBERS: Final = frozenset({"InitialVariantWeight", "InitialInstanceCount"})
_ENDS: Final = frozenset({("Retain", "Remove"), ("Retain", "Retain"), ("Remove", "Promote")})
"""The actions for the production variant and the shadow variant that leave one production variant."""
_MAX_PREFIX_CHARACTERS: Final = 48
"""Names of endpoint configurations have at most 63."""


class StopRequest(RecordPart, frozen=True, kw_only=True):
    """The request to stop an experiment, with the members of StopInferenceExperiment."""

    actions: dict[str, str]
    """Actions by variant."""
    variants: list[Json] = msgspec.field(default_factory=list)
    """`DesiredModelVariants`."""
    state: EndState = "Cancelled"
    reason: str = ""


class ExperimentSpec(RecordPart, frozen=True, kw_only=True):
    members: Json
    """CreateInferenceExperiment's members, with the changes of updates; `Schedule` has both times."""
    endpoint_uid: str
    changes: int = 0
    """Number of updates."""
    stop: StopRequest | None = None

    @property
    def source(self) -> str:
        """Name of the production variant."""
        return str(self.members["ShadowModeConfig"]["SourceModelVariantName"])

    @property
    def shadow(self) -> str:
        return str(self.members["ShadowModeConfig"]["ShadowModelVariants"][0]["ShadowModelVariantName"])


class ExperimentStatus(RecordPart, frozen=True, kw_only=True):
    state: ExperimentState = "Creating"
    changes: int = 0
    """Number of updates that have been deployed."""
    original: EndpointRevision | None = None
    """The endpoint's revision before the experiment."""
    generation: int | None = None
    """The endpoint's generation that the state waits for; None: it has not been requested yet."""
    ended_s: float | None = None
    reason: str = ""


ExperimentRecord = Record[ExperimentSpec, ExperimentStatus]
INFERENCE_EXPERIMENT: Final = Kind("inference-experiment", ExperimentSpec, ExperimentStatus)


def visible_experiment_state(record: ExperimentRecord, now_s: float) -> ExperimentState:
    """Return the state to show: it reflects a request before the loop has acted on it."""
    spec, state = record.spec, record.status.state
    if state in ("Creating", "Created", "Running") and spec.stop is not None:
        return "Stopping"
    if state == "Created" and now_s >= spec.members["Schedule"]["StartTime"]:
        return "Starting"
    if state == "Running" and spec.changes != record.status.changes:
        return "Updating"
    return state


def wanted_revision(
    record: ExperimentRecord, original: EndpointRevision, models: Mapping[str, Json]
) -> EndpointRevision:
    """Return the endpoint's revision that the experiment's state asks for; its number is the original's."""
    if record.status.state == "Stopping":
        return _end_revision(record, original, models)
    return experiment_revision(record.spec, original, models, prefix=config_prefix(record))


def experiment_revision(
    spec: ExperimentSpec, original: EndpointRevision, models: Mapping[str, Json], *, prefix: str = ""
) -> EndpointRevision:
    """
    Return the revision with the shadow variant; the name of its configuration begins with `prefix`.

    Raises `AwsError`: the endpoint has no such production variant.
    """
    members = spec.members
    (before,) = [variant for variant in original.config[PRODUCTION] if variant["VariantName"] == spec.source] or [None]
    if before is None or len(original.config[PRODUCTION]) > 1:
        names = ", ".join(variant["VariantName"] for variant in original.config[PRODUCTION])
        raise validation_error(
            f"SourceModelVariantName is {spec.source}; expected the only production variant of the endpoint, which "
            f"has: {names}."
        )
    percentage = members["ShadowModeConfig"]["ShadowModelVariants"][0]["SamplingPercentage"]
    given = _by_name(members["ModelVariants"])
    source = {**(_variant(given[spec.source], before) if spec.source in given else before), "InitialVariantWeight": 1.0}
    shadow = {**_variant(given[spec.shadow]), "InitialVariantWeight": percentage / 100}
    config = {**original.config, PRODUCTION: [source], SHADOWS: [shadow]}
    if storage := members.get("DataStorageConfig"):
        config["DataCaptureConfig"] = {
            "EnableCapture": True,
            "InitialSamplingPercentage": 100,
            "DestinationS3Uri": storage["Destination"],
            "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
            **({"KmsKeyId": storage["KmsKey"]} if "KmsKey" in storage else {}),
            **({"CaptureContentTypeHeader": storage["ContentType"]} if "ContentType" in storage else {}),
        }
    if "KmsKey" in members:
        config["KmsKeyId"] = members["KmsKey"]
    return _revision(config, f"{prefix}{spec.changes}", original, models)


def _end_revision(record: ExperimentRecord, original: EndpointRevision, models: Mapping[str, Json]) -> EndpointRevision:
    """Return the revision that is left when the experiment has ended."""
    spec, stop = record.spec, record.spec.stop
    actions, desired = end_actions(spec), _by_name(stop.variants if stop is not None else ())
    if actions == ("Retain", "Remove") and not desired:
        return original
    during = experiment_revision(spec, original, models, prefix=config_prefix(record))
    if actions == ("Retain", "Retain") and not desired:
        return during
    (source,), (shadow,) = during.config[PRODUCTION], during.config[SHADOWS]
    source, shadow = (_variant(desired.get(each["VariantName"]), each) for each in (source, shadow))
    base = during.config if actions[1] == "Retain" else original.config
    config = {name: value for name, value in base.items() if name != SHADOWS}
    config[PRODUCTION] = [{**shadow, "InitialVariantWeight": 1.0} if actions[1] == "Promote" else source]
    if actions[1] == "Retain":
        config[SHADOWS] = [shadow]
    return _revision(config, f"{config_prefix(record)}end", original, models)


def end_actions(spec: ExperimentSpec) -> tuple[str, str]:
    """Return the actions for the production and the shadow variant at the end. Raises `AwsError`: not these two."""
    asked = {} if spec.stop is None else spec.stop.actions
    actions = asked.get(spec.source, "Retain"), asked.get(spec.shadow, "Remove")
    if unknown := asked.keys() - {spec.source, spec.shadow}:
        raise validation_error(
            f"ModelVariantActions has {', '.join(sorted(unknown))}; expected {spec.source} or {spec.shadow}."
        )
    if actions not in _ENDS:
        raise validation_error(
            f"ModelVariantActions are {actions[0]} for {spec.source} and {actions[1]} for {spec.shadow}; expected "
            "Retain for the production variant with Remove or Retain for the shadow variant, or Remove with Promote."
        )
    return actions


def config_prefix(record: ExperimentRecord) -> str:
    """Return the beginning of the names of an experiment's endpoint configurations."""
    return f"{record.name[:_MAX_PREFIX_CHARACTERS]}-{record.uid[:8]}-"


def is_same_but_capacities(config: Json, other: Json) -> bool:
    """Return whether two configurations have the same variants, apart from weights and counts, and their names."""
    return _layout(config) == _layout(other)


def _layout(config: Json) -> Json:
    groups = {
        group: [
            {name: value for name, value in variant.items() if name not in CAPACITY_MEMBERS}
            for variant in config.get(group) or ()
        ]
        for group in (PRODUCTION, SHADOWS)
    }
    return {**{name: value for name, value in config.items() if name != "EndpointConfigName"}, **groups}


def _by_name(variants: Iterable[Json]) -> dict[str, Json]:
    return {variant["VariantName"]: variant for variant in variants}


def _variant(given: Json | None, before: Json | None = None) -> Json:
    """Return the variant of a configuration for a `ModelVariantConfig`; None: as it was before."""
    before = before or {}
    if given is None:
        return before
    infrastructure = given["InfrastructureConfig"]["RealTimeInferenceConfig"]
    return {
        **{name: value for name, value in before.items() if name != "InstancePools"},
        "VariantName": given["VariantName"],
        "ModelName": given["ModelName"],
        "InstanceType": infrastructure["InstanceType"],
        "InitialInstanceCount": infrastructure["InstanceCount"],
    }


def _revision(config: Json, name: str, original: EndpointRevision, models: Mapping[str, Json]) -> EndpointRevision:
    config = {**config, "EndpointConfigName": name}
    variants = variant_configs(config)
    known = {**original.models, **models}
    return EndpointRevision(
        number=original.number,
        config=config,
        models={model: known[model] for variant in variants if (model := model_name_of(variant)) is not None},
        capacities={variant["VariantName"]: initial_capacity(variant) for variant in variants},
    )
