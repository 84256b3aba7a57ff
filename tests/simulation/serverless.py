"""A serverless endpoint: no more requests than its concurrency at a time, and what is over does not count."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from benchmarks.chaos.history import CLEAR_ERRORS, RIGHT
from benchmarks.harness.platforms import VARIANT

from tests.simulation.clients import SERVERLESS, Clients
from tests.simulation.scenario import Operation

_CONCURRENCY: Final = 2


@dataclass
class Serverless:
    """The requests to a serverless endpoint in one simulation."""

    kinds: ClassVar = ("serverless",)
    clients: Clients
    findings: list[str] = field(default_factory=list)
    _num_sent: int = 0

    async def prepare(self) -> None:
        """Create the endpoint."""
        config = {"MemorySizeInMB": 2048, "MaxConcurrency": _CONCURRENCY}
        variant: dict[str, Any] = {"VariantName": VARIANT, "ModelName": "m", "ServerlessConfig": config}
        await self.clients.call(
            "CreateEndpointConfig",
            done="already existing",
            EndpointConfigName=SERVERLESS,
            ProductionVariants=[variant],
        )
        await self.clients.call(
            "CreateEndpoint", done="already existing", EndpointName=SERVERLESS, EndpointConfigName=SERVERLESS
        )
        await self.clients.until_changeable(SERVERLESS)

    async def run(self, operation: Operation) -> None:
        """Send more requests through one member than may run at a time."""
        outcomes = await self._send(operation.target, 1 + _CONCURRENCY)
        wrong = [outcome for outcome in outcomes if outcome not in CLEAR_ERRORS | {RIGHT}]
        if wrong and not self.clients.world.scenario.faults:
            self.findings.append(f"Requests to {SERVERLESS} ended as {wrong}.")

    async def _send(self, turn: int, number: int) -> list[str]:
        self._num_sent += 1
        ids = [f"{self._num_sent}-{index}-serverless" for index in range(number)]
        answers = await asyncio.gather(*(self.clients.invoke(turn, id_, SERVERLESS) for id_ in ids))
        return [outcome for outcome, _ in answers]

    async def describe(self) -> list[str]:
        return []

    async def check(self) -> list[str]:
        """Ask for as much as the concurrency allows, through each member."""
        wrong = []
        for turn, member in enumerate(self.clients.world.slots):
            outcomes = await self._send(turn, _CONCURRENCY)
            if outcomes != [RIGHT] * _CONCURRENCY:
                wrong.append(f"{member.process.name} answers requests to {SERVERLESS} with {outcomes}.")
        return wrong
