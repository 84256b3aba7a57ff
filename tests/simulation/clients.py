"""
The clients: they change endpoints and components, send requests, and keep in the history what was acknowledged.

Each call is repeated until a member acknowledges it. Calls for one endpoint follow each other; all others run at the
same time, and so do requests.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.chaos.history import DEADLINE_S, EndpointState
from benchmarks.harness.platforms import ROLE, VARIANT

from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import IMAGE
from tests.simulation.invariants import HOST_TYPE
from tests.simulation.member import SimulatedMember
from tests.simulation.requester import HOST, Requester
from tests.simulation.scenario import Operation
from tests.simulation.world import Broken

STEADY: Final = ("steady-0", "steady-1")
SCALED: Final = "scaled"
ZERO: Final = "zero"
COPIES: Final = "copies-0"
"""The component that gets requests."""
TARGET: Final = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": f"endpoint/{SCALED}/variant/{VARIANT}",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
_PAUSE_S: Final = 2.0
_PATIENCE_S: Final = 400.0
"""Longest time until a call is acknowledged, and an endpoint can be changed again."""
_NEED: Final = {"NumberOfCpuCoresRequired": 2, "MinMemoryRequiredInMb": 1024}
_ROOM: Final = 4
"""Copies that fit on the two instances of `HOST`."""
_ROUTINGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"Type": "CANARY", "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 50}, "WaitIntervalInSeconds": 8},
    {"Type": "LINEAR", "LinearStepSize": {"Type": "CAPACITY_PERCENT", "Value": 30}, "WaitIntervalInSeconds": 3},
)


class Refused(Exception):
    """A call that the platform refuses for good."""


@dataclass
class Clients(Requester):
    """All clients of one simulation."""

    targets: tuple[str, ...] = ()
    """The endpoints and the component that get requests."""
    copies: dict[str, int] = field(default_factory=dict)
    """Component → the copies that were asked for last."""
    deleted_components: set[str] = field(default_factory=set)
    zero_counts: set[int] = field(default_factory=lambda: {1})
    """The numbers of instances that `ZERO` may have: a request wakes it."""
    differences: list[str] = field(default_factory=list)
    """How the components differ from what was asked, as described last."""
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _turn: int = 0
    _num_made: int = 0

    async def prepare(self) -> None:
        """Create the endpoints that get requests, and wait until they serve."""
        await self._call("CreateModel", done="already existing", **_MODEL)
        kinds = {operation.kind for operation in self.world.scenario.operations}
        counts = {STEADY[0]: 2, STEADY[1]: 1}
        counts |= {name: 1 for name, kind in ((SCALED, "bound"), (ZERO, "zero")) if kind in kinds}
        for name, count in counts.items():
            await self._create_endpoint(name, count)
        self.targets = tuple(name for name in counts if name != ZERO)
        if "component" in kinds:
            await self._prepare_host()
        for name in counts:
            await self._until_changeable(name)
        if SCALED in counts:
            self.world.history.scaled = SCALED
            await self._set_bounds(1)

    async def _prepare_host(self) -> None:
        await self._define_host()
        await self._call("CreateEndpoint", done="already existing", EndpointName=HOST, EndpointConfigName=HOST)
        await self._until_changeable(HOST)
        await self._create_component(COPIES)
        async with asyncio.timeout(_PATIENCE_S):
            while not await self._is_serving(COPIES):
                await asyncio.sleep(_PAUSE_S)
        self.targets += (COPIES,)

    async def _is_serving(self, component: str) -> bool:
        found = await self._call("DescribeInferenceComponent", InferenceComponentName=component)
        return bool(found["InferenceComponentStatus"] == "InService")

    async def run(self, operations: "tuple[Operation, ...]") -> None:
        """Do all operations at their times, and wait for their ends."""
        began_s = self.world.loop.now_s
        async with asyncio.TaskGroup() as group:
            for operation in operations:
                group.create_task(self._run(operation, began_s))

    async def _run(self, operation: Operation, began_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + operation.at_s - self.world.loop.now_s))
        try:
            await getattr(self, f"_{operation.kind}")(operation)
        except Refused as error:
            self.world.history.incidents.append(f"{operation} was refused: {error}")
        except TimeoutError as error:
            self.world.history.incidents.append(f"{operation}: {error}")

    # Operations of scenarios

    async def _request(self, operation: Operation) -> None:
        await self.send(self.targets[operation.target % len(self.targets)])

    async def _create(self, operation: Operation) -> None:
        name = f"own-{operation.target % 3}"
        async with self._locks[name]:
            if name not in self.world.history.asked:
                await self._create_endpoint(name, 1 + operation.amount % 2)

    async def _create_endpoint(self, name: str, count: int) -> None:
        config = await self._define(count)
        await self._call("CreateEndpoint", done="already existing", EndpointName=name, EndpointConfigName=config)
        self.world.history.asked[name] = EndpointState(config=config, count=count)
        self.world.history.deleted.discard(name)

    async def _update(self, operation: Operation) -> None:
        name = self._chosen(operation, (STEADY[0], STEADY[0], "own-0", "own-1"))
        async with self._locks[name]:
            if not await self._until_changeable(name):
                return
            count = 1 + operation.amount % 2
            config = await self._define(count)
            history = self.world.history
            history.previous[name] = history.asked[name].config
            deployment = _deployment(operation.amount // 2)
            await self._change(name, EndpointState(config=config, count=count), "UpdateEndpoint", {
                "EndpointConfigName": config, **({"DeploymentConfig": deployment} if deployment else {})
            })  # fmt: skip

    async def _scale(self, operation: Operation) -> None:
        name = self._chosen(operation, (STEADY[1], STEADY[0], "own-0", "own-2"))
        await self._set_count(name, 1 + operation.amount % 3)

    async def _zero(self, operation: Operation) -> None:
        """Scale to zero; a request then wakes the endpoint."""
        self.zero_counts |= {0, 1}
        await self._set_count(ZERO, 0)
        await asyncio.sleep(operation.amount % 12)
        await self.send(ZERO)

    async def _set_count(self, name: str, count: int) -> None:
        async with self._locks[name]:
            if await self._until_changeable(name):
                wanted = [{"VariantName": VARIANT, "DesiredInstanceCount": count}]
                asked = EndpointState(config=self.world.history.asked[name].config, count=count)
                await self._change(
                    name, asked, "UpdateEndpointWeightsAndCapacities", {"DesiredWeightsAndCapacities": wanted}
                )

    async def _delete(self, operation: Operation) -> None:
        name = f"own-{operation.target % 3}"
        async with self._locks[name]:
            if name in self.world.history.asked:
                await self._call("DeleteEndpoint", done="Could not find", EndpointName=name)
                del self.world.history.asked[name]
                self.world.history.deleted.add(name)
                await self._until_gone("DescribeEndpoint", EndpointName=name)

    async def _bound(self, operation: Operation) -> None:
        await self._set_bounds(1 + operation.amount % 3)

    async def _set_bounds(self, count: int) -> None:
        """Let Application Auto Scaling set a number of instances: the minimum and the maximum are the same."""
        async with self._locks[SCALED]:
            history = self.world.history
            history.asked[SCALED] = EndpointState(config=history.asked[SCALED].config, count=count)
            history.bounds.append(count)
            bounds = {"MinCapacity": count, "MaxCapacity": count}
            await self._call("RegisterScalableTarget", "application-autoscaling", **TARGET, **bounds)

    async def _component(self, operation: Operation) -> None:
        """Create a component, or scale or delete one."""
        name = f"copies-{operation.target % 3}"
        async with self._locks[name]:
            if name not in self.copies:
                await self._create_component(name)
            elif operation.amount % 4 == 0 and name != COPIES:
                await self._call("DeleteInferenceComponent", done="Could not find", InferenceComponentName=name)
                del self.copies[name]
                self.deleted_components.add(name)
                await self._until_gone("DescribeInferenceComponent", InferenceComponentName=name)
            else:
                await self._scale_component(name, 1 + operation.amount % 3)

    async def _scale_component(self, name: str, count: int) -> None:
        wanted = {"InferenceComponentName": name, "DesiredRuntimeConfig": {"CopyCount": count}}
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    await self._call("UpdateInferenceComponentRuntimeConfig", **wanted)
                except Refused:
                    found = await self._call("DescribeInferenceComponent", InferenceComponentName=name)
                    if found["InferenceComponentStatus"] == "Failed":
                        return
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self.copies[name] = count
                    return

    async def _create_component(self, name: str) -> None:
        await self._call(
            "CreateInferenceComponent",
            done="already existing",
            InferenceComponentName=name,
            EndpointName=HOST,
            VariantName=VARIANT,
            Specification={"ModelName": "m", "ComputeResourceRequirements": _NEED},
            RuntimeConfig={"CopyCount": 1},
        )
        self.copies[name] = 1
        self.deleted_components.discard(name)

    # Calls

    def _chosen(self, operation: Operation, names: tuple[str, ...]) -> str:
        name = names[operation.target % len(names)]
        return name if name in self.world.history.asked else names[0]

    async def _define(self, count: int) -> str:
        self._num_made += 1
        name = f"definition-{self._num_made}"
        variant = {"VariantName": VARIANT, "ModelName": "m", "InitialInstanceCount": count}
        await self._call(
            "CreateEndpointConfig",
            done="already existing",
            EndpointConfigName=name,
            ProductionVariants=[{**variant, "InstanceType": "ml.m5.large"}],
        )
        self.world.history.acknowledged[f"configuration {name}"] = str(count)
        return name

    async def _define_host(self) -> None:
        variant = {"VariantName": VARIANT, "InitialInstanceCount": 2, "InstanceType": HOST_TYPE}
        await self._call(
            "CreateEndpointConfig",
            done="already existing",
            EndpointConfigName=HOST,
            ExecutionRoleArn=ROLE,
            ProductionVariants=[variant],
        )

    async def _change(self, name: str, asked: EndpointState, operation: str, parameters: dict[str, Any]) -> None:
        """Change an endpoint; a call that finds it being changed after a lost answer has been applied."""
        before = self.world.history.asked[name]
        self.world.history.asked[name] = asked
        try:
            await self._call(operation, done="Cannot update in-progress", EndpointName=name, **parameters)
        except Refused:  # it has begun to be changed back, or is being woken
            self.world.history.asked[name] = before

    async def _until_changeable(self, name: str) -> bool:
        """Wait until an endpoint can be changed; False if it never will be."""
        deadline_s = self.world.loop.now_s + _PATIENCE_S
        while self.world.loop.now_s < deadline_s:
            found = await self._call("DescribeEndpoint", EndpointName=name)
            if found["EndpointStatus"] in {"InService", "Failed", "UpdateRollbackFailed"}:
                asked = self.world.history.asked.get(name)
                is_as_asked = asked is None or found["EndpointConfigName"] == asked.config
                return bool(found["EndpointStatus"] == "InService" and is_as_asked)
            await asyncio.sleep(_PAUSE_S)
        raise TimeoutError(f"{name} is still {found['EndpointStatus']}.")

    async def _until_gone(self, operation: str, **parameters: Any) -> None:
        deadline_s = self.world.loop.now_s + _PATIENCE_S
        while self.world.loop.now_s < deadline_s:
            try:
                await self._call(operation, **parameters)
            except Refused:
                return
            await asyncio.sleep(_PAUSE_S)
        raise TimeoutError(f"{parameters} is still there.")

    async def _call(self, operation: str, service: str = "sagemaker", *, done: str = "", **parameters: Any) -> Any:
        """Call until acknowledged; `done` is a part of the error that tells of an earlier call's success."""
        deadline_s, is_repeated = self.world.loop.now_s + _PATIENCE_S, False
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
            await asyncio.sleep(_PAUSE_S)
        raise TimeoutError(f"{operation} {parameters} was never acknowledged.")

    async def call(self, operation: str, service: str = "sagemaker", **parameters: Any) -> Any:
        """Call until a member answers; raises `Refused`."""
        return await self._call(operation, service, **parameters)

    def own_workers(self) -> list[str]:
        """Return the running workers of endpoints with models of their own."""
        return [name for name in self.world.machine.living_names() if not name.startswith("copies")]

    async def describe_components(self) -> None:
        """Note how the components differ from what was asked."""
        self.differences, expected = [], 0
        names = {
            entry["InferenceComponentName"]
            for entry in (await self._call("ListInferenceComponents", MaxResults=100))["InferenceComponents"]
        }
        for name in sorted(names ^ self.copies.keys()):
            self.differences.append(f"Component {name} {'exists' if name in names else 'is lost'}.")
        for name in sorted(names & self.copies.keys()):
            found = await self._call("DescribeInferenceComponent", InferenceComponentName=name)
            current, status = found["RuntimeConfig"]["CurrentCopyCount"], found["InferenceComponentStatus"]
            expected += current
            has_failed = bool(found.get("FailureReason"))
            if "copies are missing" in found.get("FailureReason", "") and sum(self.copies.values()) <= _ROOM:
                self.differences.append(f"Component {name} lacks copies, although there is room for all.")
            if status not in {"InService", "Failed"} or not (has_failed or current == self.copies[name]):
                self.differences.append(f"Component {name} is {status} with {current} of {self.copies[name]} copies.")
        running = [name for name in self.world.machine.living_names() if name.startswith("copies")]
        if len(running) != expected:
            self.differences.append(f"Workers {running} run; the components have {expected} copies.")


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
