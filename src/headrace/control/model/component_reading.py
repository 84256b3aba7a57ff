"""The record of a component, read and checked. Pure. See `control.reading`."""

from headrace.control.api.component_specs import specification_of
from headrace.control.model.density import read_density
from headrace.control.model.progress import EndpointView
from headrace.control.model.reading import UnreadableRecord, read_deployed, want
from headrace.control.model.version import Version
from headrace.control.planning.placement import read_need, read_strategy
from headrace.state.records import RawRecord


def read_component(record: RawRecord) -> EndpointView:
    """
    Understand a component's record.

    Raises:
        UnreadableRecord: something in it is missing, or is not what it should be.
    """

    def check(view: EndpointView) -> None:
        for version in (view.version, *view.versions.values()):
            _check_version(version)
        spec = record.spec
        read_density(spec)
        for value in (spec["endpoint"], spec["endpoint_uid"], spec["request"]["VariantName"]):
            want(isinstance(value, str), "a text", value)

    return read_deployed(record, check)


def is_readable(record: RawRecord) -> bool:
    """Whether it can be understood."""
    try:
        read_component(record)
    except UnreadableRecord:
        return False
    return True


def endpoint_of(record: RawRecord) -> str:
    """Name of the endpoint, as far as it can be told."""
    return _text(record.spec.get("endpoint"))


def variant_of(record: RawRecord) -> str:
    """Name of the endpoint's variant, as far as it can be told."""
    request = record.spec.get("request")
    return _text(request.get("VariantName")) if isinstance(request, dict) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _check_version(version: Version) -> None:
    (variant,) = version.variants
    want(variant.model is not None, "a model", variant.model)
    specification = specification_of(version.raw)
    read_need(specification)
    read_strategy(specification)
