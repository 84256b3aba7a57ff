"""A control plane with the loop of stacks, which the tests of a file share."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.platform.control.support import Platform, running_platform
from tests.service_models import parsed_service_models
from tests.waiting import WAIT_S, pauses

__all__ = ["parsed_service_models"]


@dataclass(frozen=True)
class Stacks:
    platform: Platform
    client: Any

    def settled(self, stack: str) -> dict[str, Any]:
        """A stack when it has settled; by its id also one that was deleted."""
        deadline_s = time.monotonic() + WAIT_S
        for pause_s in pauses():
            found: dict[str, Any] = self.client.describe_stacks(StackName=stack)["Stacks"][0]
            if not found["StackStatus"].endswith("IN_PROGRESS"):
                return found
            assert time.monotonic() < deadline_s, found
            time.sleep(pause_s)
        raise AssertionError("unreachable")

    def create(self, stack: str, template: str, **params: Any) -> dict[str, Any]:
        self.client.create_stack(StackName=stack, TemplateBody=template, **params)
        return self.settled(stack)

    def update(self, stack: str, template: str, **params: Any) -> dict[str, Any]:
        self.client.update_stack(StackName=stack, TemplateBody=template, **params)
        return self.settled(stack)

    def delete(self, stack: str) -> dict[str, Any]:
        arn = self.client.describe_stacks(StackName=stack)["Stacks"][0]["StackId"]
        self.client.delete_stack(StackName=stack)
        return self.settled(arn)

    def events(self, stack: str) -> list[tuple[str, str]]:
        """Resources with their states, oldest first."""
        found = self.client.describe_stack_events(StackName=stack)["StackEvents"]
        return [(event["LogicalResourceId"], event["ResourceStatus"]) for event in reversed(found)]

    def reason(self, stack: str, resource: str) -> str:
        found = self.client.describe_stack_events(StackName=stack)["StackEvents"]
        return next(
            event["ResourceStatusReason"]
            for event in found
            if event["LogicalResourceId"] == resource and "FAILED" in event["ResourceStatus"]
        )


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with running_platform(has_stacks=True) as platform:
        yield Stacks(platform, platform.client("cloudformation"))
