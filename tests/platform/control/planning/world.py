"""
An endpoint in a world of its own: what the planner decides is done at once, and workers follow scripts. No I/O.

The record is copied through JSON between two passes, as in the store; time moves when a test moves it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.component import INFERENCE_COMPONENT, ComponentRevision
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRevision
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import DesiredCapacity, Revision, State, visible_state
from headrace.platform.control.planning.config import PassContext, ReconcilerConfig
from headrace.platform.control.planning.deployment import ExternalConditions
from headrace.platform.control.planning.plan import Plan, plan_deployable
from headrace.platform.control.planning.worker_actions import (
    Action,
    Drain,
    Forget,
    GiveUp,
    Launch,
    RemoveRecord,
    Start,
    Stop,
)
from headrace.platform.state.records import AnyKind, Record, RecordPart, copy_part
from headrace.platform.state.routes import VariantRoute
from headrace.serving.wire.aws.scope import AwsScope

AWS_SCOPE = AwsScope(account="123456789012", region="us-east-1")


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The script of a fake worker after its start."""

    fetch_s: float = 1.0
    ready_s: float | None = 3.0
    """None if it never becomes ready."""
    crash_s: float | None = None
    message: str = ""
    """Its message when it crashes."""
    stop_s: float = 2.0
    is_immortal: bool = False
    """True if no signal ends it."""


GOOD = Behaviour()
BROKEN = Behaviour(ready_s=None, crash_s=2.0, message="The model is broken.")
DUMB = Behaviour(ready_s=None)
"""Never answers."""


@dataclass(kw_only=True)
class Played:
    """A worker and what it will do."""

    view: WorkerView
    behaviour: Behaviour
    started_s: float | None = None
    ends_s: float | None = None
    shown: WorkerPhase | None = None
    """Seen instead, from now on."""
    instance: str = ""
    """Instance on which a copy of a component is placed."""


def pass_context(
    now_s: float, config: ReconcilerConfig | None = None, *, new_id: Callable[[], str] = lambda: "i1"
) -> PassContext:
    """Return the context of a pass at this time."""
    return PassContext(aws_scope=AWS_SCOPE, now_s=now_s, config=config or ReconcilerConfig(), new_id=new_id)


def config(name: str = "c1", **counts: int) -> dict[str, Any]:
    """A configuration with variants and their counts."""
    variants = [
        {"VariantName": variant, "ModelName": "m", "InstanceType": "ml.m5.large", "InitialInstanceCount": count}
        for variant, count in (counts or {"a": 1}).items()
    ]
    return {"EndpointConfigName": name, "ProductionVariants": variants}


