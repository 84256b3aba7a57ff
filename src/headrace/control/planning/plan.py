"""
The next actions for one endpoint or component: its record, its workers and the time give actions, routes and a status.

The reconciler calls it once per pass with the current state, not with events: after a crash of a worker or of the
platform the next pass decides again. Executing an action twice, or partly, does no harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cluster.launcher import WorkerPhase
from headrace.control.model.worker import WorkerView
from headrace.control.model.workload import Deployable, State
from headrace.control.planning.config import PassContext, ReconcilerConfig
from headrace.control.planning.deployment import NO_CONDITIONS, Deployment, ExternalConditions, start_deployment
from headrace.control.planning.rollout import advance, desired_state
from headrace.control.planning.routes import plan_variants
from headrace.control.planning.worker_actions import Action, end_workers, plan_workers, removal_actions
from headrace.state.routes import VariantRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The outcome of planning one endpoint or component."""

    deployment: Deployment | None
    """The deployment; None while the record is being deleted."""
    variants: tuple[VariantRoute, ...] = ()
    """Routes of its variants."""
    actions: tuple[Action, ...]
    is_stable: bool = False
    """The state is not transient, and each worker is ready or has ended."""

    @property
    def is_settled(self) -> bool:
        """True if nothing is in progress, so that the next pass may come later."""
        return self.is_stable and not self.actions


def plan_deployable(
    record: Deployable,
    workers: Sequence[WorkerView],
    context: PassContext,
    *,
    conditions: ExternalConditions = NO_CONDITIONS,
) -> Plan:
    """
    Plan one endpoint, or one inference component.

    Args:
        record: the record of the endpoint or the component.
        workers: all of its workers, dead ones included.
        context: the values that are fixed during the pass.
        conditions: conditions that the workers do not show.
    """
    now_s, config = context.now_s, context.config
    if record.deleting_s is not None:
        return plan_removal(record.deleting_s, workers, now_s=now_s, config=config)
    deployment = advance(start_deployment(record, now_s), workers, now_s=now_s, config=config, conditions=conditions)
    desired = desired_state(deployment)
    changes = plan_workers(desired, workers, now_s=now_s, config=config)
    variants = plan_variants(record, deployment, desired, changes.staying, starting=changes.starting)
    return Plan(
        deployment=deployment, variants=variants, actions=changes.actions, is_stable=_is_stable(deployment, workers)
    )


def plan_orphans(workers: Sequence[WorkerView], *, now_s: float, config: ReconcilerConfig) -> tuple[Action, ...]:
    """Plan the end of workers whose endpoint or component is gone."""
    return tuple(end_workers(workers, now_s, config))


def plan_removal(deleting_s: float, workers: Sequence[WorkerView], *, now_s: float, config: ReconcilerConfig) -> Plan:
    """Plan a deletion."""
    actions = removal_actions(deleting_s, workers, now_s=now_s, config=config)
    return Plan(deployment=None, actions=actions)


def _is_stable(deployment: Deployment, workers: Sequence[WorkerView]) -> bool:
    is_calm = deployment.progress.state in (State.IN_SERVICE, State.FAILED, State.UPDATE_ROLLBACK_FAILED)
    return is_calm and all(worker.phase in (WorkerPhase.READY, WorkerPhase.EXITED) for worker in workers)
