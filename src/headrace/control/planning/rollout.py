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

from msgspec.structs import replace

from headrace.control.model.rollout_config import Rollout
from headrace.control.model.worker import FleetKey, WorkerView
from headrace.control.model.workload import Progress, Revision, Stage, State
from headrace.control.planning.config import ReconcilerConfig
from headrace.control.planning.deployment import (
    NO_CONDITIONS,
    Deployment,
    DesiredState,
    ExternalConditions,
    with_count,
)

_EPSILON = 1e-9


def advance(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    *,
    now_s: float,
    config: ReconcilerConfig,
    conditions: ExternalConditions = NO_CONDITIONS,
) -> Deployment:
    """Advance the deployment as far as its workers and the time allow."""
    num_steps = max(len(revision.rollout.steps) for revision in deployment.revisions.values())
    for _ in range(2 * num_steps + 4):
        following = _advance_once(deployment, workers, now_s, config, conditions)
        if following == deployment:
            break
        deployment = following
    return deployment


def desired_state(deployment: Deployment) -> DesiredState:
    """Return the workers and the traffic that the deployment needs now."""
    return DesiredState(
        num_workers=wanted_workers(deployment),
        workloads={
            (workload.variant, number): workload
            for number, revision in deployment.revisions.items()
            for workload in revision.workloads
        },
        halted_revision=deployment.progress.target if is_rolling_back(deployment) else None,
        traffic_fraction=traffic_fraction(deployment),
    )


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


def _advance_once(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    now_s: float,
    config: ReconcilerConfig,
    conditions: ExternalConditions,
) -> Deployment:
    match deployment.progress.state:
        case State.CREATING:
            return _create(deployment, workers, now_s, config, conditions)
        case State.UPDATING if deployment.progress.target is None:
            return _scale(deployment, workers, now_s, config, conditions)
        case State.UPDATING:
            return _roll_out(deployment, workers, now_s, config, conditions)
        case State.ROLLING_BACK:
            return _roll_back(deployment, workers, now_s, config, conditions)
        case State.IN_SERVICE if deployment.progress.num_unplaced:
            return _grow(deployment, now_s, conditions)
        case _:
            return deployment


def _create(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    now_s: float,
    config: ReconcilerConfig,
    conditions: ExternalConditions,
) -> Deployment:
    progress, target = deployment.progress, deployment.target
    assert target is not None
    reason = hopeless_reason(workers, target.number, since_s=progress.since_s, config=config)
    reason = reason or conditions.no_room or None
    waited_s = config.waited_s(progress.since_s, now_s)
    if reason is None and waited_s > 2 * target.startup_bound_s + config.slack_s:
        reason = f"The endpoint was not ready after {waited_s:.0f} s."
    if reason is not None:
        failed = replace(progress, state=State.FAILED, since_s=now_s, failure_reason=reason)
        return replace(deployment, progress=failed)
    if not _has_capacity(_target_capacity(deployment, target), workers):
        return deployment
    return _settled(deployment, target, now_s)


def _scale(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    now_s: float,
    config: ReconcilerConfig,
    conditions: ExternalConditions,
) -> Deployment:
    """Apply new weights and counts of the revision that serves."""
    progress, stable = deployment.progress, deployment.stable
    assert stable is not None
    if _has_capacity(wanted_workers(deployment), workers):
        return _settled(deployment, stable, now_s, failure_reason=progress.failure_reason)
    reason = hopeless_reason(workers, stable.number, since_s=progress.since_s, config=config)
    if reason is None and conditions.no_room:
        return _cut_down(deployment, stable, workers, conditions)
    waited_s = config.waited_s(progress.since_s, now_s)
    if reason is None and waited_s > 2 * stable.startup_bound_s + config.slack_s:
        reason = f"The workers that were asked for were not ready after {waited_s:.0f} s."
    if reason is None:
        return deployment
    earlier = stable.with_desired(progress.fallback or stable.desired)
    reverted = Deployment(
        progress=replace(progress, num_unplaced=0), revisions={**deployment.revisions, stable.number: earlier}
    )
    return _rolling_back(reverted, reason, now_s)


