"""The start of a deployment: which revisions it has, and how many copies the new one begins with."""

from types import SimpleNamespace

import pytest

from headrace.platform.control.model.component import ComponentRevision
from headrace.platform.control.model.workload import Progress, Stage, State
from headrace.platform.control.planning.deployment import (
    NO_CONDITIONS,
    ExternalConditions,
    start_deployment,
    with_count,
)


def revision(number, copies):
    specification = {"ModelName": "m", "ComputeResourceRequirements": {"MinMemoryRequiredInMb": 1024}}
    return ComponentRevision(
        number=number,
        variant="v",
        instance_type="ml.g5.xlarge",
        specification=specification,
        model={"ModelName": "m", "PrimaryContainer": {}},
        copies=copies,
    )


def record(asked, *, stable, num_unplaced):
    progress = Progress(
        observed_generation=1, state=State.IN_SERVICE, since_s=0.0, stable=stable.number, num_unplaced=num_unplaced
    )
    status = SimpleNamespace(progress=progress, revisions={stable.number: stable})
    return SimpleNamespace(spec=SimpleNamespace(revision=asked, generation=2), status=status)


@pytest.mark.parametrize(
    ("num_unplaced", "copies", "expected"),
    [(0, 3, (3, 0)), (0, 1, (1, 0)), (2, 3, (2, 1)), (2, 1, (1, 0))],
)
def test_an_update_begins_with_the_copies_that_had_a_place_if_some_had_none(num_unplaced, copies, expected):
    deployment = start_deployment(record(revision(2, copies), stable=revision(1, 2), num_unplaced=num_unplaced), 9.0)
    assert (deployment.target.num_workers, deployment.progress.num_unplaced) == expected
    assert (deployment.progress.state, deployment.progress.stage) == (State.UPDATING, Stage.PROVISIONING)
    assert deployment.stable == revision(1, 2)


def test_another_number_of_copies_of_the_same_revision_is_no_new_one():
    deployment = start_deployment(record(revision(1, 5), stable=revision(1, 2), num_unplaced=1), 9.0)
    assert (deployment.target, deployment.progress.num_unplaced) == (None, 0)
    assert deployment.stable.num_workers == 5


def of(progress, *revisions):
    """Return a record whose last requested revision is the last of these."""
    status = SimpleNamespace(progress=progress, revisions={found.number: found for found in revisions})
    return SimpleNamespace(spec=SimpleNamespace(revision=revisions[-1], generation=2), status=status)


def test_a_first_deployment_creates_what_was_requested():
    deployment = start_deployment(of(None, revision(1, 2)), 9.0)
    assert deployment.progress == Progress(
        observed_generation=2, state=State.CREATING, since_s=9.0, target=1, stage_since_s=9.0
    )
    assert (deployment.stable, deployment.target) == (None, revision(1, 2))


@pytest.mark.parametrize(
    "progress",
    [
        Progress(observed_generation=2, state=State.IN_SERVICE, since_s=1.0, stable=1),
        Progress(observed_generation=2, state=State.UPDATING, since_s=1.0, stable=1, target=2, step=1),
        # Nothing has ever served: what was requested since cannot replace it.
        Progress(observed_generation=1, state=State.FAILED, since_s=1.0, target=1),
    ],
)
def test_a_deployment_goes_on_while_nothing_else_is_requested(progress):
    found = start_deployment(of(progress, revision(1, 2), revision(2, 2)), 9.0)
    assert (found.progress, found.revisions) == (progress, {1: revision(1, 2), 2: revision(2, 2)})


def test_a_new_request_starts_from_the_revision_that_serves_and_forgets_the_last_failure():
    before = Progress(
        observed_generation=1,
        state=State.IN_SERVICE,
        since_s=1.0,
        stable=1,
        stage=Stage.TERMINATING,
        step=3,
        failure_reason="Full.",
        num_unplaced=1,
    )
    update = start_deployment(of(before, revision(1, 2), revision(2, 2)), 9.0)
    assert update.progress == Progress(
        observed_generation=2, state=State.UPDATING, since_s=9.0, stable=1, target=2, stage_since_s=9.0
    )
    scaling = start_deployment(record(revision(1, 5), stable=revision(1, 2), num_unplaced=1), 9.0).progress
    assert (scaling.state, scaling.since_s, scaling.fallback) == (State.UPDATING, 9.0, revision(1, 2).desired)


def test_no_condition_speaks_against_a_deployment_by_default():
    assert ExternalConditions(no_room="", num_fitting=0, growth=0, alarm="") == NO_CONDITIONS


def test_a_revision_keeps_all_but_its_copies_with_another_count():
    assert with_count(revision(1, 2), 5) == revision(1, 5)
