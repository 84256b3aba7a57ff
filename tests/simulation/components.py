"""Inference components: the clients that create, scale, move and delete them, and what must become of their copies."""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final

from benchmarks.harness.platforms import ROLE, VARIANT

from tests.simulation.clients import PATIENCE_S, PAUSE_S, Clients, Refused
from tests.simulation.invariants import HOST_TYPE
from tests.simulation.requester import HOST
from tests.simulation.scenario import Operation

COPIES: Final = "copies-0"
"""The component that gets requests."""
_NEED: Final = {"NumberOfCpuCoresRequired": 2, "MinMemoryRequiredInMb": 1024}
_ROOM: Final = 4
"""Copies that fit on the two instances of `HOST`."""


@dataclass
class Components:
    """The components of one simulation, on one endpoint."""

    kinds: ClassVar = ("component", "move")
    clients: Clients
    findings: list[str] = field(default_factory=list)
    copies: dict[str, int] = field(default_factory=dict)
    """Component → the copies that were asked for last."""
    deleted: set[str] = field(default_factory=set)
    _numbers: "count[int]" = field(default_factory=count)

    async def prepare(self) -> None:
        """Create the endpoint and a component that serves."""
        await self._define_host(HOST)
        await self.clients.call("CreateEndpoint", done="already existing", EndpointName=HOST, EndpointConfigName=HOST)
        await self.clients.until_changeable(HOST)
        await self._create_component(COPIES)
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_serving(COPIES):
                await asyncio.sleep(PAUSE_S)
        self.clients.targets += (COPIES,)

    async def _is_serving(self, component: str) -> bool:
        found = await self.clients.call("DescribeInferenceComponent", InferenceComponentName=component)
        return bool(found["InferenceComponentStatus"] == "InService")

    async def run(self, operation: Operation) -> None:
        await (self._move if operation.kind == "move" else self._component)(operation)

    async def _component(self, operation: Operation) -> None:
        """Create a component, or scale or delete one."""
        name = f"copies-{operation.target % 3}"
        async with self.clients.locks[name]:
            if name not in self.copies:
                await self._create_component(name)
            elif operation.amount % 4 == 0 and name != COPIES:
                await self.clients.call("DeleteInferenceComponent", done="Could not find", InferenceComponentName=name)
                del self.copies[name]
                self.deleted.add(name)
                await self.clients.until_gone("DescribeInferenceComponent", InferenceComponentName=name)
            else:
                await self._scale_component(name, 1 + operation.amount % 3)

    async def _scale_component(self, name: str, count: int) -> None:
        wanted = {"DesiredRuntimeConfig": {"CopyCount": count}}
        if await self._change_component(name, "UpdateInferenceComponentRuntimeConfig", **wanted):
            self.copies[name] = count

    async def _change_component(self, name: str, operation: str, **wanted: Any) -> bool:
        """Change a component once it can be changed; False: it has failed."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.clients.call(operation, InferenceComponentName=name, **wanted)
                except Refused:
                    found = await self.clients.call("DescribeInferenceComponent", InferenceComponentName=name)
                    if found["InferenceComponentStatus"] == "Failed":
                        return False
                    await asyncio.sleep(PAUSE_S)
                else:
                    return True

    async def _move(self, operation: Operation) -> None:
        """Move all copies to other instances, or those of a component to others with a new specification."""
        if operation.amount % 2:
            need = {**_NEED, "MinMemoryRequiredInMb": 1000 + operation.amount}
            specification = {"ModelName": "m", "ComputeResourceRequirements": need}
            await self._change_component(COPIES, "UpdateInferenceComponent", Specification=specification)
            return
        async with self.clients.locks[HOST]:
            config = f"{HOST}-{next(self._numbers)}"
            await self._define_host(config)
            if await self.clients.until_changeable(HOST):
                update = {"EndpointName": HOST, "EndpointConfigName": config}
                await self.clients.call("UpdateEndpoint", done="Cannot update in-progress", **update)
                await self.clients.until_changeable(HOST)

    async def _create_component(self, name: str) -> None:
        await self.clients.call(
            "CreateInferenceComponent",
            done="already existing",
            InferenceComponentName=name,
            EndpointName=HOST,
            VariantName=VARIANT,
            Specification={"ModelName": "m", "ComputeResourceRequirements": _NEED},
            RuntimeConfig={"CopyCount": 1},
        )
        self.copies[name] = 1
        self.deleted.discard(name)

    async def _define_host(self, name: str) -> None:
        variant = {"VariantName": VARIANT, "InitialInstanceCount": 2, "InstanceType": HOST_TYPE}
        await self.clients.call(
            "CreateEndpointConfig",
            done="already existing",
            EndpointConfigName=name,
            ExecutionRoleArn=ROLE,
            ProductionVariants=[variant],
        )

    async def describe(self) -> list[str]:
        differences, expected = list[str](), 0
        names = {
            entry["InferenceComponentName"]
            for entry in (await self.clients.call("ListInferenceComponents", MaxResults=100))["InferenceComponents"]
        }
        differences += [
            f"Component {name} {'exists' if name in names else 'is lost'}."
            for name in sorted(names ^ self.copies.keys())
        ]
        for name in sorted(names & self.copies.keys()):
            found = await self.clients.call("DescribeInferenceComponent", InferenceComponentName=name)
            current, status = found["RuntimeConfig"]["CurrentCopyCount"], found["InferenceComponentStatus"]
            expected += current
            has_failed = bool(found.get("FailureReason"))
            if "copies are missing" in found.get("FailureReason", "") and sum(self.copies.values()) <= _ROOM:
                differences.append(f"Component {name} lacks copies, although there is room for all.")
            if status not in {"InService", "Failed"} or not (has_failed or current == self.copies[name]):
                differences.append(f"Component {name} is {status} with {current} of {self.copies[name]} copies.")
        running = [name for name in self.clients.world.machine.living_names() if name.startswith("copies")]
        if len(running) != expected:
            differences.append(f"Workers {running} run; the components have {expected} copies.")
        return differences

    async def check(self) -> list[str]:
        return [
            f"{name} was deleted and answers: {outcome} {detail}"
            for turn in range(len(self.clients.world.slots))
            for name in sorted(self.deleted)
            for outcome, detail in [await self.clients.invoke(turn, "deleted", name)]
            if outcome != "ValidationError"
        ]