def _cut_down(
    deployment: Deployment, stable: Revision, workers: Sequence[WorkerView], conditions: ExternalConditions
) -> Deployment:
    """Continue with the copies that run or have a place; the others become unplaced."""
    fleet = (stable.workloads[0].variant, stable.number)
    standing = sum(worker.is_wanted and not worker.is_leaving for worker in workers if worker.fleet == fleet)
    granted = min(stable.num_workers, standing + conditions.num_fitting)
    num_unplaced = deployment.progress.num_unplaced + stable.num_workers - granted
    return _granted(deployment, stable, granted, num_unplaced=num_unplaced, no_room=conditions.no_room)


def _grow(deployment: Deployment, now_s: float, conditions: ExternalConditions) -> Deployment:
    """Scale a component by those of its unplaced copies that have room now; else record why there are none."""
    progress, stable = deployment.progress, deployment.stable
    assert stable is not None
    if conditions.growth:
        begun = replace(progress, state=State.UPDATING, since_s=now_s, stage_since_s=now_s, fallback=stable.desired)
        num_unplaced, granted = progress.num_unplaced - conditions.growth, stable.num_workers + conditions.growth
        scaling = replace(deployment, progress=begun)
        return _granted(scaling, stable, granted, num_unplaced=num_unplaced, no_room=conditions.no_room)
    if progress.failure_reason or not conditions.no_room:
        return deployment
    return _granted(
        deployment, stable, stable.num_workers, num_unplaced=progress.num_unplaced, no_room=conditions.no_room
    )


def _granted(deployment: Deployment, stable: Revision, count: int, *, num_unplaced: int, no_room: str) -> Deployment:
    """Return the deployment with this number of copies that have a place, and `num_unplaced` that have none."""
    reason = ""
    if num_unplaced:
        missing = f"{num_unplaced} of {count + num_unplaced} copies are missing"
        reason = f"{no_room} {missing}; they start when there is room for them."
    return Deployment(
        progress=replace(deployment.progress, num_unplaced=num_unplaced, failure_reason=reason),
        revisions={**deployment.revisions, stable.number: with_count(stable, count)},
    )


def _roll_out(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    now_s: float,
    config: ReconcilerConfig,
    conditions: ExternalConditions,
) -> Deployment:
    progress, target = deployment.progress, deployment.target
    assert target is not None
    rollout, in_stage_s = target.rollout, config.waited_s(progress.stage_since_s, now_s)
    is_terminating = progress.stage is Stage.TERMINATING
    reason = hopeless_reason(workers, target.number, since_s=progress.since_s, config=config)
    reason = reason or conditions.no_room or (conditions.alarm if traffic_fraction(deployment) > 0 else "") or None
    waited_s = config.waited_s(progress.since_s, now_s)
    if reason is None and not is_terminating and waited_s > rollout_bound_s(target, config):
        reason = f"The update was not done after {waited_s:.0f} s."
    if reason is not None:
        return _rolling_back(deployment, reason, now_s)
    if is_terminating:
        is_over = in_stage_s >= rollout.termination_wait_s
        return _settled(deployment, target, now_s) if is_over else deployment
    is_complete = _has_capacity(_target_capacity(deployment, target), workers)
    if not is_complete or (progress.stage is Stage.BAKING and in_stage_s < rollout.wait_s):
        return deployment
    return _next_stage(deployment, rollout, now_s)


def _next_stage(deployment: Deployment, rollout: Rollout, now_s: float) -> Deployment:
    """Return the next stage, after a step's workers have become ready or its traffic has baked."""
    progress = deployment.progress
    if progress.stage is Stage.PROVISIONING:
        return _in_stage(deployment, Stage.BAKING, progress.step, now_s)
    if progress.step + 1 < len(rollout.steps):
        return _in_stage(deployment, Stage.PROVISIONING, progress.step + 1, now_s)
    return _in_stage(deployment, Stage.TERMINATING, progress.step, now_s)


