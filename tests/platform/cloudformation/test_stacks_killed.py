"""A stack on a platform that is killed at any call, and started again."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.cloudformation.loop import StackLoop
from headrace.platform.cloudformation.records import STACK, StackRecord, StackStatus
from headrace.platform.control.app import ControlApp
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.records import Json
from headrace.platform.state.store import Store, open_store
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import AWS_SCOPE, ListedLogs
from tests.waiting import WAIT_S

from .test_stacks import ROLES

T = TypeVar("T")


class Killed(BaseException):
    """The platform ends here."""


def kill() -> None:
    raise Killed


def lose_database() -> None:
    raise Unavailable("The database is away.")


@dataclass(slots=True, kw_only=True)
class SteppedLoop(StackLoop):
    """Passes each write of a status to `step`."""

    step: Callable[[Callable[[], None]], None]

    def _save(self, record: StackRecord, status: StackStatus) -> None:
        self.step(lambda: super(SteppedLoop, self)._save(record, status))


@contextmanager
def platform() -> Iterator[tuple[Store, ControlApp]]:
    with closing(open_store("sqlite://")) as store:
        yield (
            store,
            ControlApp(store, OPERATIONS, aws_scope=AWS_SCOPE, logs=ListedLogs(), own_images={}, is_strict=False),
        )


@asynccontextmanager
async def running(loop: StackLoop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(("is_done", "end"), [(False, kill), (True, kill), (True, lose_database)])
async def test_a_platform_that_is_killed_at_any_call_goes_on_without_a_doubled_resource(
    *, is_done: bool, end: Callable[[], None]
) -> None:
    """
    The kill comes before or after each call and write of the stack: create, update with a replacement, and delete.

    A call or write whose answer the database has lost is no failure of the resource either.
    """
    before, after = ROLES, ROLES.replace('"2012-10-17"', '"2008-10-17"')
    num_steps = await _run_killed(before, after, at=None, is_done=is_done, end=end)
    assert num_steps > 60
    for at in range(2 + is_done, num_steps, 7):
        await _run_killed(before, after, at=at, is_done=is_done, end=end)


async def _run_killed(before: str, after: str, *, at: int | None, is_done: bool, end: Callable[[], None]) -> int:
    """Play a stack's life, killed at one call or write; return their number."""
    num_steps = 0
    with platform() as (store, control):

        def step(work: Callable[[], T]) -> T:
            nonlocal num_steps
            num_steps += 1
            is_kill = num_steps == at
            if is_kill and not is_done:
                end()
            answer = work()
            if is_kill:
                end()
            return answer

        def call(service: str, name: str, params: Json) -> Json:
            try:
                return step(lambda: control.call(service, name, params))
            except Unavailable as error:
                raise AwsError("ServiceUnavailable", error.message) from error

        def ask(name: str, **params: Any) -> Json:
            return control.call("cloudformation", name, params)

        async def settled(arn: str) -> str:
            while True:
                state: str = ask("DescribeStacks", StackName=arn)["Stacks"][0]["StackStatus"]
                if not state.endswith("IN_PROGRESS"):
                    return state
                await asyncio.sleep(0.002)

        loop = SteppedLoop(store=store, call=call, aws_scope=AWS_SCOPE, retry_s=0.001, step=step)
        async with running(loop):
            request = {"StackName": "s", "Capabilities": ["CAPABILITY_IAM"]}
            arn = ask("CreateStack", TemplateBody=before, **request)["StackId"]
            assert await settled(arn) == "CREATE_COMPLETE", at
            ask("UpdateStack", TemplateBody=after, **request)
            assert await settled(arn) == "UPDATE_COMPLETE", at
            assert len(control.call("iam", "ListPolicies", {"Scope": "Local"})["Policies"]) == 1, at
            assert len(control.call("iam", "ListRoles", {})["Roles"]) == 1, at
            ask("DeleteStack", StackName="s")
            assert await settled(arn) == "DELETE_COMPLETE", at
            assert not control.call("iam", "ListPolicies", {"Scope": "Local"})["Policies"], at
            assert not control.call("sagemaker", "ListModelPackageGroups", {})["ModelPackageGroupSummaryList"], at
    return num_steps


async def test_a_stack_is_created_again_before_the_last_one_of_its_name_has_noted_its_end() -> None:
    removed, released = threading.Event(), threading.Event()
    with platform() as (store, control):

        def step(work: Callable[[], None]) -> None:
            work()
            if not removed.is_set() and store.get(STACK, "s") is None:  # the answer to the commit is late
                removed.set()
                released.wait(WAIT_S)

        def ask(name: str, **params: Any) -> Any:
            return control.call("cloudformation", name, {"StackName": "s", **params})

        loop = SteppedLoop(store=store, call=control.call, aws_scope=AWS_SCOPE, retry_s=0.001, step=step)
        async with running(loop), asyncio.timeout(WAIT_S):
            try:
                for _ in range(2):
                    arn = ask("CreateStack", TemplateBody=ROLES, Capabilities=["CAPABILITY_IAM"])["StackId"]
                    ask("DeleteStack")
                    while not removed.is_set():
                        await asyncio.sleep(0.002)
                while not loop._tasks["s"].cancelling():  # it has found the new stack
                    await asyncio.sleep(0.002)
                released.set()
                while ask("DescribeStacks", StackName=arn)["Stacks"][0]["StackStatus"] != "DELETE_COMPLETE":
                    await asyncio.sleep(0.002)
            finally:
                released.set()
