"""
One operation on a stack, from its beginning or from where a platform was killed, to its end.

It is level-triggered: each phase compares the resources of a template with those that the record has, and acts on the
difference. A rollback deploys the template of before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.platform.cloudformation.evaluation import Evaluation, KnownValues
from headrace.platform.cloudformation.journal import Journal
from headrace.platform.cloudformation.lifecycle import Lifecycle
from headrace.platform.cloudformation.records import ROLLBACK, StackOperation
from headrace.platform.cloudformation.template.template import parse_template
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Runs the newest operation of a stack."""

    operation: StackOperation
    journal: Journal
    lifecycle: Lifecycle
    exports: Callable[[str], str]
    """Returns the value of an export. Raises `AwsError`."""
    check_exports: Callable[[Mapping[str, Json]], None]
    """Refuses outputs with an export that another stack has, and the end of one that another uses."""
    _outputs: dict[str, Json] = field(default_factory=dict)
    _imports: list[str] = field(default_factory=list)
    _reason: str | None = None
    """Why the phase failed, if it was no resource."""

    async def run(self) -> None:
        """Run phases until the stack has settled."""
        if self.journal.status.number < self.operation.number:
            if self.operation.action == ROLLBACK:
                self.lifecycle.abandon()
            self.journal.status = replace(self.journal.status, number=self.operation.number)
            await self.journal.enter(f"{self.operation.action}_IN_PROGRESS", "User Initiated")
        while (phase := _PHASES.get(self.journal.status.state)) is not None:
            self.lifecycle.failed.clear()
            self._reason = None
            await phase(self)

    async def create(self) -> None:
        if await self._deploy(self.operation):
            await self._end("CREATE_COMPLETE", self.operation)
            return
        match self.operation.on_failure:
            case "DO_NOTHING":
                await self.journal.enter("CREATE_FAILED", self._failures())
            case "DELETE":
                await self.journal.enter("DELETE_IN_PROGRESS", f"{self._failures()} Delete requested by user.")
            case _:
                await self.journal.enter("ROLLBACK_IN_PROGRESS", f"{self._failures()} Rollback requested by user.")

    async def roll_back_create(self) -> None:
        is_gone = await self._remove([*self.journal.status.resources], is_rollback=True)
        await self.journal.enter(*(("ROLLBACK_COMPLETE", None) if is_gone else ("ROLLBACK_FAILED", self._failures())))

    async def update(self) -> None:
        if await self._deploy(self.operation):
            await self._end("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", self.operation)
        elif self.operation.on_failure == "DO_NOTHING" or self.journal.status.deployed is None:
            await self.journal.enter("UPDATE_FAILED", self._failures())
        else:
            await self.journal.enter("UPDATE_ROLLBACK_IN_PROGRESS", self._failures())

    async def roll_back_update(self) -> None:
        before = self.operation if self.operation.action == ROLLBACK else self.journal.status.deployed
        assert before is not None, "an update without a deployed template fails without a rollback"
        if await self._deploy(before):
            await self._end("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", before)
        else:
            await self.journal.enter("UPDATE_ROLLBACK_FAILED", self._failures())

    async def clean_up(self) -> None:
        """Delete what the deployed template no longer has; what cannot be deleted is left, as on AWS."""
        deployed = self.journal.status.deployed
        assert deployed is not None, "only a deployed template is cleaned up after"
        kept = await asyncio.to_thread(lambda: self._evaluation(deployed).order())
        for name in reversed([*kept]):
            if name in self.journal.status.resources:
                await self.lifecycle.delete_stale(name)
        gone = [name for name in self.journal.status.resources if name not in kept]
        await self._remove(gone)
        for name in gone:
            self.journal.forget(name)
        await self.journal.enter(self.journal.status.state.removesuffix("_CLEANUP_IN_PROGRESS"))

    async def delete(self) -> None:
        names = [name for name in self.journal.status.resources if name not in self.operation.retained]
        is_gone = await self._remove(names)
        await self.journal.enter(*(("DELETE_COMPLETE", None) if is_gone else ("DELETE_FAILED", self._failures())))

    def _evaluation(self, operation: StackOperation) -> Evaluation:
        return Evaluation.of(parse_template(operation.template), operation, self.journal.stack)

    async def _deploy(self, operation: StackOperation) -> bool:
        """Create and update the resources of a template, each after those that it depends on; return success."""
        try:
            evaluation = await asyncio.to_thread(self._evaluation, operation)
            order = await asyncio.to_thread(evaluation.order)
        except AwsError as error:  # it was checked when it was requested, by another version of Headrace
            self._reason = error.message
            return False
        done = {name: asyncio.Event() for name in order}

        async def deploy(name: str) -> None:
            for needed in order[name]:
                await done[needed].wait()
            if self.operation.action == ROLLBACK and name in self.operation.retained:
                await self.lifecycle.skip(name)
            elif not self.lifecycle.failed:
                resource = evaluation.template.resources[name]
                evaluator = evaluation.evaluator(self._values())
                properties = lambda: evaluation.properties(name, evaluator)  # noqa: E731
                await self.lifecycle.apply(name, resource, order[name], properties)
            done[name].set()

        async with asyncio.TaskGroup() as group:
            for name in order:
                group.create_task(deploy(name))
        return not self.lifecycle.failed and await self._evaluate_outputs(evaluation)

    async def _evaluate_outputs(self, evaluation: Evaluation) -> bool:

        def evaluate() -> None:
            self._outputs = evaluation.outputs(evaluation.evaluator(self._values()))
            self._imports = sorted(evaluation.imports())
            self.check_exports(self._outputs)

        try:
            await asyncio.to_thread(evaluate)
        except AwsError as error:
            self._reason = error.message
        return self._reason is None

    def _values(self) -> KnownValues:

        def attributes(name: str) -> Mapping[str, str]:
            resource = self.journal.status.resources[name]
            return {} if resource.current is None else resource.current.attributes

        return KnownValues(attributes=attributes, exports=self.exports)

    async def _remove(self, names: list[str], *, is_rollback: bool = False) -> bool:
        """Delete resources, each after those that depend on it; return success."""
        resources = self.journal.status.resources
        done = {name: asyncio.Event() for name in names}
        users = {name: [user for user in names if name in resources[user].depends_on] for name in names}

        async def remove(name: str) -> None:
            for user in users[name]:
                await done[user].wait()
            if not self.lifecycle.failed.keys() & {*users[name]}:
                await self.lifecycle.remove(name, is_rollback=is_rollback)
            else:
                self.lifecycle.failed[name] = ""  # not tried, so that what it needs is not deleted either
            done[name].set()

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(remove(name))
        return not self.lifecycle.failed

    async def _end(self, state: str, deployed: StackOperation) -> None:
        """Enter the state after a deployment, with its outputs."""
        self.journal.status = replace(
            self.journal.status, deployed=deployed, outputs=self._outputs, imports=self._imports
        )
        await self.journal.enter(state)

    def _failures(self) -> str:
        if self._reason is not None:
            return self._reason
        kinds = {kind: [name for name, of in self.lifecycle.failed.items() if of == kind] for kind in _KINDS}
        return " ".join(
            f"The following resource(s) failed to {kind}: [{', '.join(names)}]."
            for kind, names in kinds.items()
            if names
        )


_KINDS = ("create", "update", "delete")
_PHASES: Mapping[str, Callable[[Deployment], Awaitable[None]]] = {
    "CREATE_IN_PROGRESS": Deployment.create,
    "DELETE_IN_PROGRESS": Deployment.delete,
    "ROLLBACK_IN_PROGRESS": Deployment.roll_back_create,
    "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS": Deployment.clean_up,
    "UPDATE_IN_PROGRESS": Deployment.update,
    "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS": Deployment.clean_up,
    "UPDATE_ROLLBACK_IN_PROGRESS": Deployment.roll_back_update,
}
