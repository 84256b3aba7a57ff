"""The start of a deployment: which revisions it has, and how many copies the new one begins with."""

from types import SimpleNamespace

import pytest

from headrace.platform.control.model.component import ComponentRevision
from headrace.platform.control.model.workload import Progress, Stage, State
from headrace.platform.control.planning.deployment import start_deployment


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
