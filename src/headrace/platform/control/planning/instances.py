"""The instances of a variant while its components are planned: copies are placed on them one by one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.platform.control.model.component import ComponentRecord
from headrace.platform.control.model.endpoint import HostInstance
from headrace.platform.control.model.resources import Resources, Strategy, resources_of_type, too_large_message
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import (
    TRANSIENT,
    Progress,
    State,
    Workload,
    serving_revision,
    visible_state,
)
from headrace.platform.control.planning import pool
from headrace.platform.control.planning.config import PassContext
from headrace.platform.control.planning.deployment import NO_CONDITIONS, Deployment, ExternalConditions
from headrace.platform.control.planning.plan import Plan
from headrace.platform.control.planning.worker_actions import Action, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentView:
    """An inference component and its copies, as the planner sees them."""

    record: ComponentRecord
    workers: Sequence[WorkerView]
    placed: Mapping[str, pool.Placed]
    """The places of its copies that have not ended, by worker."""
    alarm: str = ""
    """Reason for a rollback that an alarm demands; empty without one."""

    @property
    def variant(self) -> str:
        return self.record.spec.revision.variant

    @property
    def is_settled(self) -> bool:
        """True if the observed state has reached the desired one."""
        return visible_state(self.record) not in TRANSIENT

    @property
    def is_at_rest(self) -> bool:
        """True if it is being deleted, or is settled and lacks no copy that had a place."""
        if self.record.deleting_s is not None:
            return True
        progress = self.record.status.progress
        if not self.is_settled or progress is None:
            return False
        num_standing = sum(worker.is_wanted for worker in self.workers)
        return progress.stable is None or num_standing >= self.record.status.revisions[progress.stable].copies

    @property
    def workload(self) -> Workload:
        (workload,) = serving_revision(self.record).workloads
        return workload


_NO_ROOM = (
    "There is not enough hardware resources on the instances for this endpoint to create a copy of the inference "
    "component."
)


@dataclass(slots=True, kw_only=True)
class VariantInstances:
    """The copies on each instance, and the copies that are placed in this pass."""

    host: Workload
    """The variant."""
    whole: Resources
    """Resources of an empty instance."""
    rules: pool.PoolRules
    instances: list[HostInstance]
    placed: list[pool.Placed]
    is_freeing: bool
    """True while copies are leaving: there will be more room."""
    may_grow: bool
    """No component is being changed or lacks a placed copy: free resources are for copies without a place."""
    context: PassContext
    trial: list[pool.Placed] = field(default_factory=list)
    """Copies placed for the component that is being planned."""
    is_stuck: bool = False
    """A copy has no place while an instance is being emptied."""

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset(instance.id for instance in self.instances if instance.leaving_s is not None)

    def place(self, component: str, need: Resources, strategy: Strategy) -> str | None:
        """Place a copy on an instance, a new one if the rules allow it; return its id, or None if there is none."""
        chosen = self._choose(component, need, strategy)
        if chosen is None and self.leaving:
            self.is_stuck = True
        elif chosen is None and need.fits_in(self.whole) and len(self.instances) < self.rules.most:
            self.instances.append(HostInstance(id=self.context.new_id()))
            chosen = self._choose(component, need, strategy)
        if chosen is not None:
            self.trial.append(pool.Placed(component=component, instance=chosen, need=need))
        return chosen

    def _choose(self, component: str, need: Resources, strategy: Strategy) -> str | None:
        return pool.choose_instance(
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
            return f"{_NO_ROOM} {too_large_message(need, self.host.instance_type)}"
        return (
            f"{_NO_ROOM} One more copy needs {need}; no instance has that left. There are "
            f"{len(self.instances)} of at most {self.rules.most} instances of type {self.host.instance_type}, with "
            f"{self.whole} each; together they have room for {len(self.placed) + len(self.trial)} copies, those "
            "of other components counted. Ask for fewer or smaller copies, or for more instances."
        )

    def mark_leaving(self, component: ComponentView) -> list[WorkerView]:
        """Return the copies of a component; those on an instance that is being emptied are marked as leaving."""
        leaving = {name for name, copy in component.placed.items() if copy.instance in self.leaving}
        return [
            replace(worker, is_leaving=True) if worker.is_wanted and worker.name in leaving else worker
            for worker in component.workers
        ]

    def growth(self, component: ComponentView) -> ExternalConditions:
        """Return how many of the unplaced copies of a component have room now."""
        progress, workload = component.record.status.progress, component.workload
        num_unplaced = 0 if progress is None or progress.state is not State.IN_SERVICE else progress.num_unplaced
        is_blocked = not component.is_settled or not self.may_grow or bool(self.leaving)
        if workload.need is None or not num_unplaced or is_blocked:
            return NO_CONDITIONS
        need, name = workload.need, component.record.name
        num_fitting = 0
        while num_fitting < num_unplaced and self.place(name, need, workload.placement) is not None:
            num_fitting += 1
        no_room = "" if num_fitting == num_unplaced else self.no_room_reason(need)
        self.discard_trial()
        return ExternalConditions(no_room=no_room, num_fitting=num_fitting, growth=num_fitting)

    def place_starts(self, component: ComponentView, plan: Plan) -> tuple[tuple[Action, ...], str]:
        """Return the actions with an instance for each start, and why a start has none (empty if all have one)."""
        actions: list[Action] = []
        no_room = ""
        for action in plan.actions:
            if not isinstance(action, Start):
                actions.append(action)
                continue
            assert plan.deployment is not None
            (workload,) = plan.deployment.revisions[action.fleet[1]].workloads
            assert workload.need is not None
            instance = self.place(component.record.name, workload.need, workload.placement)
            if instance is None:
                no_room = no_room or self.no_room_reason(workload.need)
            else:
                actions.append(replace(action, instance=instance))
        return tuple(actions), no_room

    def accept_trial(self) -> None:
        """Keep the copies that were placed for the component that is being planned."""
        self.placed += self.trial
        self.trial.clear()

    def discard_trial(self) -> None:
        """Forget the copies that were placed for the component that is being planned."""
        self.trial.clear()

    def kept(self) -> list[HostInstance]:
        now_s, new_id = self.context.now_s, self.context.new_id
        instances = pool.all_staying(self.instances, now_s) if self.is_stuck else self.instances
        copies = Counter(copy.instance for copy in self.placed)
        return pool.kept_instances(instances, self.rules, copies=copies, now_s=now_s, new_id=new_id)


def variant_instances(
    host: Deployment | None,
    components: Sequence[ComponentView],
    instances: Mapping[str, Sequence[HostInstance]],
    unreadable: Sequence[pool.Placed],
    context: PassContext,
) -> dict[str, VariantInstances]:
    """Return the instances of each variant that hosts components; none while the endpoint is being deleted."""
    revision = None if host is None else host.stable or host.target
    if host is None or revision is None:
        return {}
    return {
        variant.variant: _variant_state(
            variant,
            instances.get(variant.variant),
            [component for component in components if component.variant == variant.variant],
            unreadable,
            host.progress,
            context,
        )
        for variant in revision.workloads
        if variant.is_host
    }


def _variant_state(
    variant: Workload,
    known: Sequence[HostInstance] | None,
    components: Sequence[ComponentView],
    unreadable: Sequence[pool.Placed],
    host: Progress,
    context: PassContext,
) -> VariantInstances:
    """Return the state of the instances of one variant, and decide which of them are emptied."""
    rules, instances = pool.pool_rules(variant), known
    if instances is None:  # the first pass over the variant
        number, now_s = max(rules.least, min(rules.most, variant.count)), context.now_s
        instances = [HostInstance(id=context.new_id(), idle_s=now_s, changed_s=now_s) for _ in range(number)]
    ids = {instance.id for instance in instances}
    fixed = [copy for copy in unreadable if copy.instance in ids]
    whole = resources_of_type(variant.instance_type)
    return VariantInstances(
        host=variant,
        whole=whole,
        rules=rules,
        instances=pool.with_leaving(
            instances,
            rules,
            [_tenant(component) for component in components],
            fixed=fixed,
            whole=whole,
            window=_window(host, components, instances, context),
            now_s=context.now_s,
        ),
        placed=[*fixed, *(copy for component in components for copy in component.placed.values())],
        is_freeing=any(
            not worker.is_wanted and not worker.is_gone and worker.name in component.placed
            for component in components
            for worker in component.workers
        ),
        may_grow=all(component.is_at_rest for component in components),
        context=context,
    )


def _tenant(component: ComponentView) -> pool.Tenant:
    """Return a component whose copies may be moved; all of them are then of one revision."""
    workload = component.workload
    standing = [
        component.placed[worker.name]
        for worker in component.workers
        if worker.is_wanted and worker.name in component.placed
    ]
    assert workload.need is not None
    return pool.Tenant(
        name=component.record.name,
        need=standing[0].need if standing else workload.need,
        strategy=workload.placement,
        instances=tuple(copy.instance for copy in standing),
    )


def _window(
    host: Progress, components: Sequence[ComponentView], instances: Sequence[HostInstance], context: PassContext
) -> pool.ConsolidationWindow:
    """Return whether copies may be moved from one instance to another now."""
    begun_s = max((instance.leaving_s for instance in instances if instance.leaving_s is not None), default=None)
    failed_s = [
        worker.failed_s for component in components for worker in component.workers if worker.failed_s is not None
    ]
    since_s = max(
        [
            host.since_s,
            *(component.record.status.progress.since_s for component in components if component.record.status.progress),
        ]
    )
    is_settled = host.state not in TRANSIENT and all(component.is_settled for component in components)
    living = [worker for component in components for worker in component.workers if not worker.is_gone]
    is_sound = all(context.now_s - time_s >= context.config.crash_window_s for time_s in failed_s)
    return pool.ConsolidationWindow(
        may_begin=is_settled and is_sound and all(worker.can_serve for worker in living),
        may_go_on=is_settled and all(begun_s is not None and time_s < begun_s for time_s in failed_s),
        since_s=since_s,
    )
