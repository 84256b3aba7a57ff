"""Bugs to plant, so that it is known what the simulation finds: each replaces a few functions of Headrace."""

import asyncio
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.platform.autoscaling.loops import autoscaler
from headrace.platform.autoscaling.planning.decision import Scaling
from headrace.platform.cloudformation.lifecycle import Lifecycle
from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.loops.worker_manager import WorkerManager
from headrace.platform.control.model.workload import Stage
from headrace.platform.control.planning import plan, pool, worker_actions
from headrace.platform.control.planning.config import PassContext
from headrace.platform.control.planning.rollout import _Pass
from headrace.platform.gateway import app
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.async_invocations import AsyncInvocations
from headrace.platform.gateway.async_queue import AsyncQueue
from headrace.platform.gateway.forwarding import Forwarded
from headrace.platform.gateway.replica_state import WaitQueue
from headrace.platform.gateway.table import RouteTable
from headrace.platform.host.membership import Shared
from headrace.platform.jobs.spool import Spool
from headrace.platform.state import coordination
from headrace.platform.state.coordination import Coordination
from headrace.platform.state.records import Conflict, Fenced
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError
from tests.simulation import database

Make = Callable[[Any], Any]
"""Makes the faulty function of the right one."""


@dataclass(frozen=True)
class Bug:
    """A bug, and where it is."""

    what: str
    places: tuple[tuple[Any, str, Make], ...]


def _late(extra_s: float) -> Make:
    return lambda waited_s: lambda self, since_s: waited_s(self, since_s) + extra_s


def _skip_step(in_stage: Any) -> Any:
    def skipping(self: _Pass, stage: Stage, step: int, **more: Any) -> Any:
        target = self.deployment.target
        if stage is Stage.PROVISIONING and step and target is not None and "progress" not in more:
            step = min(step + 1, len(target.rollout.steps) - 1)
        return in_stage(self, stage, step, **more)

    return skipping


def _lose_commits(commit: Any) -> Any:
    chooser = random.Random(1)

    def losing(self: Any) -> None:
        current = database._current
        if current is not None and current.is_written and chooser.random() < 0.02:
            database.CONNECTION.rollback()
        else:
            commit(self)

    return losing


def _forget_to_stop(_: Any) -> Any:
    async def stop(self: WorkerManager, owned: Any, name: str, _grace_s: float) -> None:
        status = owned.records[name].status
        if status.stopping_s is None:
            await self._write(owned, name, status=msgspec.structs.replace(status, stopping_s=self.clock()))

    return stop


def _forget_at_once(put_away: Any) -> Any:
    def putting_away(workers: Any, context: Any, **more: Any) -> Any:
        return [
            worker_actions.Forget(worker=action.worker) if isinstance(action, worker_actions.Stop) else action
            for action in put_away(workers, context, **more)
        ]

    return putting_away


def _keep_dead(observe: Any) -> Any:
    async def observing(self: WorkerManager, record: Any) -> Any:
        return record if record.status.phase is WorkerPhase.READY else await observe(self, record)

    return observing


def _send_again(invoke: Any) -> Any:
    async def invoking(service: Any, invocation: Any, body: bytes, exchange: Any, record: Any) -> None:
        try:
            await invoke(service, invocation, body, exchange, record)
        except AwsError:
            if record.model_status != 200:
                raise
            await invoke(service, invocation, body, exchange, record)

    return invoking


def _keep_routes(refresh: Any) -> Any:
    async def refreshing(self: RouteTable) -> None:
        before = dict(self._routes)
        await refresh(self)
        self._routes = before | self._routes

    return refreshing


def _below_minimum(within_bounds: Any) -> Any:
    def within(state: Any) -> int | None:
        number = within_bounds(state)
        return None if number is None else max(0, number - 1)

    return within


def _place_as_if(change: Callable[[Any], Any]) -> Make:
    def make(choose: Any) -> Any:
        return lambda *args, placed, **more: choose(*args, placed=change(placed), **more)

    return make


def _conflicts_succeed(update: Any) -> Any:
    def updating(self: Store, record: Any, **changes: Any) -> Any:
        try:
            return update(self, record, **changes)
        except Fenced:
            raise
        except Conflict:
            return record

    return updating


def _store_later(_: Any) -> Any:
    tasks: set[asyncio.Task[None]] = set()

    async def store_later(self: AsyncInvocations, pending: Any) -> None:
        async def save() -> None:
            await asyncio.sleep(0.1)
            await self.pending.run(self.pending.save, pending)
            self.on_accepted_for_others()

        tasks.add(asyncio.create_task(save()))

    return store_later


def _run_on(run_async: Any) -> Any:
    tasks: dict[Any, asyncio.Task[None]] = {}

    async def running(self: Gateway, _has_lease: Any) -> None:
        if (before := tasks.pop(self, None)) is not None:
            before.cancel()
            await asyncio.wait([before])
        tasks[self] = asyncio.create_task(run_async(self))
        await asyncio.shield(tasks[self])

    return running


def _forget_logged(replay: Any) -> Any:
    def replaying(self: Spool) -> None:
        replay(self)
        if self._places:
            self._places[max(self._places) + 1] = (0, 0)

    return replaying


def _nothing(_: Any) -> Any:
    return lambda *_args, **_more: None


async def _lead_on(_: Shared) -> None:
    pass


def _terminate_at_once(roll_out: Any) -> Any:
    def rolling(self: _Pass, target: Any) -> Any:
        is_over = self.deployment.progress.stage is Stage.TERMINATING
        return self._settled(target) if is_over else roll_out(self, target)

    return rolling


