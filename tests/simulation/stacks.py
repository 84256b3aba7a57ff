"""CloudFormation stacks with a model, a configuration and an endpoint: no resource is left over, lost or made twice."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from benchmarks.harness.platforms import ROLE, VARIANT

from tests.platform.control.support import IMAGE
from tests.simulation.clients import STACK_PREFIX, Clients, Refused
from tests.simulation.scenario import Operation

_PAUSE_S: Final = 4.0
_PATIENCE_S: Final = 600.0
_IS_DONE: Final = ("already exists", "No updates are to be performed", "_IN_PROGRESS")
"""Parts of the errors that tell of the success of an earlier call whose answer was lost."""
_NO_CAUSES: Final = ("already exist", "database", "Internal Failure")
"""Parts of the reasons for which no resource may fail: the platform goes on with what it has begun."""
_LISTS: Final = (
    ("ListModels", "Models", "ModelName"),
    ("ListEndpointConfigs", "EndpointConfigs", "EndpointConfigName"),
)


@dataclass
class Stacks:
    """The stacks of one simulation."""

    kinds: ClassVar = ("stack",)
    clients: Clients
    findings: list[str] = field(default_factory=list)
    _versions: dict[str, int] = field(default_factory=dict)
    """Stack → the version of the template that was deployed last."""
    _states: dict[str, str] = field(default_factory=dict)
    _num_versions: int = 0

    async def prepare(self) -> None:
        pass  # a stack has all that it needs

    async def run(self, operation: Operation) -> None:
        """Create a stack, or update or delete it, and wait for the end; sometimes delete it in the middle of that."""
        name = f"{STACK_PREFIX}{operation.target % 2}"
        async with self.clients.locks[name]:
            if name in self._versions and operation.amount % 3 == 0:
                await self._call("DeleteStack", StackName=name)
                del self._versions[name]
            else:
                verb = "UpdateStack" if name in self._versions else "CreateStack"
                self._num_versions += 1
                self._versions[name] = self._num_versions
                await self._call(verb, StackName=name, TemplateBody=_template(self._num_versions))
                if operation.amount % 5 == 1:
                    await asyncio.sleep(operation.target % 12)
                    await self._call("DeleteStack", StackName=name)
                    del self._versions[name]
            await self._settle(name)

    async def _call(self, operation: str, **parameters: Any) -> Any:
        try:
            return await self.clients.call(operation, "cloudformation", **parameters)
        except Refused as error:
            if not any(part in str(error) for part in _IS_DONE):
                raise
            return None

    async def _settle(self, name: str) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while (state := await self._state(name)).endswith("_IN_PROGRESS"):
                await asyncio.sleep(_PAUSE_S)
        self._states[name] = state
        if "ROLLBACK" in state:
            self.findings += await self._wrong_failures(name)
        if state in {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED"}:  # it can only be deleted
            self._versions.pop(name, None)
            await self._call("DeleteStack", StackName=name)
            await self._settle(name)

    async def _wrong_failures(self, name: str) -> list[str]:
        """Return the failures that led to a rollback and have another cause than the workers of the endpoint."""
        answer = await self.clients.call("DescribeStackEvents", "cloudformation", StackName=name)
        loses_workers = self.clients.world.scenario.loses_workers()
        return [
            f"{found['LogicalResourceId']} of {name} has failed: {found.get('ResourceStatusReason')}"
            for found in answer["StackEvents"]
            if found["ResourceStatus"].endswith("_FAILED")
            and (
                found["LogicalResourceId"] != "Endpoint"
                or not loses_workers
                or any(cause in found.get("ResourceStatusReason", "") for cause in _NO_CAUSES)
            )
        ]

    async def _state(self, name: str) -> str:
        try:
            found = await self.clients.call("DescribeStacks", "cloudformation", StackName=name)
        except Refused:
            return "gone"
        return str(found["Stacks"][0]["StackStatus"])

    async def describe(self) -> list[str]:
        names = [found["EndpointName"] for found in await self._list("ListEndpoints", "Endpoints")]
        workers = [found for found in self.clients.world.machine.living_names() if found.startswith(STACK_PREFIX)]
        return [] if len(workers) == len(names) else [f"Workers {workers} run for the endpoints {names} of stacks."]

    async def _list(self, operation: str, key: str) -> list[Any]:
        return list((await self.clients.call(operation, MaxResults=100, NameContains=STACK_PREFIX))[key])

    async def check(self) -> list[str]:
        """Compare the resources of all stacks with those that exist."""
        held, wrong = dict[str, str](), list[str]()
        for name in self._states:
            wrong += self._wrong_state(name)
            if name in self._versions:
                answer = await self.clients.call("DescribeStackResources", "cloudformation", StackName=name)
                held |= {
                    found["PhysicalResourceId"].rpartition("/")[2].lower(): found["ResourceStatus"]
                    for found in answer["StackResources"]
                    if found.get("PhysicalResourceId")
                }
        exist = {
            found[name].lower()  # as in ARNs
            for operation, key, name in (*_LISTS, ("ListEndpoints", "Endpoints", "EndpointName"))
            for found in await self._list(operation, key)
        }
        wrong += [f"{name} exists; no stack has it." for name in sorted(exist - held.keys())]
        wrong += [f"{name} is {held[name]} in its stack; it is lost." for name in sorted(held.keys() - exist)]
        return wrong

    def _wrong_state(self, name: str) -> Iterator[str]:
        state = self._states[name]
        if name not in self._versions:
            if state != "gone":
                yield f"Stack {name} is {state}; it was deleted."
        elif state.endswith("_FAILED"):
            yield f"Stack {name} is {state}."


def _template(version: int) -> str:
    """Return a template; another version replaces the model and the configuration, and updates the endpoint."""
    container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "smollm2", "VERSION": str(version)}}
    model = {"ExecutionRoleArn": ROLE, "PrimaryContainer": container}
    variant = {
        "VariantName": VARIANT, "ModelName": {"Fn::GetAtt": ["Model", "ModelName"]}, "InitialInstanceCount": 1,
        "InstanceType": "ml.m5.large", "InitialVariantWeight": 1,
    }  # fmt: skip
    config = {"Fn::GetAtt": ["Config", "EndpointConfigName"]}
    resources = {
        "Model": {"Type": "AWS::SageMaker::Model", "Properties": model},
        "Config": {"Type": "AWS::SageMaker::EndpointConfig", "Properties": {"ProductionVariants": [variant]}},
        "Endpoint": {"Type": "AWS::SageMaker::Endpoint", "Properties": {"EndpointConfigName": config}},
    }
    return json.dumps({"Resources": resources})
