"""
The clients: they change endpoints and components, send requests, and keep in the history what was acknowledged.

Each call is repeated until a member acknowledges it. Calls for one endpoint follow each other; all others run at the
same time, and so do requests.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final, Protocol

from benchmarks.chaos.history import DEADLINE_S, EndpointState
from benchmarks.harness.platforms import ROLE, VARIANT

from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import IMAGE
from tests.simulation.faults import Faults
from tests.simulation.member import SimulatedMember
from tests.simulation.requester import Requester
from tests.simulation.scenario import Operation
from tests.simulation.world import Broken

STEADY: Final = ("steady-0", "steady-1")
SCALED: Final = "scaled"
ZERO: Final = "zero"
SERVERLESS: Final = "serverless"
STACK_PREFIX: Final = "stack-"
"""Begins the names of stacks, and of their resources."""
TARGET: Final = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": f"endpoint/{SCALED}/variant/{VARIANT}",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
PAUSE_S: Final = 2.0
PATIENCE_S: Final = 400.0
"""Longest time until a call is acknowledged, and an endpoint can be changed again."""
_ROUTINGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"Type": "CANARY", "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 50}, "WaitIntervalInSeconds": 8},
    {"Type": "LINEAR", "LinearStepSize": {"Type": "CAPACITY_PERCENT", "Value": 30}, "WaitIntervalInSeconds": 3},
)


class Refused(Exception):
    """A call that the platform refuses for good."""


class Part(Protocol):
    """The clients of some kinds of operations, and the rules of their outcomes."""

    kinds: ClassVar[tuple[str, ...]]
    findings: list[str]
    """Violations that were seen at once."""

    async def prepare(self) -> None:
        """Create what the operations need."""
        ...

    async def run(self, operation: Operation) -> None:
        """Do one operation."""
        ...

    async def describe(self) -> list[str]:
        """Return what is not yet as it was asked for."""
        ...

    async def check(self) -> list[str]:
        """Return what is violated in the end."""
        ...


@dataclass
class Clients(Requester):
    """All clients of one simulation."""

    targets: tuple[str, ...] = ()
    """The endpoints and the component that get requests."""
    counts: dict[str, set[int]] = field(default_factory=lambda: {ZERO: {1}})
    """Endpoint that requests wake → the numbers of instances that it may have."""
    parts: tuple[Part, ...] = ()
    """Further clients, each for kinds of operations that this class does not have."""
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Endpoint or component → held while it is changed."""
    scaled_from: dict[str, int] = field(default_factory=dict)
    """Endpoint that was scaled last → its number of instances before that."""
    differences: list[str] = field(default_factory=list)
    """What the parts have described last."""
    _counts: dict[str, int] = field(default_factory=dict)
    """Endpoint → its number of instances when it could be changed last."""
    _turn: int = 0
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    async def prepare(self) -> None:
        """Create the endpoints that get requests, and wait until they serve."""
        await self.call("CreateModel", done="already existing", **_MODEL)
        kinds = self.world.scenario.kinds()
        counts = {STEADY[0]: 2, STEADY[1]: 1}
        counts |= {name: 1 for name, kind in ((SCALED, "bound"), (ZERO, "zero")) if kind in kinds}
        for name, number in counts.items():
            await self._create_endpoint(name, number)
        self.targets = tuple(name for name in counts if name != ZERO)
        for part in self.parts:
            await part.prepare()
        for name in list(self.world.history.asked):
            await self.until_changeable(name)
        if SCALED in counts:
            self.world.history.scaled = SCALED
            await self._set_bounds(1)

    async def run(self, operations: "tuple[Operation, ...]") -> None:
        """Do all operations at their times, and wait for their ends."""
        began_s = self.world.loop.now_s
        async with asyncio.TaskGroup() as group:
            for operation in operations:
                group.create_task(self._run(operation, began_s))

    async def _run(self, operation: Operation, began_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + operation.at_s - self.world.loop.now_s))
        runs = [part.run for part in self.parts if operation.kind in part.kinds]
        try:
            await (runs[0] if runs else getattr(self, f"_{operation.kind}"))(operation)
        except Refused as error:
            self.world.history.incidents.append(f"{operation} was refused: {error}")
        except TimeoutError as error:
            self.world.history.incidents.append(f"{operation}: {error}")

    # Operations of scenarios

    async def _request(self, operation: Operation) -> None:
        target = self.targets[operation.target % len(self.targets)]
        if operation.amount % 6 == 0:
            await self.abandon(target, operation.amount % 40 / 10)
        elif operation.amount % 12 == 1 and target in STEADY:
            await self.send_deadly(target, Faults(self.world).note_death)
        else:
            await self.send(target)

    async def _create(self, operation: Operation) -> None:
        name = f"own-{operation.target % 3}"
        async with self.locks[name]:
            if name not in self.world.history.asked:
                await self._create_endpoint(name, 1 + operation.amount % 2)
                if await self.until_changeable(name):
                    self.world.history.incidents += await self.meet(name)

    async def _create_endpoint(self, name: str, count: int) -> None:
        config = await self.define(count)
        await self.call("CreateEndpoint", done="already existing", EndpointName=name, EndpointConfigName=config)
        self.world.history.asked[name] = EndpointState(config=config, count=count)
        self.world.history.deleted.discard(name)

    async def _update(self, operation: Operation) -> None:
        name = self._chosen(operation, (STEADY[0], STEADY[0], "own-0", "own-1"))
        async with self.locks[name]:
            if not await self._is_changeable(name):
                return
            count = 1 + operation.amount % 2
            config = await self.define(count)
            self.scaled_from.pop(name, None)
            history = self.world.history
            history.previous[name] = history.asked[name].config
            deployment = _deployment(operation.amount // 2)
            await self._change(name, EndpointState(config=config, count=count), "UpdateEndpoint", {
                "EndpointConfigName": config, **({"DeploymentConfig": deployment} if deployment else {})
            })  # fmt: skip

    async def _scale(self, operation: Operation) -> None:
        name = self._chosen(operation, (STEADY[1], STEADY[0], "own-0", "own-2"))
        if operation.amount % 2 == 0:  # while a worker that has died is being replaced
            Faults(self.world).crash_worker_of(name)
            await asyncio.sleep(operation.amount % 40 / 10)
        await self.set_count(name, 1 + operation.amount % 3)

    async def _zero(self, operation: Operation) -> None:
        """Scale to zero; a request then wakes the endpoint, sometimes while it is scaled to more instances."""
        await self.set_count(ZERO, 0)
        await asyncio.sleep(operation.amount % 12)
        if operation.amount % 3 == 0:
            await self.set_count(ZERO, 2)
        await self.send(ZERO)

    async def set_count(self, name: str, count: int) -> None:
        """Scale an endpoint that can be changed; a request may wake one that is at zero."""
        async with self.locks[name]:
            if await self._is_changeable(name):
                before, possible = self.counts.get(name, set()), {count, max(count, 1)}
                if before:
                    self.counts[name] = before | possible
                wanted = [{"VariantName": VARIANT, "DesiredInstanceCount": count}]
                self.scaled_from[name] = self._counts[name]
                asked = EndpointState(config=self.world.history.asked[name].config, count=count)
                is_done = await self._change(
                    name, asked, "UpdateEndpointWeightsAndCapacities", {"DesiredWeightsAndCapacities": wanted}
                )
                if before and is_done:
                    self.counts[name] = possible

    async def _delete(self, operation: Operation) -> None:
        name = f"own-{operation.target % 3}"
        async with self.locks[name]:
            if name not in self.world.history.asked:
                await self._create_endpoint(name, 1)
                await self.until_changeable(name)
            await self.call("DeleteEndpoint", done="Could not find", EndpointName=name)
            del self.world.history.asked[name]
            self.world.history.deleted.add(name)
            await self.until_gone("DescribeEndpoint", EndpointName=name)

    async def _bound(self, operation: Operation) -> None:
        """Set bounds, often twice: the second ones come while the endpoint is being scaled."""
        await self._set_bounds(1 + operation.amount % 3)
        if operation.target % 2:
            await asyncio.sleep(operation.target % 40 / 10)
            await self._set_bounds(1 + operation.amount // 3 % 3)

    async def _set_bounds(self, count: int) -> None:
        """Let Application Auto Scaling set a number of instances: the minimum and the maximum are the same."""
        async with self.locks[SCALED]:
            history = self.world.history
            history.asked[SCALED] = EndpointState(config=history.asked[SCALED].config, count=count)
            history.bounds.append(count)
            bounds = {"MinCapacity": count, "MaxCapacity": count}
            await self.call("RegisterScalableTarget", "application-autoscaling", **TARGET, **bounds)

    # Calls

    def _chosen(self, operation: Operation, names: tuple[str, ...]) -> str:
        name = names[operation.target % len(names)]
        return name if name in self.world.history.asked else names[0]

    async def define(self, count: int, **more: Any) -> str:
        name = f"definition-{next(self._numbers)}"
        variant = {"VariantName": VARIANT, "ModelName": "m", "InitialInstanceCount": count}
        await self.call(
            "CreateEndpointConfig",
            done="already existing",
            EndpointConfigName=name,
            ProductionVariants=[{**variant, "InstanceType": "ml.m5.large"}],
            **more,
        )
        self.world.history.acknowledged[f"configuration {name}"] = str(count)
        return name

    async def _change(self, name: str, asked: EndpointState, operation: str, parameters: dict[str, Any]) -> bool:
        """Change an endpoint; a call that finds it being changed after a lost answer may have been applied (False)."""
        before = self.world.history.asked[name]
        self.world.history.asked[name] = asked
        try:
            return bool(await self.call(operation, done="Cannot update in-progress", EndpointName=name, **parameters))
        except Refused:  # it has begun to be changed back, or is being woken
            self.world.history.asked[name] = before
            return False

    async def _is_changeable(self, name: str) -> bool:
        """Wait until an endpoint can be changed, unless it was deleted since the operation chose it."""
        return name in self.world.history.asked and await self.until_changeable(name)

    async def until_changeable(self, name: str) -> bool:
        """Wait until an endpoint can be changed; False if it never will be."""
        deadline_s = self.world.loop.now_s + PATIENCE_S
        while self.world.loop.now_s < deadline_s:
            found = await self.call("DescribeEndpoint", EndpointName=name)
            if found["EndpointStatus"] in {"InService", "Failed", "UpdateRollbackFailed"}:
                self._counts[name] = sum(
                    variant.get("DesiredInstanceCount", 0) for variant in found.get("ProductionVariants", ())
                )
                asked = self.world.history.asked.get(name)
                is_as_asked = asked is None or found["EndpointConfigName"] == asked.config
                return bool(found["EndpointStatus"] == "InService" and is_as_asked)
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError(f"{name} is still {found['EndpointStatus']}.")

    async def until_gone(self, operation: str, **parameters: Any) -> None:
        deadline_s = self.world.loop.now_s + PATIENCE_S
        while self.world.loop.now_s < deadline_s:
            try:
                await self.call(operation, **parameters)
            except Refused:
                return
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError(f"{parameters} is still there.")

    async def call(self, operation: str, service: str = "sagemaker", *, done: str = "", **parameters: Any) -> Any:
        """
        Call until acknowledged, and return the answer. Raises `Refused`.

        `done` is a part of the error that tells of an earlier call's success.
        """
        deadline_s, is_repeated = self.world.loop.now_s + PATIENCE_S, False
        while self.world.loop.now_s < deadline_s:
            self._turn += 1

            async def work(member: SimulatedMember) -> Any:
                return await asyncio.to_thread(member.control.call, service, operation, parameters)

            try:
                async with asyncio.timeout(DEADLINE_S):
                    answer = await self.world.ask(self._turn, work)
            except AwsError as error:
                if is_repeated and done and done in error.message:
                    return {}
                if error.http_status < 429:
                    raise Refused(error.message) from None
            except (Broken, TimeoutError):
                pass
            else:
                self.world.note(f"acknowledged {operation}")
                return answer
            is_repeated = True
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError(f"{operation} {parameters} was never acknowledged.")

    def wrongly_scaled(self) -> Iterator[str]:
        """Yield the endpoints that have kept a number of instances although the scaling to it was rolled back."""
        history = self.world.history
        for name, before in self.scaled_from.items():
            asked, described = history.asked.get(name), history.described.get(name)
            if asked is None or described is None or described.status != "InService" or not described.reason:
                continue
            if described.config == asked.config and described.count == asked.count != before:
                yield f"{name} has {described.count} instances; expected {before}: {described.reason[:80]}"

    def own_workers(self) -> list[str]:
        """Return the running workers, without those whose number has rules of its own."""
        others = ("copies", SERVERLESS, STACK_PREFIX)
        return [name for name in self.world.machine.living_names() if not name.startswith(others)]


_MODEL: Final = {
    "ModelName": "m",
    "PrimaryContainer": {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "smollm2"}},
    "ExecutionRoleArn": ROLE,
}


def _deployment(kind: int) -> dict[str, Any]:
    """Return one of four ways to update an endpoint."""
    if kind % 4 == 3:
        size = {"Type": "CAPACITY_PERCENT", "Value": 50}
        return {"RollingUpdatePolicy": {"MaximumBatchSize": size, "WaitIntervalInSeconds": 4}}
    routing = _ROUTINGS[kind % 4]
    policy = {"TrafficRoutingConfiguration": routing, "TerminationWaitInSeconds": 3}
    return {"BlueGreenUpdatePolicy": policy} if routing else {}