def _leak_admission(close: Any) -> Any:
    def closing(self: Forwarded) -> None:
        self.admission = None
        close(self)

    return closing


def _remove_early(removal: Any) -> Any:
    def removing(deleting_s: float, workers: Any, context: PassContext) -> Any:
        planned = removal(deleting_s, workers, context)
        others = [action for action in planned.actions if not isinstance(action, worker_actions.RemoveRecord)]
        return dataclasses.replace(planned, actions=(*others, worker_actions.RemoveRecord()))

    return removing


def _keep_lease(campaign: Any) -> Any:
    def campaigning(self: Coordination, connection: Any, *, is_candidate: bool, **facts: Any) -> None:
        if is_candidate:
            campaign(self, connection, is_candidate=True, **facts)

    return campaigning


def _create_again(_: Any) -> Any:
    async def resume(self: Lifecycle, pending: Any) -> Any:
        return await self._call(lambda: self.resources.create(pending))

    return resume


BUGS: Final[Mapping[str, Bug]] = {
    "no-fence": Bug(
        "the writes of a leader are not fenced by its term", ((Store, "fenced", lambda _: lambda self, _term: self),)
    ),
    "endless-lease": Bug(
        "a lease does not expire",
        ((coordination, "_times", lambda _: lambda _now_s: {"now_s": 0.0, "latest_s": math.inf}),),
    ),
    "lost-commit": Bug(
        "one of 50 writes is acknowledged and not committed", ((database._Connection, "commit", _lose_commits),)
    ),
    "short-bake": Bug("traffic moves a second too early", ((PassContext, "waited_s", _late(1.0)),)),
    "skipped-step": Bug("a rollout leaves out its second step", ((_Pass, "_in_stage", _skip_step),)),
    "never-stopped": Bug("a worker is marked as stopped, and runs on", ((WorkerManager, "_stop", _forget_to_stop),)),
    "left-orphans": Bug(
        "a worker is forgotten instead of stopped, and the sweep ends no process without a record",
        (
            (worker_actions, "_put_away", _forget_at_once),
            (WorkerManager, "end_orphan", lambda _: _true),
        ),
    ),
    "unseen-crash": Bug("a worker that was ready is not looked at again", ((WorkerManager, "observe", _keep_dead),)),
    "free-capacity": Bug(
        "the copies on an instance take no room", ((pool, "choose_instance", _place_as_if(lambda _: ())),)
    ),
    "double-capacity": Bug(
        "each copy on an instance counts twice",
        ((pool, "choose_instance", _place_as_if(lambda placed: [*placed, *placed])),),
    ),
    "lost-wake-up": Bug(
        "held requests are not released when a replica comes",
        ((WaitQueue, "release", _nothing), (WaitQueue, "_remind", _nothing)),
    ),
    "sent-again": Bug("a request is sent again after its answer has begun and broken", ((app, "invoke", _send_again),)),
    "stale-route": Bug("the routes of deleted endpoints stay", ((RouteTable, "_refresh", _keep_routes),)),
    "lost-write": Bug(
        "a write that conflicts with another one is taken for success", ((Store, "update", _conflicts_succeed),)
    ),
    "async-not-stored": Bug(
        "an asynchronous invocation is accepted before it is stored", ((AsyncInvocations, "_store", _store_later),)
    ),
    "async-twice": Bug(
        "a member goes on with asynchronous invocations when another one leads", ((Gateway, "run_async", _run_on),)
    ),
    "lost-line": Bug("a job that is resumed leaves out a line", ((Spool, "_replay", _forget_logged),)),
    "below-minimum": Bug(
        "scaling in ends one below the minimum", ((autoscaler, "capacity_within_bounds", _below_minimum),)
    ),
    "leads-on": Bug("a member leads on when its lease is lost", ((Shared, "_stop_leading", lambda _: _lead_on),)),
    "no-backoff": Bug(
        "the worker after a crash starts at once, however many there were",
        ((worker_actions, "restart_at_s", lambda _: lambda _workers, _fleet, context: context.now_s),),
    ),
    "ended-at-once": Bug(
        "the old workers of an update do not wait for their termination", ((_Pass, "_roll_out", _terminate_at_once),)
    ),
    "no-cooldown": Bug(
        "a policy scales again in its cooldown",
        ((Scaling, "is_cooling", lambda _: lambda self, _now_s: self.ended_s is None),),
    ),
    "leaked-admission": Bug(
        "requests to a serverless endpoint count when they are over", ((Forwarded, "close", _leak_admission),)
    ),
    "early-removal": Bug(
        "the record of an endpoint is removed before its workers have ended", ((plan, "plan_removal", _remove_early),)
    ),
    "never-expires": Bug(
        "asynchronous invocations do not expire",
        ((AsyncQueue, "due", lambda due: lambda self, routes, _now_s: due(self, routes, 0.0)),),
    ),
    "kept-lease": Bug("a member that stops in order keeps its lease", ((Coordination, "_campaign", _keep_lease),)),
    "created-again": Bug(
        "a stack that goes on creates a resource that it has created", ((Lifecycle, "_resume", _create_again),)
    ),
}


async def _true(*_: Any) -> bool:
    return True


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug until the block ends."""
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in BUGS[name].places]
    try:
        for owner, attribute, make in BUGS[name].places:
            setattr(owner, attribute, make(getattr(owner, attribute)))
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)
