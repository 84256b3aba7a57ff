"""
The record of an endpoint, read and checked. Pure.

`components.reading` does it for an inference component.

A record may be one that this version of Headrace did not write, or that somebody has edited. What it is of is shown as
failed and can be deleted, and nothing else notices.
"""

from collections.abc import Callable

import msgspec

from headrace.control.loops.store_access import rollback_alarms
from headrace.control.model.names import TITLES
from headrace.control.model.progress import EndpointView, State, view_endpoint
from headrace.control.planning.pool import HostInstance
from headrace.state.records import RawRecord

BROKEN = (LookupError, TypeError, ValueError, AttributeError, msgspec.ValidationError)
"""What reading JSON of another form raises."""


class UnreadableRecord(Exception):
    """A record is not what it should be; the message says so to whoever asks for what it is of."""


def read_endpoint(record: RawRecord) -> EndpointView:
    """
    Understand an endpoint's record.

    Raises:
        UnreadableRecord: something in it is missing, or is not what it should be.
    """
    return read_deployed(record)


def read_deployed(record: RawRecord, check: Callable[[EndpointView], None] | None = None) -> EndpointView:
    """
    Understand the record of an endpoint or a component; `check` raises one of `BROKEN` if more is wrong.

    Raises:
        UnreadableRecord: something in it is missing, or is not what it should be.
    """
    try:
        view = view_endpoint(record)
        _check(record, view)
        if check is not None:
            check(view)
    except BROKEN as error:
        what, title = f"{type(error).__name__}: {error}"[:200], TITLES[record.kind]
        raise UnreadableRecord(
            f'The record of {title} "{record.name}" cannot be read ({what}). It was written by another version of '
            f"Headrace, or changed by hand. Delete the {title.split()[-1]}, and create it again."
        ) from error
    return view


def is_readable(record: RawRecord) -> bool:
    """Whether an endpoint's record can be understood."""
    try:
        read_endpoint(record)
    except UnreadableRecord:
        return False
    return True


def unreadable_status(record: RawRecord) -> str:
    """`EndpointStatus` or `InferenceComponentStatus` of what has a record that cannot be understood."""
    return (State.FAILED if record.deleting_s is None else State.DELETING).value


def want(is_so: bool, wanted: str, found: object) -> None:
    """Raise ValueError unless something that was found is what was wanted."""
    if not is_so:
        raise ValueError(f"{found!r} is not {wanted}")


def _check(record: RawRecord, view: EndpointView) -> None:
    want(isinstance(view.asked, int), "a number", view.asked)
    for version in (view.version, *view.versions.values()):
        rollback_alarms(version.raw)
    ready = record.status.get("ready", {})
    want(all(isinstance(number, int) for number in ready.values()), "numbers", ready)
    if view.progress is not None:
        for generation in (view.progress.stable, view.progress.target):
            want(generation is None or generation in view.versions, "a version", generation)
    msgspec.convert(record.status.get("instances", {}), dict[str, list[HostInstance]])
