"""
The autoscaler: evaluates alarms and scales targets every ten seconds, and at once after a write to the store.

Level-triggered like the reconciler: a pass decides by the store and the metrics alone, and may be interrupted anywhere.
Without alarms and targets it sleeps until the next write.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from headrace.core.telemetry import get_logger
from headrace.platform.autoscaling.loops.target_pass import TargetPass
from headrace.platform.autoscaling.records.activities import (
    SCALING_ACTIVITY,
    drop_old,
)
from headrace.platform.autoscaling.records.policies import (
    AutoscalingRecords,
    ensure_alarms,
    read_records,
    remove_orphans,
)
from headrace.platform.cloudwatch.alarms.records import EvaluatedAlarm
from headrace.platform.cloudwatch.evaluator import AlarmEvaluator
from headrace.platform.cloudwatch.metrics.metric import SeriesReader
from headrace.platform.control.loops.store_access import changes, grouped
from headrace.platform.state.records import Conflict, Unreadable, readable
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope

PERIOD_S = 10.0
"""Seconds between two passes."""
_OFFSET_S = 1.0
"""Seconds after each multiple of the period since 1970 at which a pass starts: the latest measurements have arrived."""
_BURST_S = 0.1
"""Writes within this time are handled by one pass."""
_RETRY_S = 0.2
"""Seconds before the next pass after a write conflict."""


class Autoscaler:
    """A task that scales all targets; `run` until cancelled."""

    def __init__(
        self,
        *,
        store: Store,
        series: SeriesReader,
        aws_scope: AwsScope,
        is_strict: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._aws_scope = aws_scope
        self._is_strict = is_strict
        self._clock = clock
        self._awake_since_s = clock()
        """There are no earlier measurements, because the platform was down."""
        self._alarms = AlarmEvaluator(store, series)
        self._faults: dict[str, str] = {}
        """The fault of the last pass by the uid of a target or policy; "" for the pass itself."""

    async def run(self) -> None:
        """Run passes until cancelled."""
        with changes(self._store) as changed:
            while True:
                changed.clear()
                try:
                    pause_s = await self.pass_once()
                    self._faults.pop("", None)
                except Conflict:
                    pause_s = _RETRY_S
                except Exception as error:  # noqa: BLE001 -- an edge: logged and retried
                    self._note_fault("", error)
                    pause_s = PERIOD_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await changed.wait()
                await asyncio.sleep(_BURST_S)

    async def pass_once(self) -> float | None:
        """Run one pass; return the seconds until the next one, or None to wait for a write."""
        return await asyncio.to_thread(self.run_pass)

    def run_pass(self) -> float | None:
        """Run one pass in this thread; blocks on the store."""
        now_s = self._clock()
        records = read_records(self._store)
        if remove_orphans(self._store, self._aws_scope, records):
            return _RETRY_S  # what was read is out of date
        for record in (*records.policies, *records.actions, *records.targets):
            if isinstance(record, Unreadable):
                self._note_fault(record.uid, ValueError(f"{record.name} cannot be read: {record.reason}"))
        alarms_by_name = {alarm.name: alarm for alarm in records.alarms}
        for policy in readable(records.policies):
            ensure = partial(ensure_alarms, self._store, self._aws_scope, policy, find=alarms_by_name.get, now_s=now_s)
            self._guarded(policy.uid, ensure)
        # Policies first: an alarm that a new policy needs is evaluated in the same pass.
        alarms = self._alarms.evaluate_all(now_s=now_s)
        if not self._scale_all(records, alarms, now_s):
            return _RETRY_S
        if not records.targets and not alarms:
            return None
        return PERIOD_S - (now_s - _OFFSET_S) % PERIOD_S

    def _scale_all(self, records: AutoscalingRecords, alarms: Sequence[EvaluatedAlarm], now_s: float) -> bool:
        """Run a pass over each target; False if one met a write conflict."""
        if not records.targets:
            return True
        policies_of = grouped(readable(records.policies), lambda record: record.spec.key.name)
        actions_of = grouped(readable(records.actions), lambda record: record.spec.key.name)
        activities_of = grouped(readable(self._store.list(SCALING_ACTIVITY)), lambda record: record.spec.key.name)
        is_done = True
        for target in readable(records.targets):
            target_pass = TargetPass(
                store=self._store,
                aws_scope=self._aws_scope,
                record=target,
                policies=policies_of[target.name],
                actions=actions_of[target.name],
                activities=activities_of[target.name],
                alarms=alarms,
                now_s=now_s,
                awake_since_s=self._awake_since_s,
                copies_follow=not self._is_strict,
            )
            is_done = self._guarded(target.uid, target_pass.run) and is_done
        for activities in activities_of.values():
            drop_old(self._store, activities, now_s=now_s)
        return is_done

    def _guarded(self, uid: str, step: Callable[[], None]) -> bool:
        """Run a step for one policy or target, whose faults do not affect others; False on a write conflict."""
        try:
            step()
        except Conflict:
            return False
        except Exception as error:  # noqa: BLE001 -- an edge: logged and retried
            self._note_fault(uid, error)
            return True
        self._faults.pop(uid, None)
        return True

    def _note_fault(self, uid: str, error: Exception) -> None:
        """Log a fault once until it changes."""
        if self._faults.get(uid) != repr(error):
            self._faults[uid] = repr(error)
            get_logger().error("autoscaler.failed", target=uid, exc_info=error)
