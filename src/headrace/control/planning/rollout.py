"""
The life of an endpoint as a state machine. Pure: what was asked, the workers and the time give the next `Progress`.

    Creating ──ready──> InService ──asked──> Updating ──done──> InService
       └──hopeless──> Failed                    └──hopeless──> RollingBack ──> InService | UpdateRollbackFailed

An update walks through the rollout's steps, each PROVISIONING then BAKING, and ends with TERMINATING. Every transient
state has a deadline. Nothing here decides about single workers: see `plan`.

Copies of a component for which there is no room when it is scaled fail nothing: `version` counts those that have a
place, `Progress.lacking` the others, and it is scaled again when there is room for some of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.control.model.fleet import FleetKey, Limits, WorkerView, hopeless_reason, num_ready
from headrace.control.model.progress import EndpointView, Progress, Stage, State
from headrace.control.model.version import Desired, Rollout, Version, with_desired

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What else speaks against what is being deployed: reasons, empty where there is none."""

    no_room: str = ""
    """Workers that are missing have no place."""
    num_fitting: int = 0
    """So many of those that are missing have one."""
    growth: int = 0
    """So many that are lacking (`Progress.lacking`) have one now; no more than are lacking."""
    alarm: str = ""
    """An alarm of `AutoRollbackConfiguration` is in ALARM; matters once the new version has traffic."""


NOTHING = Outside()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Progress, and the versions it names."""

    progress: Progress
    versions: Mapping[int, Version]

    @property
    def stable(self) -> Version | None:
        """The version that serves."""
        generation = self.progress.stable
        return None if generation is None else self.versions[generation]

    @property
    def target(self) -> Version | None:
        """The version that is being deployed."""
        generation = self.progress.target
        return None if generation is None else self.versions[generation]


def take_up(view: EndpointView, now_s: float) -> Deployment:
    """Begin with what was asked since the last pass, if anything was."""
    progress, asked = view.progress, view.version
    if progress is None:
        first = Progress(
            observed=view.asked, state=State.CREATING, since_s=now_s, target=asked.generation, stage_since_s=now_s
        )
        return Deployment(progress=first, versions={asked.generation: asked})
    current = Deployment(progress=progress, versions=view.versions)
    stable = current.stable
    if progress.observed == view.asked or stable is None:
        return current
    begun = replace(
        progress, observed=view.asked, state=State.UPDATING, since_s=now_s, stage_since_s=now_s, failure_reason=""
    )
    if asked.generation == progress.stable:
        scaling = replace(begun, target=None, fallback=stable.desired, lacking=0)
        return Deployment(progress=scaling, versions={asked.generation: asked})
    target = _with_count(asked, min(_count(asked), _count(stable))) if progress.lacking else asked
    rollout = replace(
        begun,
        target=asked.generation,
        stage=Stage.PROVISIONING,
        step=0,
        fallback=None,
        lacking=_count(asked) - _count(target),
    )
    return Deployment(progress=rollout, versions={stable.generation: stable, asked.generation: target})


def advance(
    deployment: Deployment,
    workers: Sequence[WorkerView],
    *,
    now_s: float,
    limits: Limits,
    outside: Outside = NOTHING,
) -> Deployment:
    """Go as far as possible now."""
    num_steps = max(len(version.rollout.steps) for version in deployment.versions.values())
    for _ in range(2 * num_steps + 4):
        following = _advance_once(deployment, workers, now_s, limits, outside)
        if following == deployment:
            break
        deployment = following
    return deployment


def traffic_fraction(deployment: Deployment) -> float:
    """The target's part of the traffic, 0 to 1."""
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
    """How many workers each fleet needs now; fleets that are not named need none."""
    progress, stable, target = deployment.progress, deployment.stable, deployment.target
    if progress.state in (State.FAILED, State.DELETING):
        return {}
    wanted: dict[FleetKey, int] = {}
    if stable is not None:
        wanted |= {(one.name, stable.generation): one.count for one in stable.variants}
    if target is not None and is_rolling_back(deployment):
        kept = _passed_fraction(progress, target)
        wanted = _without_part(wanted, _fraction_at(target, _step_back(progress, target)))
        return wanted | {(one.name, target.generation): _part_of(one.count, kept) for one in target.variants}
    if target is None or progress.state not in (State.CREATING, State.UPDATING):
        return wanted
    if stable is not None and target.rollout.kind == "rolling":
        wanted = _without_part(wanted, _passed_fraction(progress, target))
    return wanted | _target_capacity(deployment, target)


