"""
The autoscaler: looks at alarms, then at scalable targets, every ten seconds, and at once when something was written.

Level-triggered as the reconciler is: a pass decides by what the store and the series say, and may be cut off anywhere.
Without alarms and targets it sleeps until somebody makes one.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from headrace.cloudwatch.alarm_watch import AlarmWatch
from headrace.cloudwatch.alarms.records import Watched
from headrace.cloudwatch.metrics.metric import SeriesReader
from headrace.control.autoscaling.loops.target_pass import Around, TargetPass
from headrace.control.autoscaling.planning.targets import read_key
from headrace.control.autoscaling.records.activities import drop_old
from headrace.control.autoscaling.records.alarm_upkeep import Holdings, ensure_alarms, read_holdings, remove_orphans
from headrace.control.loops.store_access import changes
from headrace.control.model.kinds import SCALING_ACTIVITY
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, RawRecord
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope

PERIOD_S = 10.0
"""Between two passes, at multiples of it since 1970 ..."""
_OFFSET_S = 1.0
"""... and a moment later, so that what was measured until then is there."""
_BURST_S = 0.1
"""Writes that come so close together are answered by one pass."""
_RETRY_S = 0.2
"""After somebody else wrote at the same moment."""


class Autoscaler:
    """One task; `run` until cancelled."""

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
        """Before that nothing was measured, as the platform was down."""
        self._alarms = AlarmWatch(store, series)
        self._faults: dict[str, str] = {}
        """By the uid of a target or a policy: what went wrong in the last pass."""
        self._log = get_logger()

    async def run(self) -> None:
        """Scale, for ever."""
        with changes(self._store) as changed:
            while True:
                changed.clear()
                pause_s = await self._guarded_pass()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await changed.wait()
                await asyncio.sleep(_BURST_S)

    async def pass_once(self) -> float | None:
        """Look at everything once; returns after how many seconds to look again, None: when something is written."""
        return await asyncio.to_thread(self.look)

    def look(self) -> float | None:
        """One pass, in this thread; blocks for a moment (the store)."""
        now_s = self._clock()
        held = read_holdings(self._store)
        if remove_orphans(self._store, self._aws_scope, held):
            return _RETRY_S
        known = {alarm.name: alarm for alarm in held.alarms}
        for policy in held.policies:
            self._ensure(policy, known, now_s)
        alarms = self._alarms.look(now_s=now_s)
        if not self._scale(held, alarms, now_s):
            return _RETRY_S
        if not held.targets and not alarms:
            return None
        return PERIOD_S - (now_s - _OFFSET_S) % PERIOD_S

    def _ensure(self, policy: RawRecord, known: Mapping[str, RawRecord], now_s: float) -> None:
        """Have the alarms of one policy; what is wrong with it hinders no other."""
        try:
            ensure_alarms(self._store, self._aws_scope, policy, find=known.get, now_s=now_s)
        except Conflict:
            return
        except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
            self._note_fault(policy.uid, error)
            return
        self._faults.pop(policy.uid, None)

    async def _guarded_pass(self) -> float | None:
        try:
            pause_s = await self.pass_once()
        except Conflict:
            return _RETRY_S
        except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
            self._note_fault("", error)
            return PERIOD_S
        self._faults.pop("", None)
        return pause_s

    def _scale(self, held: Holdings, alarms: Sequence[Watched], now_s: float) -> bool:
        """Look at all targets; says whether none has to be looked at again at once."""
        if not held.targets:
            return True
        policies_of, actions_of = _by_target(held.policies), _by_target(held.actions)
        activities_of = _by_target(self._store.list(SCALING_ACTIVITY))
        is_calm = True
        for target in held.targets:
            around = Around(
                policies=policies_of[target.name],
                actions=actions_of[target.name],
                activities=activities_of[target.name],
                alarms=alarms,
                awake_since_s=self._awake_since_s,
                copies_follow=not self._is_strict,
            )
            one = TargetPass(self._store, self._aws_scope, target, around, now_s=now_s)
            is_calm = self._guarded(one, target) and is_calm
        for records in activities_of.values():
            drop_old(self._store, records, now_s=now_s)
        return is_calm

    def _guarded(self, one: TargetPass, target: RawRecord) -> bool:
        """One target; what goes wrong with it is its own matter, and is tried again."""
        try:
            one.run()
        except Conflict:
            return False
        except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
            self._note_fault(target.uid, error)
            return True
        self._faults.pop(target.uid, None)
        return True

    def _note_fault(self, target: str, error: Exception) -> None:
        """Log what went wrong, once for as long as it is the same."""
        if self._faults.get(target) != repr(error):
            self._faults[target] = repr(error)
            self._log.error("autoscaler.failed", target=target, exc_info=error)


def _by_target(records: Sequence[RawRecord]) -> dict[str, list[RawRecord]]:
    """By the name of the record of their target; in the order in which they were made."""
    grouped: dict[str, list[RawRecord]] = defaultdict(list)
    for record in records:
        grouped[read_key(record.spec).name].append(record)
    return grouped
