"""A whole simulation: prepare, let clients and faults run, mend everything, and check what must hold in the end."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.chaos.history import Activity, EndpointState, is_reached, violations

from headrace.platform.state.routes import WakeTarget
from tests.simulation.asynchronous import Asynchronous
from tests.simulation.clients import SERVERLESS, STACK_PREFIX, TARGET, Clients, Refused
from tests.simulation.components import Components
from tests.simulation.faults import Faults
from tests.simulation.jobs import TransformJobs
from tests.simulation.member import SimulatedMember
from tests.simulation.policies import Policies
from tests.simulation.requester import HOST
from tests.simulation.scenario import Scenario
from tests.simulation.serverless import Serverless
from tests.simulation.stacks import Stacks
from tests.simulation.substitutes import substituted
from tests.simulation.tags import Tags
from tests.simulation.world import World

_PREPARED_S = 300.0
_SETTLED_S = 600.0
"""Longest time until everything is as asked after the last fault: workers' backoff, and a deployment's deadline."""
_LOOK_S = 5.0
_END_S = 100_000.0
_PARTS: Final[tuple[Any, ...]] = (Components, Asynchronous, TransformJobs, Stacks, Tags, Policies, Serverless)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one simulation."""

    scenario: Scenario
    violations: tuple[str, ...]
    digest: str
    virtual_s: float
    cpu_s: float
    num_steps: int
    num_commits: int
    num_requests: int
    num_answered: int
    lines: list[str] = field(default_factory=list, repr=False)


def simulate(scenario: Scenario, *, is_traced: bool = False) -> Outcome:
    """Run a scenario; the same one gives the same outcome, in any process."""
    began_s = time.process_time()
    world = World(scenario, is_traced=is_traced)
    found: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(substituted(world.loop, scenario))
        stack.callback(world.close)
        clients = Clients(world)
        clients.parts = tuple(part(clients) for part in _PARTS if scenario.kinds() & {*part.kinds})
        try:
            world.loop.run(_run(world, clients), until_s=_END_S)
        except Exception as error:  # noqa: BLE001 -- it is a finding
            found += [f"The simulation failed: {error!r}", *world.history.incidents]
        else:
            found += violations(world.history)
        found += [*world.invariants.findings, *world.database.findings, *_repeated(world)]
        found += [finding for part in clients.parts for finding in part.findings]
        world.note(f"end {world.loop.num_steps} {world.loop.rng.random()}")
    requests = world.history.requests
    return Outcome(
        scenario=scenario,
        violations=tuple(dict.fromkeys(found)),
        digest=world.trace.digest(),
        virtual_s=world.loop.now_s,
        cpu_s=time.process_time() - began_s,
        num_steps=world.loop.num_steps,
        num_commits=world.database.num_commits,
        num_requests=len(requests),
        num_answered=sum(request.attempts[-1].outcome == "right" for request in requests),
        lines=world.trace.lines,
    )


def _repeated(world: World) -> Iterator[str]:
    for id_ in world.machine.repeated:
        yield f"Attempt {id_} was sent again after its answer had begun."


async def _run(world: World, clients: Clients) -> None:
    for index in range(world.scenario.members):
        world.start_member(index)
    async with asyncio.timeout(_PREPARED_S):
        await clients.prepare()
    watching = asyncio.create_task(world.watch_leaders())
    async with asyncio.TaskGroup() as group:
        group.create_task(Faults(world).run())
        group.create_task(clients.run(world.scenario.operations))
    await _settle(world, clients)
    watching.cancel()
    await asyncio.sleep(world.scenario.quiet_s)
    await _read_back(world, clients)


async def _settle(world: World, clients: Clients) -> None:
    """Wait until everything is as asked, or for so long that it never will be."""
    deadline_s, num_commits = world.loop.now_s + _SETTLED_S, -1
    while True:
        await asyncio.sleep(_LOOK_S)
        is_quiet, num_commits = num_commits == world.database.num_commits, world.database.num_commits
        if not is_quiet and world.loop.now_s < deadline_s:
            continue
        await _describe(world, clients)
        wrong = list(_differences(world, clients))
        if not wrong:
            return
        if world.loop.now_s > deadline_s:
            world.history.incidents += wrong
            return


