"""
The life of an endpoint or a component as a state machine: the spec, the workers and the time give the next `Progress`.

    Creating ──ready──> InService ──request──> Updating ──done──> InService
       └──hopeless──> Failed                      └──hopeless──> RollingBack ──> InService | UpdateRollbackFailed

An update walks through the rollout's steps, each PROVISIONING then BAKING, and ends with TERMINATING. Every transient
state has a deadline. Actions on single workers are decided in `worker_actions`.

Scaling a component does not fail for lack of room: its revision counts the copies that have a place,
`Progress.num_unplaced` the others, and it is scaled again when there is room for some of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as evolve

from msgspec.structs import replace

from headrace.platform.control.model.worker import FleetKey, WorkerView
from headrace.platform.control.model.workload import Progress, Revision, Stage, State
from headrace.platform.control.planning.config import PassContext, ReconcilerConfig
from headrace.platform.control.planning.deployment import (
    NO_CONDITIONS,
    Deployment,
    ExternalConditions,
    with_count,
)

_EPSILON = 1e-6
"""Tolerance of a number of workers: steps are rounded to 9 digits, so that 33 x 0.03030303 is 0.99999999."""


def advance(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    context: PassContext,
    *,
    conditions: ExternalConditions = NO_CONDITIONS,
) -> Deployment:
    """Advance the deployment as far as its workers and the time allow."""
    # Several steps may be due at once. The bound only stops a cycle, which would be a bug: a step has two stages.
    num_steps = max(len(revision.rollout.steps) for revision in deployment.revisions.values())
    for _ in range(2 * num_steps + 4):
        following = _Pass(deployment, workers, context, conditions).advanced()
        if following == deployment:
            break
        deployment = following
    return deployment


def traffic_fraction(deployment: Deployment) -> float:
    """Return the target's part of the traffic, 0 to 1."""
    progress, target = deployment.progress, deployment.target
    if target is None or progress.stable is None:
        return 0.0
    if is_rolling_back(deployment):
        return _passed_fraction(progress, target)
    if progress.state is not State.UPDATING:
        return 0.0
    steps = target.rollout.steps
    if progress.stage is Stage.TERMINATING:
        return 1.0
    if progress.stage is Stage.BAKING:
        return steps[progress.step]
    return steps[progress.step - 1] if progress.step else 0.0


def wanted_workers(deployment: Deployment) -> dict[FleetKey, int]:
    """Return how many workers each fleet needs now; fleets that are not named need none."""
    progress, stable, target = deployment.progress, deployment.stable, deployment.target
    if progress.state in (State.FAILED, State.DELETING):
        return {}
    wanted: dict[FleetKey, int] = {}
    if stable is not None:
        wanted |= {(workload.variant, stable.number): workload.num_workers for workload in stable.workloads}
    if target is not None and is_rolling_back(deployment):
        kept = _passed_fraction(progress, target)
        wanted = _without_part(wanted, _fraction_at(target, _step_back(progress, target)))
        return wanted | {
            (workload.variant, target.number): _part_of(workload.num_workers, kept) for workload in target.workloads
        }
    if target is None or progress.state not in (State.CREATING, State.UPDATING):
        return wanted
    if stable is not None and target.rollout.kind == "rolling":
        wanted = _without_part(wanted, _passed_fraction(progress, target))
    return wanted | _target_capacity(deployment, target)


def is_rolling_back(deployment: Deployment) -> bool:
    """Return whether a rolling update is rolled back: its workers serve until the old ones do; none is started."""
    target = deployment.target
    return target is not None and target.rollout.kind == "rolling" and deployment.progress.state is State.ROLLING_BACK


def _without_part(wanted: Mapping[FleetKey, int], part: float) -> dict[FleetKey, int]:
    return {fleet: count - math.floor(count * part + _EPSILON) for fleet, count in wanted.items()}


def _part_of(count: int, part: float) -> int:
    return math.ceil(count * part - _EPSILON)


def _passed_fraction(progress: Progress, target: Revision) -> float:
    """Return the part of a rolling update whose traffic has moved permanently."""
    return 1.0 if progress.stage is Stage.TERMINATING else _fraction_at(target, progress.step)


def _fraction_at(target: Revision, num_steps: int) -> float:
    """Return the new revision's part after this number of steps."""
    return target.rollout.steps[num_steps - 1] if num_steps else 0.0


def _step_back(progress: Progress, target: Revision) -> int:
    """Return the steps of a rolling update that are left when the next batch of old workers serves again."""
    least = _passed_fraction(progress, target) - target.rollout.rollback_part - _EPSILON
    return next(
        step for step in range(progress.step + 1) if step >= progress.step - 1 or _fraction_at(target, step) >= least
    )


