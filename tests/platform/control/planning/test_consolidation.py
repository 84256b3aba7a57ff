"""Copies move to fewer instances when others have room for them, without a failed request."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.platform.control.model.endpoint import EndpointStatus
from headrace.platform.control.model.workload import State, Workload
from headrace.platform.control.planning.pool import (
    Placed,
    PoolRules,
    Resources,
    Strategy,
    Tenant,
    choose_instance,
    instances_to_empty,
    pool_rules,
)
from tests.platform.control.planning.host_world import (
    COOLDOWN_MIN,
    WHOLE,
    HostWorld,
    component_config,
    managed,
    placed_of,
)
from tests.platform.control.planning.world import BROKEN, GOOD, Behaviour

COOLDOWN_S = 60.0 * COOLDOWN_MIN


def thinned(world: HostWorld) -> HostWorld:
    """Two instances with two copies each, of two components that were larger."""
    world.add("a", 4)
    world.add("b", 4)
    world.settle()
    assert len(world.instances) == 2
    for name in ("a", "b"):
        world.scale(name, 2)
    world.settle(COOLDOWN_S - 60)
    assert len(world.instances) == 2
    return world


def test_copies_move_together_once_the_cooldown_has_passed_and_none_is_missing_meanwhile() -> None:
    world = thinned(HostWorld())
    for _ in range(400):
        world.step(0.5)
        assert world.serving("a") >= 2
        assert world.serving("b") >= 2
        assert all(world.used(instance).fits_in(WHOLE) for instance in world.standing())
    assert len(world.instances) == 1
    assert sum(world.standing().values(), Counter()) == {"a": 2, "b": 2}
    assert all(component.state is State.IN_SERVICE for component in world.components.values())


def test_idle_release_moves_nothing() -> None:
    world = thinned(HostWorld(variant=managed(strategy="IDLE_RELEASE")))
    made = {name: component.num_made for name, component in world.components.items()}
    world.settle(3 * COOLDOWN_S, pause_s=5)
    assert len(world.instances) == 2
    assert {name: component.num_made for name, component in world.components.items()} == made


def test_an_instance_that_others_have_no_room_for_stays() -> None:
    world = HostWorld()
    world.add("a", 3, gpus=2)
    world.settle(3 * COOLDOWN_S, pause_s=5)
    assert len(world.instances) == 2
    assert world.components["a"].num_made == 3


def test_no_more_instances_go_at_a_time_than_the_step_allows() -> None:
    numbers = []
    for step in (None, 2):
        world = HostWorld(variant=managed(step=step))
        world.add("a", 4, gpus=4)
        world.settle()
        assert len(world.instances) == 4
        world.scale("a", 1)
        world.settle(COOLDOWN_S + 90)
        numbers.append(len(world.instances))
        world.settle(4 * COOLDOWN_S, pause_s=5)
        assert len(world.instances) == 1
    assert numbers == [3, 2]


def test_an_update_takes_another_instance_for_its_batch_and_gives_it_back() -> None:
    world = HostWorld()
    world.add("a", 4)
    world.settle()
    assert len(world.instances) == 1
    size = {"Type": "COPY_COUNT", "Value": 2}
    rolling = {"RollingUpdatePolicy": {"MaximumBatchSize": size, "WaitIntervalInSeconds": 0}}
    world.components["a"].update(component_config(count=4), GOOD, rolling)
    for _ in range(120):
        world.step(0.5)
        assert world.serving("a") >= 4
    assert (world.components["a"].state, world.components["a"].reason) == (State.IN_SERVICE, "")
    assert world.components["a"].stable == 2
    assert len(world.instances) == 2
    world.settle(COOLDOWN_S + 120)
    assert len(world.instances) == 1
    assert world.serving("a") == 4


def test_never_fewer_than_the_least_remain() -> None:
    world = HostWorld(variant=managed(least=2, step=4))
    world.add("a", 4, gpus=4)
    world.settle()
    world.scale("a", 0)
    world.settle(5 * COOLDOWN_S, pause_s=5)
    assert len(world.instances) == 2


def test_a_change_during_consolidation_takes_precedence() -> None:
    world = thinned(HostWorld())
    while not any(instance.leaving_s is not None for instance in world.instances):
        world.step(1.0)
    world.step(0.5)
    world.scale("a", 5)
    world.step(0.5)
    assert all(instance.leaving_s is None for instance in world.instances)
    world.settle()
    assert world.components["a"].state is State.IN_SERVICE
    assert world.serving("a") == 5
    world.settle(3 * COOLDOWN_S, pause_s=5)
    assert len(world.instances) == 2, "seven copies need two"


def test_a_copy_that_will_not_start_elsewhere_stays_where_it_serves() -> None:
    world = thinned(HostWorld())
    for component in world.components.values():
        component.behaviours[1] = BROKEN
    num_tries = []
    for _ in range(12):
        world.settle(COOLDOWN_S, pause_s=1)
        assert (world.serving("a"), world.serving("b")) == (2, 2)
        num_tries.append(sum(component.num_made for component in world.components.values()))
    assert len(world.instances) == 2
    assert num_tries[-1] - num_tries[0] < 3 * len(num_tries), "it is not tried all the time"
    for component in world.components.values():
        component.behaviours[1] = GOOD
    world.settle(1200 + 2 * COOLDOWN_S, pause_s=1)
    assert len(world.instances) == 1


def test_copies_of_a_component_that_cannot_be_read_are_not_moved() -> None:
    world = thinned(HostWorld())
    for instance in world.instances:
        world.unreadable.append(Placed(component="x", instance=instance.id, need=Resources(memory_mb=1)))
    world.settle(3 * COOLDOWN_S, pause_s=5)
    assert len(world.instances) == 2


def test_fewer_instances_that_were_asked_for_are_emptied_at_once() -> None:
    world = HostWorld(variant={}, count=3)
    world.add("a", 3)
    world.settle()
    assert [len(copies) for copies in world.standing().values()] == [1, 1, 1]
    world.resize(1)
    for _ in range(120):
        world.step(0.5)
        assert world.serving("a") >= 3
    assert len(world.instances) == 1
    assert world.serving("a") == 3
    world.resize(2)
    world.settle()
    assert len(world.instances) == 2


def test_a_component_is_not_spread_less_evenly_than_it_was() -> None:
    whole = Resources(accelerators=4)
    need = Resources(accelerators=1)
    spread = Tenant(name="s", need=need, strategy="SPREAD", instances=("i1", "i1", "i2", "i3"))
    filler = [Placed(component="x", instance="i2", need=Resources(accelerators=3))]
    packed = Tenant(name="s", need=need, strategy="BINPACK", instances=("i1", "i1", "i2", "i3"))
    assert instances_to_empty(["i1", "i2", "i3"], [spread], fixed=filler, whole=whole, limit=1) == frozenset()
    assert instances_to_empty(["i1", "i2", "i3"], [packed], fixed=filler, whole=whole, limit=1) == {"i3"}


def test_the_policy_is_read_with_its_defaults() -> None:
    def rules(**policy: object) -> PoolRules:
        scaling = {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 4, "ScaleInPolicy": policy}
        host = Workload(
            variant="v", weight=1.0, count=1, model=None, instance_type="ml.m5.large", managed_scaling=scaling
        )
        return pool_rules(host)

    assert rules(Strategy="CONSOLIDATION") == PoolRules(least=1, most=4, cooldown_s=1200, step=1)
    assert rules(Strategy="CONSOLIDATION", MaximumStepSize=3, CooldownInMinutes=5).step == 3
    assert rules(Strategy="IDLE_RELEASE", MaximumStepSize=3) == PoolRules(least=1, most=4, cooldown_s=600)


INSTANCES = ["i0", "i1", "i2", "i3", "i4"]


@st.composite
def tenants(draw: st.DrawFn) -> list[Tenant]:
    """Components on instances that have room for them."""
    found: list[Tenant] = []
    placed: list[Placed] = []
    for number in range(draw(st.integers(0, 4))):
        need = Resources(accelerators=draw(st.integers(1, 4)), memory_mb=draw(st.integers(1, 2000)))
        standing = []
        for instance in draw(st.lists(st.sampled_from(INSTANCES), max_size=4)):
            whole = Resources(accelerators=4, memory_mb=4000)
            strategy: Strategy = "SPREAD"
            fits = choose_instance("c", need, whole=whole, instances=[instance], placed=placed, strategy=strategy)
            if fits is not None:
                standing.append(instance)
                placed.append(Placed(component=f"c{number}", instance=instance, need=need))
        strategy = draw(st.sampled_from(["SPREAD", "BINPACK"]))
        found.append(Tenant(name=f"c{number}", need=need, strategy=strategy, instances=tuple(standing)))
    return found


@given(tenants=tenants(), limit=st.integers(0, 5))
def test_what_is_emptied_has_a_place_elsewhere(tenants: list[Tenant], limit: int) -> None:
    whole = Resources(accelerators=4, memory_mb=4000)
    emptied = instances_to_empty(INSTANCES, tenants, fixed=[], whole=whole, limit=limit)
    assert len(emptied) <= limit
    kept = [instance for instance in INSTANCES if instance not in emptied]
    placed = [copy for tenant in tenants for copy in tenant.placed()]
    for tenant in tenants:
        for instance in tenant.instances:
            if instance in emptied:
                to = choose_instance(
                    tenant.name, tenant.need, whole=whole, instances=kept, placed=placed, strategy=tenant.strategy
                )
                assert to is not None
                placed.append(Placed(component=tenant.name, instance=to, need=tenant.need))
    for instance in kept:
        used = sum((copy.need for copy in placed if copy.instance == instance), Resources())
        assert used.fits_in(whole)


class Host(RuleBasedStateMachine):
    """Components are created, scaled, updated and deleted, copies crash, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = HostWorld(variant=managed(most=3, step=2))
        self.names = 0
        self.promised: dict[str, int] = {}
        """Copies that a component has had, and that have not been removed."""

    @precondition(lambda self: len(self.world.components) < 4)
    @rule(
        count=st.integers(0, 4),
        gpus=st.sampled_from([1, 2, 3]),
        strategy=st.sampled_from(["SPREAD", "BINPACK"]),
    )
    def add(self, count: int, gpus: int, strategy: str) -> None:
        self.names += 1
        self.world.add(f"c{self.names}", count, gpus=gpus, strategy=strategy)

    @precondition(lambda self: self.settled())
    @rule(data=st.data(), count=st.integers(0, 5))
    def scale(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(self.settled()))
        self.promised[name] = min(count, self.promised.get(name, 0))
        self.world.scale(name, count)

    @precondition(lambda self: self.settled())
    @rule(
        data=st.data(),
        behaviour=st.sampled_from([GOOD, BROKEN]),
        batch=st.integers(1, 2),
        gpus=st.sampled_from([1, 2, 3]),
    )
    def update(self, data: st.DataObject, behaviour: Behaviour, batch: int, gpus: int) -> None:
        """Roll out another version; when it has no room any more halfway, what is left of the old one serves."""
        name = data.draw(st.sampled_from(self.settled()))
        self.promised[name] = min(1, self.promised.get(name, 0))
        self.names += 1
        size = {"Type": "COPY_COUNT", "Value": batch}
        self.world.components[name].update(
            component_config(gpus, count=self.desired(name)),
            behaviour,
            {"RollingUpdatePolicy": {"MaximumBatchSize": size, "WaitIntervalInSeconds": 2}},
        )

    @precondition(lambda self: self.world.components)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.components)))
        self.promised.pop(name, None)
        self.world.components[name].delete()

    @precondition(lambda self: any(component.wanted() for component in self.world.components.values()))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        worlds = [component for component in self.world.components.values() if component.wanted()]
        world = data.draw(st.sampled_from(worlds))
        self.promised.pop(world.name, None)
        world.crash(data.draw(st.sampled_from(sorted(worker.name for worker in world.wanted()))))

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0]), passes=st.integers(1, 20))
    def time(self, seconds: float, passes: int) -> None:
        for _ in range(passes):
            self.pass_once(seconds)

    @rule()
    def long_time(self) -> None:
        """Nothing is asked for long enough that copies move."""
        for seconds in [10.0] * 70 + [1.0] * 60:
            self.pass_once(seconds)

    def pass_once(self, seconds: float) -> None:
        self.world.step(seconds)
        self.check()
        for name in self.settled():
            self.promised[name] = max(self.promised.get(name, 0), self.desired(name))

    def settled(self) -> list[str]:
        """Components in service, with all copies that they shall have."""
        found = [
            name
            for name, component in self.world.components.items()
            if component.record and component.state is State.IN_SERVICE
        ]
        return [name for name in sorted(found) if self.world.plan and self.world.serving(name) >= self.desired(name)]

    def desired(self, name: str) -> int:
        world = self.world.components[name]
        assert world.stable is not None
        return world.record.status.revisions[world.stable].copies

    def check(self) -> None:
        """After each pass."""
        for name, number in self.promised.items():
            assert self.world.serving(name) >= number, "a copy went before another one served"

    @invariant()
    def nothing_is_overfull(self) -> None:
        world = self.world
        if world.plan is None:
            return
        assert 1 <= len(world.instances) <= 3
        known = {instance.id for instance in world.instances}
        for instance in world.standing():
            assert instance in known, "an instance went with copies on it"
            assert world.used(instance).fits_in(WHOLE)

    def teardown(self) -> None:
        """It comes to rest, and stays there."""
        num_steps_at_rest = 0
        for _ in range(500):
            before = self.so_far()
            self.world.step(10.0)
            num_steps_at_rest = num_steps_at_rest + 1 if self.so_far() == before else 0
            if num_steps_at_rest == 100:
                break
        assert num_steps_at_rest >= 100
        self.no_copy_with_room_is_missing()

    def so_far(self) -> tuple[EndpointStatus, dict[str, int]]:
        """Return the instances, and the number of copies that each component has had."""
        return self.world.status, {name: component.num_made for name, component in self.world.components.items()}

    def no_copy_with_room_is_missing(self) -> None:
        """Holds unless a copy was lost, which is replaced first."""
        world = self.world
        if sorted(self.settled()) != sorted(world.components):
            return
        placed = [copy for component in world.components.values() for copy in placed_of(component).values()]
        for name, component in world.components.items():
            progress = component.record.status.progress
            assert progress is not None
            if not progress.num_unplaced:
                continue
            assert progress.failure_reason
            (workload,) = component.record.status.revisions[self.stable(name)].workloads
            need = workload.need
            ids = [instance.id for instance in world.instances]
            assert len(ids) == 3
            assert choose_instance(name, need, whole=WHOLE, instances=ids, placed=placed, strategy="SPREAD") is None

    def stable(self, name: str) -> int:
        """Generation that serves."""
        found = self.world.components[name].stable
        assert found is not None
        return found


Host.TestCase.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
TestHost = Host.TestCase
