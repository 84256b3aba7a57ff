"""
The record of a component, read and checked. Pure.

A record may be one that this version of Headrace did not write, or that somebody has edited. Such a component fails,
and nothing else does: its endpoint and the other components on it go on.
"""

import msgspec

from headrace.control.components.placement import read_need, read_strategy
from headrace.control.components.specs import specification_of
from headrace.control.progress import EndpointView, view_endpoint
from headrace.control.store_access import rollback_alarms
from headrace.control.version import Version
from headrace.state.records import Record

_BROKEN = (LookupError, TypeError, ValueError, AttributeError, msgspec.ValidationError)
"""What reading JSON of another form raises."""


class UnreadableComponent(Exception):
    """The record is not one of a component; the message says so to whoever asks for the component."""


def read_component(record: Record) -> EndpointView:
    """
    Understand a component's record.

    Raises:
        UnreadableComponent: something in it is missing, or is not what it should be.
    """
    try:
        view = view_endpoint(record)
        for version in (view.version, *view.versions.values()):
            _check_version(version)
        _check(record, view)
    except _BROKEN as error:
        what = f"{type(error).__name__}: {error}"[:200]
        raise UnreadableComponent(
            f'The record of inference component "{record.name}" cannot be read ({what}). It was written by another '
            "version of Headrace, or changed by hand. Delete the component, and create it again."
        ) from error
    return view


def is_readable(record: Record) -> bool:
    """Whether it can be understood."""
    try:
        read_component(record)
    except UnreadableComponent:
        return False
    return True


def endpoint_of(record: Record) -> str:
    """Name of the endpoint, as far as it can be told."""
    return _text(record.spec.get("endpoint"))


def variant_of(record: Record) -> str:
    """Name of the endpoint's variant, as far as it can be told."""
    request = record.spec.get("request")
    return _text(request.get("VariantName")) if isinstance(request, dict) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _check_version(version: Version) -> None:
    (variant,) = version.variants
    _want(variant.model is not None, "a model", variant.model)
    specification = specification_of(version.raw)
    read_need(specification)
    read_strategy(specification)
    rollback_alarms(version.raw)


def _check(record: Record, view: EndpointView) -> None:
    spec = record.spec
    for value in (spec["endpoint"], spec["endpoint_uid"], spec["request"]["VariantName"]):
        _want(isinstance(value, str), "a text", value)
    _want(isinstance(view.asked, int), "a number", view.asked)
    ready = record.status.get("ready", {})
    _want(all(isinstance(number, int) for number in ready.values()), "numbers", ready)
    if view.progress is not None:
        for generation in (view.progress.stable, view.progress.target):
            _want(generation is None or generation in view.versions, "a version", generation)


def _want(is_so: bool, wanted: str, found: object) -> None:
    if not is_so:
        raise ValueError(f"{found!r} is not {wanted}")