def _target_capacity(deployment: Deployment, target: Revision) -> dict[FleetKey, int]:
    """Return the workers of the target that the current step needs."""
    part = 1.0
    if deployment.stable is not None and target.rollout.kind == "rolling":
        part = target.rollout.steps[deployment.progress.step]
    return {(workload.variant, target.number): _part_of(workload.num_workers, part) for workload in target.workloads}


@dataclass(frozen=True, slots=True)
class _Pass:
    """A deployment in one pass of the reconciler: its transitions, each of which returns the deployment after it."""

    deployment: Deployment
    workers: Sequence[WorkerView]
    context: PassContext
    conditions: ExternalConditions

    def advanced(self) -> Deployment:
        deployment, progress = self.deployment, self.deployment.progress
        match progress.state:
            case State.CREATING if deployment.target is not None:
                return self._create(deployment.target)
            case State.UPDATING if deployment.target is not None:
                return self._roll_out(deployment.target)
            case State.UPDATING if deployment.stable is not None:
                return self._scale(deployment.stable)
            case State.ROLLING_BACK if deployment.stable is not None:
                return self._roll_back(deployment.stable)
            case State.IN_SERVICE if deployment.stable is not None and (
                progress.num_unplaced or self.conditions.no_room
            ):
                return self._grow(deployment.stable)
        return deployment

    def _create(self, target: Revision) -> Deployment:
        waited_s, progress = self.context.waited_s(self.deployment.progress.since_s), self.deployment.progress
        reason = self._hopeless_reason(target) or self.conditions.no_room
        # Twice: a worker that fails late is replaced, and its replacement has the same time.
        if not reason and waited_s > 2 * target.startup_bound_s + self.context.config.slack_s:
            reason = f"The endpoint was not ready after {waited_s:.0f} s."
        if reason:
            failed = replace(progress, state=State.FAILED, since_s=self.context.now_s, failure_reason=reason)
            return replace(self.deployment, progress=failed)
        return self._settled(target) if self._has(_target_capacity(self.deployment, target)) else self.deployment

    def _scale(self, stable: Revision) -> Deployment:
        """Apply new weights and counts of the revision that serves."""
        progress = self.deployment.progress
        if self._has(wanted_workers(self.deployment)):
            return self._settled(stable, failure_reason=progress.failure_reason)
        reason, waited_s = self._hopeless_reason(stable), self.context.waited_s(progress.since_s)
        if not reason and self.conditions.no_room:
            return self._granted(stable, growth=-self._num_lost(stable))
        if not reason and waited_s > 2 * stable.startup_bound_s + self.context.config.slack_s:
            reason = f"The workers that were asked for were not ready after {waited_s:.0f} s."
        if not reason:
            return self.deployment
        # Back to the weights and counts that served before.
        earlier = stable.with_desired(progress.fallback or stable.desired)
        reverted = Deployment(
            progress=replace(progress, num_unplaced=0), revisions={**self.deployment.revisions, stable.number: earlier}
        )
        return evolve(self, deployment=reverted).rolling_back(reason)

    def _grow(self, stable: Revision) -> Deployment:
        """Scale a component by those of its unplaced copies that have room now; else record why copies are missing."""
        progress, growth, now_s = self.deployment.progress, self.conditions.growth, self.context.now_s
        if growth:
            progress = replace(
                progress, state=State.UPDATING, since_s=now_s, stage_since_s=now_s, fallback=stable.desired
            )
            return self._granted(stable, growth=growth, progress=progress)
        # Other components may have taken the room of copies that have crashed.
        num_lost = self._num_lost(stable) if self.conditions.no_room else 0
        if num_lost or (self.conditions.no_room and not progress.failure_reason):
            return self._granted(stable, growth=-num_lost)
        return self.deployment

    def _num_lost(self, stable: Revision) -> int:
        """Return the copies of a component that neither run nor have a place."""
        fleet = (stable.workloads[0].variant, stable.number)
        standing = sum(worker.is_wanted and not worker.is_leaving for worker in self.workers if worker.fleet == fleet)
        return max(0, stable.num_workers - standing - self.conditions.num_fitting)

    def _granted(self, stable: Revision, *, growth: int, progress: Progress | None = None) -> Deployment:
        """Return the deployment with so many more copies that have a place, and the reason why others have none."""
        count, num_unplaced = stable.num_workers + growth, self.deployment.progress.num_unplaced - growth
        reason = ""
        if num_unplaced:
            missing = f"{num_unplaced} of {count + num_unplaced} copies are missing"
            reason = f"{self.conditions.no_room} {missing}; they start when there is room for them."
        progress = progress or self.deployment.progress
        return Deployment(
            progress=replace(progress, num_unplaced=num_unplaced, failure_reason=reason),
            revisions={**self.deployment.revisions, stable.number: with_count(stable, count)},
        )

    def _roll_out(self, target: Revision) -> Deployment:
        progress, rollout = self.deployment.progress, target.rollout
        in_stage_s, waited_s = self.context.waited_s(progress.stage_since_s), self.context.waited_s(progress.since_s)
        reason = self._hopeless_reason(target) or self.conditions.no_room
        # Alarms count once the new revision has traffic: before, it cannot have caused them.
        if not reason and traffic_fraction(self.deployment) > 0:
            reason = self.conditions.alarm
        if progress.stage is Stage.TERMINATING and not reason:
            # Only the wait before the old workers are stopped is left: the update's deadline does not apply.
            return self._settled(target) if in_stage_s >= rollout.termination_wait_s else self.deployment
        if not reason and waited_s > rollout_bound_s(target, self.context.config):
            reason = f"The update was not done after {waited_s:.0f} s."
        if reason:
            return self.rolling_back(reason)
        is_complete = self._has(_target_capacity(self.deployment, target))
        if not is_complete or (progress.stage is Stage.BAKING and in_stage_s < rollout.wait_s):
            return self.deployment
        # A step's workers have become ready, or its traffic has baked.
        if progress.stage is Stage.PROVISIONING:
            return self._in_stage(Stage.BAKING, progress.step)
        if progress.step + 1 < len(rollout.steps):
            return self._in_stage(Stage.PROVISIONING, progress.step + 1)
        return self._in_stage(Stage.TERMINATING, progress.step)

    def _roll_back(self, stable: Revision) -> Deployment:
        """Bring back the old fleet: in batches if the new one came in batches and there is room for both meanwhile."""
        progress, target = self.deployment.progress, self.deployment.target
        wanted = {fleet: count for fleet, count in wanted_workers(self.deployment).items() if fleet[1] == stable.number}
        # Without room for both fleets the new one goes at once: step 0 leaves none of its workers.
        if target is not None and progress.step and self.conditions.no_room:
            return self._in_stage(Stage.PROVISIONING, 0)
        if self._has(wanted):
            if target is not None and progress.step:
                return self._in_stage(Stage.PROVISIONING, _step_back(progress, target))
            return self._settled(stable, failure_reason=progress.failure_reason)
        bound_s = 2 * stable.startup_bound_s + self.context.config.slack_s
        if self.context.waited_s(progress.stage_since_s) <= bound_s:
            return self.deployment
        stuck = replace(progress, state=State.UPDATE_ROLLBACK_FAILED, since_s=self.context.now_s, target=None)
        return Deployment(progress=stuck, revisions={stable.number: stable})

    def rolling_back(self, reason: str) -> Deployment:
        progress, target = self.deployment.progress, self.deployment.target
        step = 0
        if target is not None and target.rollout.kind == "rolling":
            step = len(target.rollout.steps) if progress.stage is Stage.TERMINATING else progress.step
        begun = replace(
            progress, state=State.ROLLING_BACK, since_s=self.context.now_s, failure_reason=reason, fallback=None
        )
        return self._in_stage(Stage.PROVISIONING, step, progress=begun)

    def _in_stage(self, stage: Stage, step: int, *, progress: Progress | None = None) -> Deployment:
        progress = progress or self.deployment.progress
        changed = replace(progress, stage=stage, step=step, stage_since_s=self.context.now_s)
        return replace(self.deployment, progress=changed)

    def _settled(self, revision: Revision, *, failure_reason: str = "") -> Deployment:
        settled = Progress(
            observed_generation=self.deployment.progress.observed_generation,
            state=State.IN_SERVICE,
            since_s=self.context.now_s,
            stable=revision.number,
            failure_reason=failure_reason,
            num_unplaced=self.deployment.progress.num_unplaced,
        )
        return Deployment(progress=settled, revisions={revision.number: revision})

    def _has(self, wanted: Mapping[FleetKey, int]) -> bool:
        return all(num_ready(self.workers, fleet) >= count for fleet, count in wanted.items())

    def _hopeless_reason(self, revision: Revision) -> str:
        """Return why a revision that is being deployed cannot come up; empty while it still may."""
        since_s = self.deployment.progress.since_s
        failed = [
            worker
            for worker in self.workers
            if worker.revision == revision.number and worker.failed_s is not None and worker.failed_s >= since_s
        ]
        failed.sort(key=lambda worker: (worker.failed_s or 0.0, worker.name))
        permanent = next((worker.failure for worker in failed if worker.is_permanent), None)
        if permanent is not None:
            return permanent
        return failed[-1].failure if len(failed) > self.context.config.num_allowed_failures else ""


def rollout_bound_s(target: Revision, config: ReconcilerConfig) -> float:
    """Return the longest that an update may take until its last step has baked."""
    rollout = target.rollout
    if rollout.max_s is not None:
        return rollout.max_s
    num_fleets = len(rollout.steps) if rollout.kind == "rolling" else 1
    return num_fleets * 2 * target.startup_bound_s + len(rollout.steps) * rollout.wait_s + config.slack_s


def num_ready(workers: Iterable[WorkerView], fleet: FleetKey) -> int:
    return sum(worker.can_serve for worker in workers if worker.fleet == fleet)
