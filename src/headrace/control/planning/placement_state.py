"""The instances of one variant while its components are planned: copies are placed on them one by one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.control.model.endpoint import HostInstance
from headrace.control.model.resources import Resources, Strategy, too_large_message
from headrace.control.planning.consolidation import all_staying
from headrace.control.planning.placement import Placed, choose_instance
from headrace.control.planning.pool import PoolRules, kept_instances
from headrace.state.routes import RoutingStrategy

_NO_ROOM = (
    "There is not enough hardware resources on the instances for this endpoint to create a copy of the inference "
    "component."
)


@dataclass(slots=True, kw_only=True)
class PlacementState:
    """The copies on each instance, and the copies that are placed in this pass."""

    whole: Resources
    instance_type: str
    strategy: RoutingStrategy
    """How the gateway chooses one of a component's copies for a request."""
    rules: PoolRules
    instances: list[HostInstance]
    placed: list[Placed]
    is_freeing: bool
    """Copies are leaving: there will be more room."""
    may_grow: bool
    """No component is being changed or lacks a placed copy: free resources are for copies without a place."""
    new_id: Callable[[], str]
    trial: list[Placed] = field(default_factory=list)
    """Copies placed for the component that is being planned."""
    is_stuck: bool = False
    """A copy has no place while an instance is being emptied."""

    @property
    def leaving(self) -> frozenset[str]:
        """Instances that are being emptied."""
        return frozenset(instance.id for instance in self.instances if instance.leaving_s is not None)

    def place(self, component: str, need: Resources, strategy: Strategy) -> str | None:
        """Place a copy on an instance, a new one if there may be one; return its id, or None if it fits nowhere."""
        chosen = self._choose(component, need, strategy)
        if chosen is None and self.leaving:
            self.is_stuck = True
        elif chosen is None and need.fits_in(self.whole) and len(self.instances) < self.rules.most:
            self.instances.append(HostInstance(id=self.new_id()))
            chosen = self._choose(component, need, strategy)
        if chosen is not None:
            self.trial.append(Placed(component=component, instance=chosen, need=need))
        return chosen

    def _choose(self, component: str, need: Resources, strategy: Strategy) -> str | None:
        return choose_instance(
            component,
            need,
            whole=self.whole,
            instances=[instance.id for instance in self.instances if instance.leaving_s is None],
            placed=[*self.placed, *self.trial],
            strategy=strategy,
        )

    def no_room_reason(self, need: Resources) -> str:
        """Return the FailureReason of a copy that has no place."""
        if not need.fits_in(self.whole):
            return f"{_NO_ROOM} {too_large_message(need, self.instance_type)}"
        return (
            f"{_NO_ROOM} One more copy needs {need}; no instance has that left. There are "
            f"{len(self.instances)} of at most {self.rules.most} instances of type {self.instance_type}, with "
            f"{self.whole} each; together they have room for {len(self.placed) + len(self.trial)} copies, those "
            "of other components counted. Ask for fewer or smaller copies, or for more instances."
        )

    def kept(self, now_s: float) -> list[HostInstance]:
        """Return the instances after all copies have been placed."""
        instances = all_staying(self.instances, now_s) if self.is_stuck else self.instances
        copies = Counter(copy.instance for copy in self.placed)
        return kept_instances(instances, self.rules, copies=copies, now_s=now_s, new_id=self.new_id)
