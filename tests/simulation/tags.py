"""Tags that several clients put on one endpoint at the same time: the write of one must not lose that of another."""

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar, Final

from tests.simulation.clients import STEADY, Clients
from tests.simulation.scenario import Operation

_NUM_CLIENTS: Final = 4


@dataclass
class Tags:
    """The tags of one simulation."""

    kinds: ClassVar = ("tag",)
    clients: Clients
    findings: list[str] = field(default_factory=list)
    _keys: dict[str, list[str]] = field(default_factory=dict)
    """Endpoint → the keys whose tags were acknowledged."""
    _num_added: int = 0

    async def prepare(self) -> None:
        pass  # the endpoints exist

    async def run(self, operation: Operation) -> None:
        name = STEADY[operation.target % 2]
        arn = await self._arn(name)
        async with asyncio.TaskGroup() as group:
            for _ in range(_NUM_CLIENTS):
                self._num_added += 1
                group.create_task(self._add(name, arn, f"key-{self._num_added}"))

    async def _arn(self, name: str) -> str:
        return str((await self.clients.call("DescribeEndpoint", EndpointName=name))["EndpointArn"])

    async def _add(self, name: str, arn: str, key: str) -> None:
        await self.clients.call("AddTags", ResourceArn=arn, Tags=[{"Key": key, "Value": "1"}])
        self._keys.setdefault(name, []).append(key)

    async def describe(self) -> list[str]:
        return []

    async def check(self) -> list[str]:
        lost = []
        for name, keys in self._keys.items():
            found = (await self.clients.call("ListTags", ResourceArn=await self._arn(name), MaxResults=50))["Tags"]
            lost += [
                f"Tag {key} of {name} was acknowledged and is lost."
                for key in keys
                if key not in {tag["Key"] for tag in found}
            ]
        return lost
