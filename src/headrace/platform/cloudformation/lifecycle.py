"""The life of one resource of a stack: create, update, replace, delete, each resumable after a kill."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec.structs import replace

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.cloudformation.journal import Journal
from headrace.platform.cloudformation.properties import difference
from headrace.platform.cloudformation.records import Instance, StackResource
from headrace.platform.cloudformation.resources import ResourceFailed, Resources
from headrace.platform.cloudformation.template.template import Resource
from headrace.platform.cloudformation.types import type_rows
from headrace.platform.control.loops.store_access import run_to_end
from headrace.platform.state.records import Fenced, Json
from headrace.serving.wire.aws.errors import AwsError

MAX_POLL_S: Final = 15.0
"""Longest pause between two looks at a resource that is changing; a write to the store ends it."""
_MAX_CALLS: Final = 2
"""Calls of one stack at the same time: other requests need the threads, too."""
_INTERNAL: Final = "Internal Failure"
_REPLACING: Final = "Requested update requires the creation of a new physical resource; hence creating one."
_INITIATED: Final = "Resource creation Initiated"

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """Acts on the resources of a stack, and notes those that failed."""

    journal: Journal
    resources: Resources
    num_writes: Callable[[], int]
    changed: Callable[[int, float], Awaitable[None]]
    """Returns when the store was written after `num_writes` returned a number, or after so many seconds."""
    deadline_s: float | None = None
    """When the creation of the stack has taken too long, by the journal's clock."""
    failed: dict[str, str] = field(default_factory=dict)
    """Resources that failed in this phase, each with what failed: `create`, `update` or `delete`."""
    _calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CALLS))

    async def apply(self, name: str, template: Resource, depends_on: list[str], evaluate: Callable[[], Json]) -> None:
        """Make one resource what a template says; `evaluate` returns its properties."""
        known = self.journal.status.resources.get(name)
        resource = known or StackResource(state="", modified_s=self.journal.clock(), type=template.type)
        resource = replace(resource, depends_on=depends_on, policy=template.deletion_policy)
        kind = "create" if resource.current is None else "update"
        try:
            properties = await self._call(evaluate)
            if resource.current is None:
                await self._create(name, resource, template.type, properties)
            else:
                await self._change(name, resource, resource.current, template, properties)
        except (AwsError, ResourceFailed) as error:
            if _is_unavailable(error):
                raise  # the operation goes on when the database does
            await self._fail(name, resource, kind, str(error))
        except (Fenced, Unavailable):
            raise
        except Exception:  # noqa: BLE001 -- an edge: a bug fails one resource
            get_logger().exception("stack.crashed", stack=self.journal.stack.name, resource=name)
            await self._fail(name, resource, kind, _INTERNAL)

    async def _change(
        self, name: str, resource: StackResource, current: Instance, template: Resource, properties: Json
    ) -> None:
        current = replace(current, policy=template.deletion_policy)
        resource = replace(resource, current=current)
        self.journal.hold(name, resource)
        change = difference(type_rows()[template.type], current.properties, properties)
        if current.type != template.type or change.replacing:
            replaced = replace(current, policy=template.replace_policy)
            await self._replace(name, replace(resource, current=replaced), template.type, properties)
        elif change.changed or resource.attempted is not None:
            await self._update(name, resource, current, properties)

    async def _create(self, name: str, resource: StackResource, type_name: str, properties: Json) -> None:
        """Create an instance, or go on with the one that a killed platform was creating."""
        is_first = resource.current is None
        state = "CREATE_IN_PROGRESS" if is_first else "UPDATE_IN_PROGRESS"
        pending = resource.pending
        if pending is None:
            number = resource.num_created + 1
            resource = replace(resource, type=type_name, num_created=number, state=state)
            await self.journal.record(name, replace(resource, reason=None if is_first else _REPLACING))
            planned = await self._plan(name, resource, type_name, properties)
            resource = replace(resource, pending=planned, reason=_INITIATED)
            await self.journal.record(name, resource)
            pending = await self._call(lambda: self.resources.create(planned))
        else:
            pending = await self._resume(pending)
        resource = replace(resource, pending=pending)
        self.journal.hold(name, resource)
        created = await self._settled(pending, is_update=False)
        stale = resource.stale if resource.current is None else [*resource.stale, resource.current]
        resource = replace(resource, stale=stale, current=created, pending=None, reason=None)
        await self.journal.record(name, replace(resource, state="CREATE_COMPLETE" if is_first else "UPDATE_COMPLETE"))

    async def _resume(self, pending: Instance) -> Instance:
        found = await self._call(lambda: self.resources.read(pending))
        return pending if found is not None else await self._call(lambda: self.resources.create(pending))

    async def _plan(self, name: str, resource: StackResource, type_name: str, properties: Json) -> Instance:
        """Return the instance to create. Raises `ResourceFailed`: there is one of its name, which belongs to others."""
        number, policy, current = resource.num_created, resource.policy, resource.current
        planned = self.resources.plan(type_name, properties, logical_id=name, number=number, policy=policy)
        shown = planned.attributes.get("Ref") or next(iter(planned.identity.values()), "")
        if current is not None and current.type == type_name and current.identity == planned.identity:
            raise ResourceFailed(
                "CloudFormation cannot update a stack when a custom-named resource requires replacing. Rename "
                f"{shown} and update the stack again."
            )
        if type_rows()[type_name].read and await self._call(lambda: self.resources.read(planned)) is not None:
            raise ResourceFailed(f"{shown} already exists")
        return planned

    async def _replace(self, name: str, resource: StackResource, type_name: str, properties: Json) -> None:
        """Take back an instance that the update before has replaced, or create a new one."""
        current = resource.current
        assert current is not None
        resource = replace(resource, attempted=None)
        for instance in resource.stale:
            if instance.type == type_name and instance.properties == properties:
                stale = [*(other for other in resource.stale if other is not instance), current]
                resource = replace(resource, type=type_name, current=instance, stale=stale, pending=None)
                await self.journal.record(name, replace(resource, state="UPDATE_COMPLETE", reason=None))
                return
        await self._create(name, resource, type_name, properties)

    async def _update(self, name: str, resource: StackResource, current: Instance, properties: Json) -> None:
        before, after = [current], replace(current, properties=properties)
        if resource.attempted is not None:  # by a platform that was killed, or by the update that is rolled back
            before.append(replace(current, properties=resource.attempted))
        resource = replace(resource, attempted=properties, state="UPDATE_IN_PROGRESS", reason=None)
        await self.journal.record(name, resource)
        if len(before) > 1:
            await self._until_ready(after, is_update=False)
        await self._call(lambda: self.resources.update(before, after))
        settled = await self._settled(after, is_update=True)
        resource = replace(resource, current=settled, attempted=None)
        await self.journal.record(name, replace(resource, state="UPDATE_COMPLETE"))

    async def _settled(self, instance: Instance, *, is_update: bool) -> Instance:
        members = await self._until_ready(instance, is_update=is_update)
        return self.resources.with_attributes(instance, members)

    async def _until_ready(self, instance: Instance, *, is_update: bool) -> Json:
        while True:
            num_seen = self.num_writes()
            members = await self._call(lambda: self.resources.read(instance))
            if members is None:
                raise ResourceFailed("The resource was deleted while it was created or updated.")
            if self.resources.progress(instance, members, is_update=is_update) == "ready":
                return members
            if self.deadline_s is not None and self.journal.clock() > self.deadline_s:
                raise ResourceFailed("Stack creation time exceeded the specified timeout")
            if self.failed:
                raise ResourceFailed(f"Resource {'update' if is_update else 'creation'} cancelled")
            await self.changed(num_seen, MAX_POLL_S)

    async def _fail(self, name: str, resource: StackResource, kind: str, reason: str) -> None:
        """Record that a resource has failed; what was created of it is left for the cleanup."""
        self.failed[name] = kind
        resource = self.journal.status.resources.get(name, resource)
        shown = replace(resource, state=f"{kind.upper()}_FAILED", reason=reason)
        await self.journal.record(name, shown)
        if shown.pending is not None:
            self.journal.hold(name, replace(shown, stale=[*shown.stale, shown.pending], pending=None))

    async def skip(self, name: str) -> None:
        """Leave a resource as it is, as the caller of ContinueUpdateRollback has asked."""
        resource = self.journal.status.resources[name]
        await self.journal.record(name, replace(resource, state="UPDATE_COMPLETE", attempted=None, reason=None))

    def abandon(self) -> None:
        """Note for the cleanup the replacements that a cancelled update was creating."""
        for name, resource in self.journal.status.resources.items():
            if resource.current is not None and resource.pending is not None:
                stale = [*resource.stale, resource.pending]
                self.journal.hold(name, replace(resource, state="UPDATE_COMPLETE", stale=stale, pending=None))

    async def delete_stale(self, name: str) -> None:
        """Delete the instances that an update has replaced; what cannot be deleted is left, as on AWS."""
        resource = self.journal.status.resources[name]
        if not resource.stale:
            return
        for instance in resource.stale:
            reason = await self._try_delete(instance) if instance.policy != "Retain" else None
            if reason is not None:
                await self.journal.record(name, replace(resource, state="DELETE_FAILED", reason=reason))
        self.journal.hold(name, replace(resource, stale=[]))

    async def remove(self, name: str, *, is_rollback: bool) -> None:
        """Delete a resource with all its instances."""
        resource = self.journal.status.resources[name]
        if resource.state in ("DELETE_COMPLETE", "DELETE_SKIPPED"):
            return
        instances = [held for held in (resource.pending, resource.current, *resource.stale) if held is not None]
        is_kept = resource.policy == "Retain" or (resource.policy == "RetainExceptOnCreate" and not is_rollback)
        if is_kept and resource.current is not None:
            await self.journal.record(name, replace(resource, state="DELETE_SKIPPED", reason=None))
            return
        if instances:
            await self.journal.record(name, replace(resource, state="DELETE_IN_PROGRESS", reason=None))
        for instance in instances:
            if (reason := await self._try_delete(instance)) is not None:
                self.failed[name] = "delete"
                await self.journal.record(name, replace(resource, state="DELETE_FAILED", reason=reason))
                return
        await self.journal.record(name, replace(resource, state="DELETE_COMPLETE", reason=None))

    async def _try_delete(self, instance: Instance) -> str | None:
        """Delete an instance, when it has settled, and wait until it is gone; return why it cannot be."""
        is_slow = type_rows()[instance.type].status is not None
        try:
            await self._while(is_slow, lambda: self._is_changing(instance))
            if type_rows()[instance.type].stop:
                await self._call(lambda: self.resources.stop(instance))
                await self._while(is_slow, lambda: self._is_changing(instance))
            await self._call(lambda: self.resources.delete(instance))
            await self._while(is_slow, lambda: self.resources.read(instance) is not None)
        except (AwsError, ResourceFailed) as error:
            if _is_unavailable(error):
                raise
            return str(error)
        return None

    def _is_changing(self, instance: Instance) -> bool:
        members = self.resources.read(instance)
        try:
            return members is not None and self.resources.progress(instance, members, is_update=False) == "changing"
        except ResourceFailed:
            return False

    async def _while(self, is_slow: bool, holds: Callable[[], bool]) -> None:
        """Wait while something holds, if the type of a resource takes time at all."""
        num_seen = self.num_writes()
        while is_slow and await self._call(holds):
            await self.changed(num_seen, MAX_POLL_S)
            num_seen = self.num_writes()

    async def _call(self, function: Callable[[], _T]) -> _T:
        async with self._calls:
            return await run_to_end(function)


def _is_unavailable(error: Exception) -> bool:
    """Return whether the platform could not use its database: no fault of the resource."""
    return isinstance(error.__cause__, Unavailable)