def is_rolling_back(deployment: Deployment) -> bool:
    """Whether a rolling update is taken back: its workers serve until the old ones are there again; none is made."""
    target = deployment.target
    return target is not None and target.rollout.kind == "rolling" and deployment.progress.state is State.ROLLING_BACK


def _without_part(wanted: Mapping[FleetKey, int], part: float) -> dict[FleetKey, int]:
    return {fleet: count - math.floor(count * part + _EPSILON) for fleet, count in wanted.items()}


def _part_of(count: int, part: float) -> int:
    return math.ceil(count * part - _EPSILON)


def _passed_fraction(progress: Progress, target: Version) -> float:
    """The part of a rolling update whose traffic has moved for good."""
    return 1.0 if progress.stage is Stage.TERMINATING else _fraction_at(target, progress.step)


def _fraction_at(target: Version, num_steps: int) -> float:
    """The new version's part after so many steps."""
    return target.rollout.steps[num_steps - 1] if num_steps else 0.0


def _step_back(progress: Progress, target: Version) -> int:
    """How many steps of a rolling update are left when the next batch of old workers is there again."""
    least = _passed_fraction(progress, target) - target.rollout.rollback_part - _EPSILON
    return next(
        step for step in range(progress.step + 1) if step >= progress.step - 1 or _fraction_at(target, step) >= least
    )


def _target_capacity(deployment: Deployment, target: Version) -> dict[FleetKey, int]:
    """Workers of the target that the current step needs."""
    part = 1.0
    if deployment.stable is not None and target.rollout.kind == "rolling":
        part = target.rollout.steps[deployment.progress.step]
    return {(one.name, target.generation): _part_of(one.count, part) for one in target.variants}


def _advance_once(
    deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits, outside: Outside
) -> Deployment:
    match deployment.progress.state:
        case State.CREATING:
            return _create(deployment, workers, now_s, limits, outside)
        case State.UPDATING if deployment.progress.target is None:
            return _scale(deployment, workers, now_s, limits, outside)
        case State.UPDATING:
            return _roll_out(deployment, workers, now_s, limits, outside)
        case State.ROLLING_BACK:
            return _roll_back(deployment, workers, now_s, limits, outside)
        case State.IN_SERVICE if deployment.progress.lacking:
            return _grow(deployment, now_s, outside)
        case _:
            return deployment


def _create(
    deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits, outside: Outside
) -> Deployment:
    progress, target = deployment.progress, deployment.target
    assert target is not None
    reason = hopeless_reason(workers, target.generation, since_s=progress.since_s, limits=limits)
    reason = reason or outside.no_room or None
    waited_s = limits.waited_s(progress.since_s, now_s)
    if reason is None and waited_s > 2 * target.startup_bound_s + limits.slack_s:
        reason = f"The endpoint was not ready after {waited_s:.0f} s."
    if reason is not None:
        failed = replace(progress, state=State.FAILED, since_s=now_s, failure_reason=reason)
        return replace(deployment, progress=failed)
    if not _has_capacity(_target_capacity(deployment, target), workers):
        return deployment
    return _settled(deployment, target, now_s)


def _scale(
    deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits, outside: Outside
) -> Deployment:
    """New weights and counts of the version that serves."""
    progress, stable = deployment.progress, deployment.stable
    assert stable is not None
    if _has_capacity(wanted_workers(deployment), workers):
        return _settled(deployment, stable, now_s, failure_reason=progress.failure_reason)
    reason = hopeless_reason(workers, stable.generation, since_s=progress.since_s, limits=limits)
    if reason is None and outside.no_room:
        return _cut_down(deployment, stable, workers, outside)
    waited_s = limits.waited_s(progress.since_s, now_s)
    if reason is None and waited_s > 2 * stable.startup_bound_s + limits.slack_s:
        reason = f"The workers that were asked for were not ready after {waited_s:.0f} s."
    if reason is None:
        return deployment
    earlier = with_desired(stable, progress.fallback or stable.desired)
    reverted = Deployment(
        progress=replace(progress, lacking=0), versions={**deployment.versions, stable.generation: earlier}
    )
    return _rolling_back(reverted, reason, now_s)


def _cut_down(deployment: Deployment, stable: Version, workers: Sequence[WorkerView], outside: Outside) -> Deployment:
    """Go on with the copies that stand or have a place; the others are lacking."""
    fleet = (stable.variants[0].name, stable.generation)
    standing = sum(one.is_wanted and not one.is_leaving for one in workers if one.fleet == fleet)
    granted = min(_count(stable), standing + outside.num_fitting)
    lacking = deployment.progress.lacking + _count(stable) - granted
    return _granted(deployment, stable, granted, lacking=lacking, no_room=outside.no_room)


