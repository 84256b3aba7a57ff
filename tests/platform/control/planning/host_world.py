"""
A host and its inference components in a world of their own: what is planned is done at once, copies follow scripts.

Records are copied through JSON between two passes, as in the store; time moves when a test moves it. No I/O.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.endpoint import EndpointRevision, EndpointStatus, HostInstance
from headrace.platform.control.model.resources import Resources, resources_of_type
from headrace.platform.control.model.workload import Progress, State
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.deployment import Deployment
from headrace.platform.control.planning.endpoint import ComponentPlans, plan_components
from headrace.platform.control.planning.instances import ComponentView
from headrace.platform.control.planning.pool import Placed
from headrace.platform.state.records import copy_part
from tests.platform.control.planning.world import GOOD, Behaviour, World, pass_context

TYPE = "ml.p3.8xlarge"
"""32 vCPUs, 4 accelerators, 244 GiB."""
COOLDOWN_MIN = 5


def managed(
    least: int = 1, most: int = 4, *, strategy: str = "CONSOLIDATION", step: int | None = None
) -> dict[str, Any]:
    """A variant whose instances come and go."""
    policy: dict[str, Any] = {"Strategy": strategy, "CooldownInMinutes": COOLDOWN_MIN}
    if step is not None:
        policy["MaximumStepSize"] = step
    scaling = {"Status": "ENABLED", "MinInstanceCount": least, "MaxInstanceCount": most, "ScaleInPolicy": policy}
    return {"ManagedInstanceScaling": scaling}


def component_config(gpus: float = 1, *, count: int = 1, strategy: str = "SPREAD") -> dict[str, Any]:
    """Return the configuration of a component's revision."""
    specification = {
        "ModelName": "m",
        "ComputeResourceRequirements": {"NumberOfAcceleratorDevicesRequired": gpus, "MinMemoryRequiredInMb": 1024},
        "SchedulingConfig": {"PlacementStrategy": strategy},
    }
    return {"variant": "v", "instance_type": TYPE, "specification": specification, "copies": count}


@dataclass
class HostWorld:
    """One endpoint whose models are components, and the time."""

    variant: dict[str, Any] = field(default_factory=managed)
    """Of the endpoint's configuration, without its name and type."""
    count: int = 1
    """Instances that were asked for."""
    reconciler: ReconcilerConfig = field(default_factory=ReconcilerConfig)
    now_s: float = 1000.0
    components: dict[str, World] = field(default_factory=dict)
    unreadable: list[Placed] = field(default_factory=list)
    status: EndpointStatus = field(default_factory=EndpointStatus)
    since_s: float = 1000.0
    """Time of the last change of the host."""
    num_instances: int = 0
    plan: ComponentPlans | None = None
    _revisions: dict[int, EndpointRevision] = field(default_factory=dict)
    """The host's revision by the number of instances that were asked for."""

    def add(
        self, name: str, count: int = 1, *, gpus: float = 1, strategy: str = "SPREAD", behaviour: Behaviour = GOOD
    ) -> World:
        """Ask for a component."""
        world = World(name=name, kind=INFERENCE_COMPONENT, now_s=self.now_s, reconciler=self.reconciler)
        world.create(component_config(gpus, count=count, strategy=strategy), behaviour)
        self.components[name] = world
        return world

    def scale(self, name: str, count: int) -> None:
        """Ask for another number of copies."""
        self.components[name].scale(v=(1.0, count))

    def resize(self, count: int) -> None:
        """Ask for another number of instances."""
        self.count, self.since_s = count, self.now_s

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass, look, plan and act once."""
        self.now_s += seconds
        for world in self.components.values():
            world.now_s = self.now_s
        seen = [self._seen(world) for world in self.components.values() if world.record is not None]
        plan = plan_components(
            self._host(),
            seen,
            pass_context(self.now_s, self.reconciler, new_id=self._new_id),
            instances=self.status.instances,
            unreadable=self.unreadable,
        )
        self.plan = plan
        instances = {variant: list(pool) for variant, pool in plan.instances.items()}
        status = EndpointStatus(instances=instances)
        if status != self.status:
            self.status = copy_part(status, EndpointStatus)
        for name, component_plan in plan.plans.items():
            self.components[name].take(component_plan)
        self.components = {name: world for name, world in self.components.items() if world.record is not None}

    def settle(self, seconds: float = 30.0, *, pause_s: float = 0.5) -> None:
        """Many passes."""
        for _ in range(int(seconds / pause_s)):
            self.step(pause_s)

    @property
    def instances(self) -> list[HostInstance]:
        """Those that there are."""
        return self.status.instances.get("v", [])

    def standing(self) -> dict[str, Counter[str]]:
        """Instance -> component -> copies whose process lives."""
        found: dict[str, Counter[str]] = {}
        for copy in self._placed():
            found.setdefault(copy.instance, Counter())[copy.component] += 1
        return found

    def used(self, instance: str) -> Resources:
        """Return the resources that all copies on an instance take."""
        return sum((copy.need for copy in self._placed() if copy.instance == instance), Resources())

    def serving(self, name: str) -> int:
        """Copies in the route."""
        assert self.plan is not None
        routes = [component.route for component in self.plan.routes if component.name == name]
        return sum(len(fleet.replicas) for route in routes for fleet in route.fleets)

    def _placed(self) -> list[Placed]:
        return [*self.unreadable, *(copy for world in self.components.values() for copy in placed_of(world).values())]

    def _seen(self, world: World) -> ComponentView:
        workers = world.look()
        return ComponentView(record=world.record, workers=workers, placed=placed_of(world), alarm=world.alarm)

    def _host(self) -> Deployment:
        if self.count not in self._revisions:
            config = {"VariantName": "v", "InstanceType": TYPE, "InitialInstanceCount": self.count, **self.variant}
            self._revisions[self.count] = EndpointRevision(
                number=1, config={"EndpointConfigName": "host", "ProductionVariants": [config]}, models={}
            )
        progress = Progress(observed_generation=1, state=State.IN_SERVICE, since_s=self.since_s, stable=1)
        return Deployment(progress=progress, revisions={1: self._revisions[self.count]})

    def _new_id(self) -> str:
        self.num_instances += 1
        return f"i{self.num_instances}"


def placed_of(world: World) -> dict[str, Placed]:
    """Return the places of a component's copies that have not ended."""
    found = {}
    for name, played in world.workers.items():
        if played.view.is_gone:
            continue
        revision = world.record.status.revisions.get(played.view.revision, world.record.spec.revision)
        (workload,) = revision.workloads
        assert workload.need is not None
        need = workload.need
        found[name] = Placed(component=world.name, instance=played.instance, need=need)
    return found


WHOLE = resources_of_type(TYPE)
