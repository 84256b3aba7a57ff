"""
How many copies a component has, and shall have. Pure, on records.

UpdateInferenceComponentRuntimeConfig, the autoscaler and the waker change it here.
"""

from headrace.control.model.density import with_density
from headrace.control.model.progress import EndpointView, State, ready_key, view_endpoint, visible_state
from headrace.control.model.version import Desired, Version, with_desired
from headrace.state.records import Json, RawRecord
from headrace.wire.aws.errors import AwsError, validation_error

MAX_COPIES = 100
"""Of one component. A mistyped count shall not fill the machine with processes."""
UPDATABLE = frozenset({State.IN_SERVICE, State.UPDATE_ROLLBACK_FAILED})


def serving_version(view: EndpointView) -> Version:
    """The version that serves, or the first one on its way."""
    progress = view.progress
    if progress is None:
        return view.version
    generation = progress.stable if progress.stable is not None else progress.target
    return view.versions[generation] if generation is not None else view.version


def desired_copies(record: RawRecord) -> int:
    """How many copies were asked for last."""
    (variant,) = view_endpoint(record).version.variants
    return variant.count


def current_copies(record: RawRecord) -> int:
    """How many copies serve."""
    view = view_endpoint(record)
    ready: dict[str, int] = record.status.get("ready", {})
    return sum(
        ready.get(ready_key(variant.name, generation), 0)
        for generation, version in view.versions.items()
        for variant in version.variants
    )


def is_updatable(record: RawRecord) -> bool:
    """Whether another number of copies may be asked for now."""
    view = view_endpoint(record)
    has_served = view.progress is not None and view.progress.stable is not None
    return has_served and visible_state(view) in UPDATABLE


def with_copies(record: RawRecord, copies: int, *, arn: str) -> Json:
    """
    The component's spec with another number of copies; write it with `store.update(record, spec=...)`.

    These copies are declared for the instances that there are now: an older ratio is dropped.

    Args:
        record: of the component.
        copies: 0 or more.
        arn: of the component, for the error's text.

    Raises:
        AwsError: the component is being changed, has failed, or would have too many copies.
    """
    refuse_many(copies)
    refuse_busy(record, arn)
    view = view_endpoint(record)
    current = serving_version(view)
    (variant,) = current.variants
    scaled = with_desired(current, {variant.name: Desired(weight=variant.weight, count=copies)})
    return {**with_density(record.spec, None), "asked": view.asked + 1, "version": scaled.raw}


def refuse_busy(record: RawRecord, arn: str) -> None:
    """
    Refuse to change a component that is being changed, or has failed.

    Raises:
        AwsError: ValidationException.
    """
    if is_updatable(record):
        return
    if visible_state(view_endpoint(record)) is State.FAILED:
        raise validation_error(f'Cannot update failed inference component "{arn}". Delete it, and create it again.')
    raise validation_error(f'Cannot update in-progress inference component "{arn}".')


def refuse_many(copies: int) -> None:
    """
    Refuse more copies than a component may have.

    Raises:
        AwsError: ResourceLimitExceeded.
    """
    if copies > MAX_COPIES:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The limit for the number of copies of an inference component is {MAX_COPIES}, and {copies} were asked "
            "for. Ask for fewer.",
        )
