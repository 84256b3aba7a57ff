"""The instances of a variant in one pass: places for copies, growth, and when copies may be moved."""

from typing import Any

import pytest

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.component import INFERENCE_COMPONENT, ComponentRevision, ComponentSpec
from headrace.platform.control.model.endpoint import EndpointRevision, HostInstance
from headrace.platform.control.model.resources import Resources
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import Progress, State
from headrace.platform.control.planning.deployment import NO_CONDITIONS, Deployment
from headrace.platform.control.planning.instances import ComponentView, VariantInstances, variant_instances
from headrace.platform.control.planning.pool import Placed
from headrace.platform.state.records import Record
from tests.platform.control.planning.host_world import TYPE, component_config, managed
from tests.platform.control.planning.world import config, pass_context

NOW_S = 10_000.0
ONE, ALL, TOO_MANY = (Resources(accelerators=number) for number in (1.0, 4.0, 5.0))
"""Of the accelerators of an instance."""


def worker(name: str = "w", phase: WorkerPhase = WorkerPhase.READY, **members: Any) -> WorkerView:
    return WorkerView(name=name, variant="v", revision=1, created_s=0.0, phase=phase, **members)


def component(
    *workers: WorkerView,
    state: State | None = State.IN_SERVICE,
    copies: int = 1,
    deleting_s: float | None = None,
    places: str = "",
    name: str = "c",
    need: float = 1,
    **progress: Any,
) -> ComponentView:
    """Return a component whose copies are placed on instances: one letter of `places` for each of the workers."""
    asked = ComponentRevision(number=1, model={}, **component_config(need, count=copies))
    members = {"observed_generation": 1, "since_s": 0.0, "stable": 1, **progress}
    record = Record(
        kind=INFERENCE_COMPONENT,
        name=name,
        uid=f"uid-{name}",
        revision=1,
        spec=ComponentSpec(endpoint="e", endpoint_uid="u", generation=1, revision=asked),
        status=INFERENCE_COMPONENT.status(
            progress=None if state is None else Progress(state=state, **members), revisions={1: asked}
        ),
        created_s=0.0,
        modified_s=0.0,
        deleting_s=deleting_s,
    )
    placed = {
        worker.name: Placed(component=name, instance=place, need=Resources(accelerators=need))
        for worker, place in zip(workers, places, strict=False)
    }
    return ComponentView(record=record, workers=workers, placed=placed)


def pool(
    *components: ComponentView,
    instances: list[HostInstance] | None = None,
    state: State = State.IN_SERVICE,
    now_s: float = NOW_S,
    **variant: Any,
) -> VariantInstances:
    """Return the instances of variant `v` in one pass."""
    found = config(v=1)
    found["ProductionVariants"][0] = {
        "VariantName": "v",
        "InstanceType": TYPE,
        "InitialInstanceCount": 1,
        **managed(**variant),
    }
    revision = EndpointRevision(number=1, config=found, models={})
    host = Deployment(
        progress=Progress(observed_generation=1, state=state, since_s=0.0, stable=1), revisions={1: revision}
    )
    known = {} if instances is None else {"v": instances}
    (made,) = variant_instances(host, components, known, [], pass_context(now_s)).values()
    return made


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (component(worker()), True),
        (component(worker(), copies=2), False),
        (component(worker("a"), worker("b"), copies=1), True),
        (component(worker(draining_s=1.0)), False),
        (component(worker(phase=WorkerPhase.STARTING)), True),
        (component(worker(), state=State.UPDATING), False),
        (component(worker(), observed_generation=0), False),
        (component(state=State.FAILED, stable=None, target=1), True),
        (component(state=None), False),
        (component(state=State.UPDATING, deleting_s=1.0), True),
    ],
)
def test_a_component_is_at_rest_when_it_lacks_no_copy_that_had_a_place(view: ComponentView, *, expected: bool) -> None:
    assert view.is_at_rest == expected
    assert view.variant == "v"


def test_a_copy_is_placed_on_a_new_instance_if_the_rules_allow_one() -> None:
    made = pool(instances=[HostInstance(id="a")], most=2)
    assert [made.place("c", ALL, "SPREAD") for _ in range(3)] == ["a", "i1", None]
    assert not made.is_stuck
    made.accept_trial()
    assert [(copy.instance, copy.need) for copy in made.placed] == [("a", ALL), ("i1", ALL)]
    assert made.trial == []
    assert pool(instances=[HostInstance(id="a")]).place("c", TOO_MANY, "SPREAD") is None


def test_no_copy_is_placed_on_an_instance_that_is_being_emptied_which_then_stays() -> None:
    instances = [HostInstance(id="a"), HostInstance(id="b", leaving_s=1.0)]
    made = pool(instances=instances, most=4)
    assert made.leaving == {"b"}
    assert made.place("c", ALL, "SPREAD") == "a"
    assert not made.is_stuck
    assert made.place("c", ONE, "SPREAD") is None, "no instance is added while one is emptied"
    assert made.is_stuck
    assert [instance.leaving_s for instance in made.kept()] == [None, None]


