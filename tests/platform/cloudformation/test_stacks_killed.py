"""A stack on a platform that is killed at any call, and started again."""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.cloudformation.loop import StackLoop
from headrace.platform.control.app import ControlApp
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.records import Json
from headrace.platform.state.store import open_store
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import AWS_SCOPE, ListedLogs

from .test_stacks import ROLES


class Killed(BaseException):
    """The platform ends here."""


def kill() -> None:
    raise Killed


def lose_database() -> None:
    raise AwsError("ServiceUnavailable", "The database is away.") from Unavailable("The database is away.")


@pytest.mark.parametrize(("is_done", "end"), [(False, kill), (True, kill), (True, lose_database)])
async def test_a_platform_that_is_killed_at_any_call_goes_on_without_a_doubled_resource(
    *, is_done: bool, end: Callable[[], None]
) -> None:
    """
    The kill comes before or after each call of the stack: create, update with a replacement, and delete.

    A call whose answer the database has lost is no failure of the resource either.
    """
    before, after = ROLES, ROLES.replace('"2012-10-17"', '"2008-10-17"')
    num_calls = await _run_killed(before, after, at=None, is_done=is_done, end=end)
    assert num_calls > 30
    for at in range(2 + is_done, num_calls, 6):
        await _run_killed(before, after, at=at, is_done=is_done, end=end)


async def _run_killed(before: str, after: str, *, at: int | None, is_done: bool, end: Callable[[], None]) -> int:
    """Play a stack's life, killed at one call; return the number of calls."""
    num_calls = 0
    with closing(open_store("sqlite://")) as store:
        control = ControlApp(store, OPERATIONS, aws_scope=AWS_SCOPE, logs=ListedLogs(), own_images={}, is_strict=False)

        def call(service: str, name: str, params: Json) -> Json:
            nonlocal num_calls
            num_calls += 1
            is_kill = num_calls == at
            if is_kill and not is_done:
                end()
            answer = control.call(service, name, params)
            if is_kill:
                end()
            return answer

        def ask(name: str, **params: Any) -> Json:
            return control.call("cloudformation", name, params)

        async def settled(arn: str) -> str:
            while True:
                state: str = ask("DescribeStacks", StackName=arn)["Stacks"][0]["StackStatus"]
                if not state.endswith("IN_PROGRESS"):
                    return state
                await asyncio.sleep(0.002)

        running = asyncio.create_task(StackLoop(store=store, call=call, aws_scope=AWS_SCOPE, retry_s=0.001).run())
        try:
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
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    return num_calls
