"""The journal of a stack: states, resources and events, written to its record as they happen."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.platform.cloudformation.records import MAX_EVENTS, STACK_TYPE, StackEvent, StackResource, StackStatus
from headrace.platform.cloudformation.stack_names import StackName


@dataclass(slots=True, kw_only=True)
class Journal:
    """The status of a stack. Only the loop writes it."""

    stack: StackName
    status: StackStatus
    save: Callable[[StackStatus], Awaitable[None]]
    clock: Callable[[], float]
    token: str | None = None
    """The client's token of the operation, which its events repeat."""
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def enter(self, state: str, reason: str | None = None) -> None:
        """Record a state of the stack, with its event."""
        now_s = self.clock()
        status = replace(self.status, state=state, reason=reason)
        if state == "UPDATE_IN_PROGRESS":
            status = replace(status, updated_s=now_s)
        if state.startswith("DELETE_"):
            status = replace(status, deleted_s=now_s)
        self.status = status
        self._add(self.stack.name, self.stack.arn, STACK_TYPE, state, reason)
        await self._save()

    async def record(self, name: str, resource: StackResource) -> None:
        """Record a state of a resource, with its event."""
        resource = replace(resource, modified_s=self.clock())
        self.hold(name, resource)
        self._add(name, resource.physical_id, resource.type, resource.state, resource.reason)
        await self._save()

    def hold(self, name: str, resource: StackResource) -> None:
        """Change a resource without an event; the next write has it."""
        self.status = replace(self.status, resources={**self.status.resources, name: resource})

    def forget(self, name: str) -> None:
        self.status = replace(
            self.status, resources={key: value for key, value in self.status.resources.items() if key != name}
        )

    def _add(self, logical_id: str, physical_id: str, type_name: str, state: str, reason: str | None) -> None:
        event = StackEvent(
            id=str(uuid.uuid4()),
            time_s=self.clock(),
            logical_id=logical_id,
            physical_id=physical_id,
            type=type_name,
            state=state,
            reason=reason,
            token=self.token,
        )
        self.status = replace(self.status, events=[*self.status.events, event][-MAX_EVENTS:])

    async def _save(self) -> None:
        async with self._saving:  # the newest status is written, by whichever task comes last
            await self.save(self.status)