def test_only_serving_copies_of_an_instance_that_is_being_emptied_leave() -> None:
    view = component(worker("x"), worker("y"), worker("z", draining_s=1.0), places="bab")
    made = pool(view, instances=[HostInstance(id="a"), HostInstance(id="b", leaving_s=1.0)])
    assert [copy.is_leaving for copy in made.mark_leaving(view)] == [True, False, False]


@pytest.mark.parametrize(("num_unplaced", "most", "expected"), [(2, 1, 2), (3, 1, 3), (4, 1, 3), (4, 2, 4), (9, 2, 7)])
def test_unplaced_copies_grow_into_the_room_that_there_is(num_unplaced: int, most: int, expected: int) -> None:
    view = component(worker(), places="a", num_unplaced=num_unplaced)
    made = pool(view, instances=[HostInstance(id="a")], most=most)
    found = made.growth(view)
    assert (found.growth, found.num_fitting) == (expected, expected)
    assert bool(found.no_room) == (expected < num_unplaced)
    assert made.trial == []


@pytest.mark.parametrize(
    ("view", "instances"),
    [
        (component(worker(), places="a"), [HostInstance(id="a")]),
        (component(worker(), places="a", num_unplaced=1, state=State.FAILED), [HostInstance(id="a")]),
        (component(worker(), places="a", num_unplaced=1, observed_generation=0), [HostInstance(id="a")]),
        (component(worker(), places="a", num_unplaced=1, copies=2), [HostInstance(id="a")]),
        (
            component(worker(), places="a", num_unplaced=1),
            [HostInstance(id="a"), HostInstance(id="b", leaving_s=1.0)],
        ),
    ],
)
def test_a_component_does_not_grow_while_something_else_changes(
    view: ComponentView, instances: list[HostInstance]
) -> None:
    assert pool(view, instances=instances).growth(view) == NO_CONDITIONS


def test_the_reason_for_no_room_says_whether_a_copy_fits_on_an_instance_at_all() -> None:
    made = pool(instances=[HostInstance(id="a")])
    assert made.no_room_reason(TOO_MANY).endswith(f"an instance of type {TYPE} has {made.whole}.")
    assert "There are 1 of at most 4 instances" in made.no_room_reason(ONE)


LEAVING = [HostInstance(id="a"), HostInstance(id="b", leaving_s=NOW_S - 100)]


def crashed(failed_s: float) -> WorkerView:
    return worker("x", WorkerPhase.EXITED, failed_s=failed_s)


@pytest.mark.parametrize(
    ("view", "begins", "goes_on"),
    [
        (component(worker(), places="a"), True, True),
        (component(worker(), worker("s", WorkerPhase.STARTING), places="aa", copies=2), False, True),
        (component(worker(), worker("e", WorkerPhase.EXITED), places="a"), True, True),
        (component(worker(), places="a", state=State.UPDATING), False, False),
        # A crash of late prevents the beginning, one since the beginning the rest.
        (component(worker(), crashed(NOW_S - 599), places="a"), False, True),
        (component(worker(), crashed(NOW_S - 600), places="a"), True, True),
        (component(worker(), crashed(NOW_S - 100), places="a"), False, False),
        (component(worker(), crashed(NOW_S - 101), places="a"), False, True),
    ],
)
def test_copies_move_while_everything_serves(view: ComponentView, *, begins: bool, goes_on: bool) -> None:
    settled = [HostInstance(id="a"), HostInstance(id="b")]
    assert pool(view, instances=settled).leaving == ({"b"} if begins else frozenset())
    assert pool(view, instances=LEAVING).leaving == ({"b"} if goes_on else frozenset())
    assert pool(view, instances=settled, state=State.UPDATING).leaving == frozenset()


def test_a_variant_begins_with_the_instances_that_were_asked_for_within_its_bounds() -> None:
    for least, most, expected in ((0, 4, 1), (2, 4, 2), (0, 0, 0)):
        made = pool(least=least, most=most)
        assert [(found.idle_s, found.changed_s) for found in made.instances] == [(NOW_S, NOW_S)] * expected
    assert variant_instances(None, [], {}, [], pass_context(NOW_S)) == {}


def test_copies_that_are_going_will_make_room() -> None:
    def is_freeing(*workers: WorkerView, places: str = "aa") -> bool:
        return pool(component(*workers, places=places), instances=[HostInstance(id="a")]).is_freeing

    assert not is_freeing(worker())
    assert is_freeing(worker(), worker("x", draining_s=1.0))
    assert not is_freeing(worker(), worker("x", WorkerPhase.EXITED, draining_s=1.0))
    assert not is_freeing(worker(), worker("x", draining_s=1.0), places="a")