def _grow(deployment: Deployment, now_s: float, outside: Outside) -> Deployment:
    """Scale a component by those of its lacking copies that have room now; else say why there are none."""
    progress, stable = deployment.progress, deployment.stable
    assert stable is not None
    if outside.growth:
        begun = replace(progress, state=State.UPDATING, since_s=now_s, stage_since_s=now_s, fallback=stable.desired)
        lacking, granted = progress.lacking - outside.growth, _count(stable) + outside.growth
        scaling = replace(deployment, progress=begun)
        return _granted(scaling, stable, granted, lacking=lacking, no_room=outside.no_room)
    if progress.failure_reason or not outside.no_room:
        return deployment
    return _granted(deployment, stable, _count(stable), lacking=progress.lacking, no_room=outside.no_room)


def _granted(deployment: Deployment, stable: Version, count: int, *, lacking: int, no_room: str) -> Deployment:
    """So many copies of a component have a place, and so many have none."""
    reason = ""
    if lacking:
        reason = f"{no_room} {lacking} of {count + lacking} copies are missing; they start when there is room for them."
    return Deployment(
        progress=replace(deployment.progress, lacking=lacking, failure_reason=reason),
        versions={**deployment.versions, stable.generation: _with_count(stable, count)},
    )


def _count(version: Version) -> int:
    return sum(one.count for one in version.variants)


def _with_count(version: Version, count: int) -> Version:
    """A component's version with another number of copies; it has one variant."""
    (variant,) = version.variants
    return with_desired(version, {variant.name: Desired(weight=variant.weight, count=count)})


def _roll_out(
    deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits, outside: Outside
) -> Deployment:
    progress, target = deployment.progress, deployment.target
    assert target is not None
    rollout, in_stage_s = target.rollout, now_s - progress.stage_since_s
    is_terminating = progress.stage is Stage.TERMINATING
    reason = hopeless_reason(workers, target.generation, since_s=progress.since_s, limits=limits)
    reason = reason or outside.no_room or (outside.alarm if traffic_fraction(deployment) > 0 else "") or None
    waited_s = limits.waited_s(progress.since_s, now_s)
    if reason is None and not is_terminating and waited_s > rollout_bound_s(target, limits):
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
    """After a step's workers have come, or its traffic has baked."""
    progress = deployment.progress
    if progress.stage is Stage.PROVISIONING:
        return _in_stage(deployment, Stage.BAKING, progress.step, now_s)
    if progress.step + 1 < len(rollout.steps):
        return _in_stage(deployment, Stage.PROVISIONING, progress.step + 1, now_s)
    return _in_stage(deployment, Stage.TERMINATING, progress.step, now_s)


def _roll_back(
    deployment: Deployment, workers: Sequence[WorkerView], now_s: float, limits: Limits, outside: Outside
) -> Deployment:
    """The old fleet again, in batches if the new one came so, and if there is room for both meanwhile."""
    progress, stable, target = deployment.progress, deployment.stable, deployment.target
    assert stable is not None
    wanted = {fleet: count for fleet, count in wanted_workers(deployment).items() if fleet[1] == stable.generation}
    if target is not None and progress.step and outside.no_room:
        return _in_stage(deployment, Stage.PROVISIONING, 0, now_s)
    if _has_capacity(wanted, workers):
        if target is not None and progress.step:
            return _in_stage(deployment, Stage.PROVISIONING, _step_back(progress, target), now_s)
        return _settled(deployment, stable, now_s, failure_reason=progress.failure_reason)
    if limits.waited_s(progress.stage_since_s, now_s) <= 2 * stable.startup_bound_s + limits.slack_s:
        return deployment
    stuck = replace(progress, state=State.UPDATE_ROLLBACK_FAILED, since_s=now_s, target=None)
    return Deployment(progress=stuck, versions={stable.generation: stable})


def rollout_bound_s(target: Version, limits: Limits) -> float:
    """The longest that an update may take until its last step has baked."""
    rollout = target.rollout
    if rollout.max_s is not None:
        return rollout.max_s
    num_fleets = len(rollout.steps) if rollout.kind == "rolling" else 1
    return num_fleets * 2 * target.startup_bound_s + len(rollout.steps) * rollout.wait_s + limits.slack_s


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


def _settled(deployment: Deployment, version: Version, now_s: float, *, failure_reason: str = "") -> Deployment:
    """In service with one version."""
    settled = Progress(
        observed=deployment.progress.observed,
        state=State.IN_SERVICE,
        since_s=now_s,
        stable=version.generation,
        failure_reason=failure_reason,
        lacking=deployment.progress.lacking,
    )
    return Deployment(progress=settled, versions={version.generation: version})