def _differences(world: World, clients: Clients) -> Iterator[str]:
    """Yield what is not yet as asked, beyond what the history shows."""
    history = world.history
    for name, asked in history.asked.items():
        described = history.described.get(name)
        if described is None or not is_reached(asked, described, history.previous.get(name)):
            yield f"Endpoint {name} is {described}; asked for {asked}."
    for name in history.described.keys() - history.asked.keys():
        yield f"Endpoint {name} exists."
    yield from clients.differences
    yield from clients.wrongly_scaled()
    if len(clients.own_workers()) != sum(state.count for state in history.described.values()):
        yield f"Workers {clients.own_workers()} run for {history.described}."
    if any(activity.status in {"Pending", "InProgress"} for activity in history.activities):
        yield "An activity is in progress."
    if not any(member.leads_in is not None for member in world.slots if not member.process.is_dead):
        yield "No member leads."
    for member in world.slots:
        if not member.process.is_dead and member.is_serving and _is_busy(member, history.described):
            yield f"{member.process.name} still has requests."


def _is_busy(member: SimulatedMember, endpoints: Iterable[str]) -> bool:
    """Return whether the gateway of a member counts, holds or queues a request, of its own or of another member."""
    queue = member.gateway.invocations.forwarder.wait_queue
    is_queued = any(queue.has_waiters(WakeTarget(endpoint=name)) for name in endpoints)
    return bool(is_queued or member.gateway.loads or member.gateway.held)


async def _describe(world: World, clients: Clients) -> None:
    history = world.history
    history.described = {}
    for entry in (await clients.call("ListEndpoints", MaxResults=100))["Endpoints"]:
        name = entry["EndpointName"]
        if name in {HOST, SERVERLESS} or name.startswith(STACK_PREFIX):
            continue
        try:
            endpoint = await clients.call("DescribeEndpoint", EndpointName=name)
        except Refused:
            continue
        counts = [variant.get("CurrentInstanceCount", 0) for variant in endpoint.get("ProductionVariants", [])]
        history.described[name] = EndpointState(
            config=endpoint["EndpointConfigName"],
            count=sum(counts),
            status=endpoint["EndpointStatus"],
            reason=endpoint.get("FailureReason", ""),
        )
    for name, set_by_client in clients.counts.items():
        described = history.described.get(name)
        # a change that failed is rolled back to the number before, and a request may have woken the endpoint since
        possible = set_by_client | ({0, 1, 2} if name in world.invariants.rolled_back else set())
        if described is not None and described.count in possible and len(possible) > 1:
            history.asked[name] = EndpointState(config=described.config, count=described.count)
    clients.differences = [difference for part in clients.parts for difference in await part.describe()]
    if not history.scaled:
        return
    found = await clients.call("DescribeScalingActivities", "application-autoscaling", **TARGET, MaxResults=50)
    history.activities = [
        Activity(
            id=activity["ActivityId"],
            status=activity["StatusCode"],
            capacity=int(activity["Description"].rstrip(".").rpartition(" ")[2]),
            message=activity.get("StatusMessage", ""),
        )
        for activity in found["ScalingActivities"]
    ]


async def _read_back(world: World, clients: Clients) -> None:
    """Read what was acknowledged, and ask for what was deleted."""
    history = world.history
    for key in history.acknowledged:
        name = key.rpartition(" ")[2]
        try:
            (variant,) = (await clients.call("DescribeEndpointConfig", EndpointConfigName=name))["ProductionVariants"]
        except Refused:
            continue
        history.found[key] = str(variant["InitialInstanceCount"])
    for turn in range(len(world.slots)):
        for name in sorted(history.deleted):
            outcome, detail = await clients.invoke(turn, "deleted", name)
            if outcome != "ValidationError":
                history.incidents.append(f"{name} was deleted and answers: {outcome} {detail}")
    serving = [name for name, state in history.described.items() if state.status == "InService" and state.count]
    history.incidents += await clients.probe(serving)
    for part in clients.parts:
        history.incidents += await part.check()
    history.answers = {id_: number for id_, number in world.machine.executed.items() if id_[0].isdigit()}
    history.num_workers = len(clients.own_workers())