def _roll_back(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    now_s: float,
    config: ReconcilerConfig,
    conditions: ExternalConditions,
) -> Deployment:
    """Bring back the old fleet: in batches if the new one came in batches and there is room for both meanwhile."""
    progress, stable, target = deployment.progress, deployment.stable, deployment.target
    assert stable is not None
    wanted = {fleet: count for fleet, count in wanted_workers(deployment).items() if fleet[1] == stable.number}
    if target is not None and progress.step and conditions.no_room:
        return _in_stage(deployment, Stage.PROVISIONING, 0, now_s)
    if _has_capacity(wanted, workers):
        if target is not None and progress.step:
            return _in_stage(deployment, Stage.PROVISIONING, _step_back(progress, target), now_s)
        return _settled(deployment, stable, now_s, failure_reason=progress.failure_reason)
    if config.waited_s(progress.stage_since_s, now_s) <= 2 * stable.startup_bound_s + config.slack_s:
        return deployment
    stuck = replace(progress, state=State.UPDATE_ROLLBACK_FAILED, since_s=now_s, target=None)
    return Deployment(progress=stuck, revisions={stable.number: stable})


def rollout_bound_s(target: Revision, config: ReconcilerConfig) -> float:
    """Return the longest that an update may take until its last step has baked."""
    rollout = target.rollout
    if rollout.max_s is not None:
        return rollout.max_s
    num_fleets = len(rollout.steps) if rollout.kind == "rolling" else 1
    return num_fleets * 2 * target.startup_bound_s + len(rollout.steps) * rollout.wait_s + config.slack_s


def _has_capacity(wanted: Mapping[FleetKey, int], workers: Sequence[WorkerView]) -> bool:
    return all(num_ready(workers, fleet) >= count for fleet, count in wanted.items())


def _in_stage(deployment: Deployment, stage: Stage, step: int, now_s: float) -> Deployment:
    return replace(deployment, progress=replace(deployment.progress, stage=stage, step=step, stage_since_s=now_s))


def _rolling_back(deployment: Deployment, reason: str, now_s: float) -> Deployment:
    progress, target = deployment.progress, deployment.target
    step = 0
    if target is not None and target.rollout.kind == "rolling":
        step = len(target.rollout.steps) if progress.stage is Stage.TERMINATING else progress.step
    begun = replace(progress, state=State.ROLLING_BACK, since_s=now_s, failure_reason=reason, fallback=None)
    return _in_stage(replace(deployment, progress=begun), Stage.PROVISIONING, step, now_s)


def _settled(deployment: Deployment, revision: Revision, now_s: float, *, failure_reason: str = "") -> Deployment:
    """Return the deployment in service with one revision."""
    settled = Progress(
        observed_generation=deployment.progress.observed_generation,
        state=State.IN_SERVICE,
        since_s=now_s,
        stable=revision.number,
        failure_reason=failure_reason,
        num_unplaced=deployment.progress.num_unplaced,
    )
    return Deployment(progress=settled, revisions={revision.number: revision})


def num_ready(workers: Iterable[WorkerView], fleet: FleetKey) -> int:
    """Return how many workers of a fleet serve."""
    return sum(worker.can_serve for worker in workers if worker.fleet == fleet)


def failures_since(workers: Iterable[WorkerView], revision: int, since_s: float) -> list[WorkerView]:
    """Return the failed workers of a revision, oldest failure first."""
    failed = [
        worker
        for worker in workers
        if worker.revision == revision and worker.failed_s is not None and worker.failed_s >= since_s
    ]
    return sorted(failed, key=lambda worker: (worker.failed_s or 0.0, worker.name))


def hopeless_reason(
    workers: Iterable[WorkerView], revision: int, *, since_s: float, config: ReconcilerConfig
) -> str | None:
    """Return why a revision that is being deployed cannot come up, or None if it still may."""
    failed = failures_since(workers, revision, since_s)
    permanent = next((worker for worker in failed if worker.is_permanent), None)
    if permanent is not None:
        return permanent.failure
    return failed[-1].failure if len(failed) > config.num_allowed_failures else None
