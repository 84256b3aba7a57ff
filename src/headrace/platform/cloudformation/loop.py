"""
The loop of stacks: it runs the newest operation of each stack, again after a platform was killed.

It reads only stacks that were written since it looked last, and does nothing while nothing is written.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.platform.cloudformation.calls import Call
from headrace.platform.cloudformation.exports import check_exports, export_value
from headrace.platform.cloudformation.records import SETTLED, STACK, StackRecord, StackStatus, visible_state
from headrace.platform.cloudformation.stack_names import archive_name, is_archived, stack_name_of
from headrace.platform.control.loops import store_access
from headrace.platform.state.records import AlreadyExists, Conflict, Fenced, Record
from headrace.platform.state.selection import Selection
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope

_BURST_S: Final = 0.05
"""Writes within this time are handled by one pass."""
KEPT_S: Final = 90 * 86_400.0
"""Deleted stacks are kept so long. Source: CloudFormation API reference, ListStacks."""


@dataclass(slots=True, kw_only=True)
class StackLoop:
    store: Store
    call: Call
    aws_scope: AwsScope
    clock: Callable[[], float] = time.time
    retry_s: float = 1.0
    """Seconds before an operation that was interrupted by an error of the platform goes on."""
    _tasks: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    """Running operations, by the names of their stacks."""
    _revision: int = 0
    """The store's revision up to which stacks were read."""
    _num_writes: int = 0
    """Times that something was written, as far as the loop knows."""
    _wake: Callable[[], None] = lambda: None
    """Begins a pass."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Notified with each of them."""

    async def run(self) -> None:
        """Run operations until cancelled; those that run then go on when this is called again."""
        self._revision = 0
        try:
            with store_access.changes(self.store) as changed:
                self._wake = changed.set
                while True:
                    changed.clear()
                    async with self._changed:
                        self._num_writes += 1
                        self._changed.notify_all()
                    if not await self._try_pass():
                        await asyncio.sleep(self.retry_s)
                        changed.set()
                    await changed.wait()
                    await asyncio.sleep(_BURST_S)
        finally:
            await self._end(*self._tasks.values())
            self._tasks.clear()

    async def _end(self, *tasks: "asyncio.Task[None]") -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _try_pass(self) -> bool:
        try:
            await self.pass_once()
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            get_logger().exception("stacks.pass_failed")
            return False
        return True

    async def pass_once(self) -> None:
        """Start the operations of stacks that have not settled."""
        for name, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[name]
                if not task.cancelled() and (error := task.exception()) is not None:
                    get_logger().error("stack.interrupted", stack=name, reason=repr(error)[:500])
                    self._revision = 0  # so that it is found again
        for record in await asyncio.to_thread(lambda: list(self._unsettled())):
            operation = record.spec.operation
            assert operation is not None, "a stack without an operation is settled"
            key = f"{record.uid} {operation.number}"  # the last stack of the name may still be ending
            if (running := self._tasks.get(record.name)) is not None:
                if running.get_name() == key:
                    continue
                await self._end(running)  # a delete, which may come before the end of a create or an update
            task = asyncio.create_task(self._run(record.name), name=key)
            task.add_done_callback(self._on_done)
            self._tasks[record.name] = task

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_later(self.retry_s, self._wake)

    def _unsettled(self) -> Iterator[StackRecord]:
        newest = self.store.revision()
        for entry in list(self.store.entries(STACK, Selection(after_revision=self._revision))):
            record = self.store.get(STACK, entry.name)
            if isinstance(record, Record) and not is_archived(record) and visible_state(record) not in SETTLED:
                yield record
        self._revision = newest

    async def _run(self, name: str) -> None:
        # Few platforms have stacks: the rest is imported with the first one.
        from headrace.platform.cloudformation.deployment import Deployment
        from headrace.platform.cloudformation.journal import Journal
        from headrace.platform.cloudformation.lifecycle import Lifecycle
        from headrace.platform.cloudformation.resources import Resources

        record = await asyncio.to_thread(self.store.get, STACK, name)
        if not isinstance(record, Record) or (operation := record.spec.operation) is None:
            return
        stack = stack_name_of(record, self.aws_scope)

        async def save(status: StackStatus) -> None:
            await store_access.run_to_end(partial(self._save, record, status))

        journal = Journal(stack=stack, status=record.status, save=save, clock=self.clock, token=operation.token)
        is_bounded = operation.timeout_s is not None and operation.action == "CREATE"
        lifecycle = Lifecycle(
            journal=journal,
            resources=Resources(call=self.call, stack=stack),
            num_writes=lambda: self._num_writes,
            changed=self._wait_for_write,
            deadline_s=operation.requested_s + (operation.timeout_s or 0.0) if is_bounded else None,
        )
        deployment = Deployment(
            operation=operation,
            journal=journal,
            lifecycle=lifecycle,
            exports=lambda name: export_value(self.store, name),
            check_exports=lambda outputs: check_exports(self.store, record.name, outputs),
        )
        await deployment.run()
        get_logger().info("stack.settled", stack=record.name, state=journal.status.state)

    async def _wait_for_write(self, num_seen: int, timeout_s: float) -> None:
        """Return when more was written than `num_seen` times, or after the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._num_writes != num_seen)

    def _save(self, record: StackRecord, status: StackStatus) -> None:
        """Write the status of a stack, whose spec may change at any time; a deleted one frees its name."""
        while True:
            newest = self.store.get(STACK, record.name)
            if not isinstance(newest, Record) or newest.uid != record.uid:
                raise Conflict(f"The stack {record.name} was removed while its operation ran.")
            try:
                if status.state == "DELETE_COMPLETE":
                    self._archive(newest, status)
                else:
                    self.store.update(newest, status=status)
            except Fenced:
                raise
            except Conflict:
                continue
            return

    def _archive(self, record: StackRecord, status: StackStatus) -> None:
        """Keep a deleted stack under another name; forget those that are too old."""
        with suppress(AlreadyExists):
            tags = {"created": f"{record.created_s}"}
            self.store.create(STACK, archive_name(record), spec=record.spec, status=status, tags=tags)
        self.store.remove(record)
        for old in list(self.store.each(STACK, Selection(created_before_s=self.clock() - KEPT_S))):
            if is_archived(old):
                self.store.remove(old)