@dataclass
class World:
    """One endpoint, its workers and the time."""

    name: str = "e"
    kind: AnyKind = ENDPOINT
    reconciler: ReconcilerConfig = field(default_factory=ReconcilerConfig)
    now_s: float = 1000.0
    workers: dict[str, Played] = field(default_factory=dict)
    record: Any = None
    variants: tuple[VariantRoute, ...] = ()
    plan: Plan | None = None
    behaviours: dict[int, Behaviour] = field(default_factory=dict)
    """By revision."""
    loses_starts: bool = False
    """The platform dies between a worker's record and its process."""
    num_made: int = 0
    alarm: str = ""
    """Reason for a rollback that an alarm demands; empty without one."""
    no_room: str = ""
    """Reason why missing workers cannot be placed; empty if they can."""
    busy: dict[str, int] = field(default_factory=dict)
    """Number of requests in flight, by worker."""

    def create(
        self, config: Mapping[str, Any], behaviour: Behaviour = GOOD, deployment: Mapping[str, Any] | None = None
    ) -> None:
        """Ask for the endpoint."""
        spec = self._spec(1, self._revision(1, config, deployment))
        self.behaviours[1] = behaviour
        self.record = Record(
            kind=self.kind,
            name=self.name,
            uid=f"uid-{self.name}",
            revision=1,
            spec=copy_part(spec, self.kind.spec),
            status=self.kind.status(),
            created_s=self.now_s,
            modified_s=self.now_s,
        )

    def update(
        self, config: Mapping[str, Any], behaviour: Behaviour = GOOD, deployment: Mapping[str, Any] | None = None
    ) -> None:
        """Ask for another version."""
        number = self.record.spec.generation + 1
        self.behaviours[number] = behaviour
        self._ask(self._revision(number, config, deployment))

    def scale(self, **desired: tuple[float, int]) -> None:
        """Ask for other weights and counts of the version that serves."""
        assert self.stable is not None
        revision = self.record.status.revisions[self.stable]
        wanted = {name: DesiredCapacity(weight=weight, count=count) for name, (weight, count) in desired.items()}
        self._ask(revision.with_desired({**revision.desired, **wanted}))

    def delete(self) -> None:
        """Ask for its end."""
        assert self.record is not None
        if self.record.deleting_s is None:
            self.record = replace(self.record, deleting_s=self.now_s)

    def step(self, seconds: float = 0.0) -> Plan | None:
        """Let time pass, look, plan and act once."""
        self.now_s += seconds
        if self.record is None:
            return None
        plan = plan_deployable(
            self.record,
            self.look(),
            pass_context(self.now_s, self.reconciler),
            conditions=ExternalConditions(alarm=self.alarm, no_room=self.no_room),
        )
        self.take(plan)
        return plan

    def look(self) -> list[WorkerView]:
        """The workers as they are now."""
        for played in self.workers.values():
            self._observe(played)
        return [
            replace(played.view, num_requests=self.busy.get(played.view.name, 0)) for played in self.workers.values()
        ]

    def take(self, plan: Plan) -> None:
        """Record and do what was planned."""
        assert self.record is not None
        self.plan, self.variants = plan, plan.variants
        if plan.deployment is not None:
            status = self.kind.status(progress=plan.deployment.progress, revisions=dict(plan.deployment.revisions))
            if status != self.record.status:  # to copy what is the same takes longer than to plan
                self.record = replace(self.record, status=copy_part(status, self.kind.status))
        for action in plan.actions:
            self._do(action)

    def settle(self, seconds: float = 60.0, *, pause_s: float = 0.5) -> None:
        """Many passes."""
        for _ in range(int(seconds / pause_s)):
            self.step(pause_s)

    def jump(self, seconds: float) -> None:
        """Set the wall clock, which the deadline clock notices; workers do not."""
        self.now_s += seconds
        self.reconciler = replace(self.reconciler, awake_since_s=self.now_s)
        for played in self.workers.values():
            played.started_s = None if played.started_s is None else played.started_s + seconds
            played.ends_s = None if played.ends_s is None else played.ends_s + seconds

    @property
    def state(self) -> State:
        """The status that DescribeEndpoint would show."""
        return visible_state(self.record)

    @property
    def reason(self) -> str:
        """FailureReason."""
        progress = self.record.status.progress
        return progress.failure_reason if progress is not None else ""

    @property
    def stable(self) -> int | None:
        """Revision that serves."""
        progress = self.record.status.progress
        return progress.stable if progress is not None else None

    def wanted(self, revision: int | None = None) -> list[WorkerView]:
        """Workers that serve or will."""
        views = [played.view for played in self.workers.values()]
        return [view for view in views if view.is_wanted and revision in (None, view.revision)]

    def shares(self, variant: str = "a") -> dict[int, float]:
        """Share of each revision, as it is routed."""
        route = next(route for route in self.variants if route.name == variant)
        return {fleet.generation: fleet.share for fleet in route.fleets}

    def crash(self, name: str, message: str = "") -> None:
        """A worker ends by itself."""
        played = self.workers[name]
        played.behaviour = replace(played.behaviour, crash_s=self.now_s - (played.started_s or 0.0), message=message)

    def show(self, name: str, phase: WorkerPhase) -> None:
        """A worker looks like this from now on."""
        self.workers[name].shown = phase

    def _ask(self, revision: Revision) -> None:
        spec = self._spec(self.record.spec.generation + 1, revision)
        self.record = replace(self.record, spec=copy_part(spec, self.kind.spec))

    def _spec(self, generation: int, revision: Revision) -> RecordPart:
        owner = {} if self.kind is ENDPOINT else {"endpoint": "host", "endpoint_uid": "uid-host"}
        spec: RecordPart = self.kind.spec(generation=generation, revision=revision, **owner)
        return spec

    def _revision(self, number: int, config: Mapping[str, Any], deployment: Mapping[str, Any] | None) -> Revision:
        if self.kind is INFERENCE_COMPONENT:
            return ComponentRevision(number=number, model={}, deployment=dict(deployment or {}), **config)
        return EndpointRevision(number=number, config=dict(config), models={"m": {}}, deployment=dict(deployment or {}))

    def _observe(self, played: Played) -> None:
        view = played.view
        if played.started_s is None or view.phase is WorkerPhase.EXITED:
            return
        phase = self._phase(played)
        if phase is not view.phase:
            view = replace(view, phase=phase, phase_since_s=self.now_s)
        if phase is WorkerPhase.READY and view.ready_s is None:
            view = replace(view, ready_s=self.now_s)
        if phase is WorkerPhase.EXITED and view.draining_s is None and view.failed_s is None:
            is_permanent = view.ready_s is None and bool(played.behaviour.message)
            failure = f"Crashed. {played.behaviour.message}"
            view = replace(view, failed_s=self.now_s, failure=failure, is_permanent=is_permanent)
        played.view = view

    def _phase(self, played: Played) -> WorkerPhase:
        assert played.started_s is not None
        age_s, script = self.now_s - played.started_s, played.behaviour
        if played.ends_s is not None and not script.is_immortal and self.now_s >= played.ends_s:
            return WorkerPhase.EXITED
        if script.crash_s is not None and age_s >= script.crash_s:
            return WorkerPhase.EXITED
        if played.shown is not None:
            return played.shown
        if script.ready_s is not None and age_s >= script.ready_s:
            return WorkerPhase.READY
        return WorkerPhase.FETCHING if age_s < script.fetch_s else WorkerPhase.STARTING

    def _do(self, action: Action) -> None:
        match action:
            case Start():
                self._start(action)
            case Launch(worker=name):
                self._launch(self.workers[name])
            case Drain(worker=name):
                self._change(name, draining_s=self.now_s)
            case GiveUp(worker=name, why=why):
                view = self.workers[name].view
                draining_s = view.draining_s if view.draining_s is not None else self.now_s
                is_permanent = view.ready_s is None
                self._change(
                    name,
                    failed_s=self.now_s,
                    failure=f"Gave up: {why}",
                    is_permanent=is_permanent,
                    draining_s=draining_s,
                )
            case Stop(worker=name, grace_s=grace_s):
                played = self.workers[name]
                ends_s = self.now_s + min(played.behaviour.stop_s, grace_s)
                played.ends_s = ends_s if played.ends_s is None else min(ends_s, played.ends_s)
                if played.view.stopping_s is None:
                    self._change(name, stopping_s=self.now_s)
            case Forget(worker=name):
                self.workers.pop(name)
            case RemoveRecord():
                assert not self.workers
                self.record = None

    def _start(self, action: Start) -> None:
        self.num_made += 1
        name = f"w{self.num_made:04d}" if self.kind is ENDPOINT else f"{self.name}-{self.num_made:04d}"
        view = WorkerView(name=name, variant=action.fleet[0], revision=action.fleet[1], created_s=self.now_s)
        self.workers[name] = Played(view=view, behaviour=self.behaviours[action.fleet[1]], instance=action.instance)
        if not self.loses_starts:
            self._launch(self.workers[name])

    def _launch(self, played: Played) -> None:
        played.started_s = self.now_s
        played.view = replace(
            played.view, phase=WorkerPhase.FETCHING, phase_since_s=self.now_s, url=f"http://{played.view.name}"
        )

    def _change(self, name: str, **changes: Any) -> None:
        self.workers[name].view = replace(self.workers[name].view, **changes)


def served(**counts: int) -> World:
    """A world whose endpoint is in service."""
    world = World()
    world.create(config("c1", **counts))
    world.settle(10)
    assert world.state is State.IN_SERVICE
    return world
