"""The clients that send requests to models, and judge the answers."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.chaos.history import ATTEMPT_S, BROKEN, DEADLINE_S, RIGHT, WRONG, Attempt, Request

from headrace.platform.gateway.forwarding import MAX_TRIES
from tests.simulation.member import SimulatedMember
from tests.simulation.world import Broken, World

HOST: Final = "host"
"""The endpoint of the components."""
_PAUSE_S: Final = 2.0


@dataclass
class Requester:
    """Sends requests through all members in turn."""

    world: World
    num_requests: int = 0

    async def send(self, target: str) -> None:
        """Send a request, and again while its connection breaks or the platform asks for patience."""
        self.num_requests += 1
        number, attempts = self.num_requests, list[Attempt]()
        deadline_s = self.world.loop.now_s + DEADLINE_S
        while True:
            attempts.append(await self._attempt(number, len(attempts), target))
            if attempts[-1].outcome in {RIGHT, WRONG} or self.world.loop.now_s > deadline_s:
                break
            await asyncio.sleep(_PAUSE_S)
        self.world.history.requests.append(Request(number=number, attempts=tuple(attempts)))

    async def abandon(self, target: str, after_s: float) -> None:
        """Send a request, and leave before its answer, or while it is held."""
        self.num_requests += 1
        leaves = asyncio.Event()
        self.world.loop.call_later(after_s, leaves.set)
        await self.invoke(self.num_requests, f"{self.num_requests}-abandoned", target, leaves)

    async def send_deadly(self, target: str, note_death: Callable[[str], None]) -> None:
        """Send a request of which each worker dies that gets it; it must not be sent to many."""
        self.num_requests += 1
        id_, killed = f"{self.num_requests}-deadly", list[str]()

        def on_killed(worker: str, attempt: str) -> None:
            if attempt == id_:
                killed.append(worker)
                note_death(worker)

        before = self.world.machine.on_killed
        self.world.machine.on_killed = lambda *death: (before(*death), on_killed(*death))[0]
        outcome, detail = await self.invoke(self.num_requests, id_, target, is_deadly=True)
        if len(killed) > MAX_TRIES or outcome == RIGHT:
            self.world.history.incidents.append(f"A request has killed {killed}, and ends as {outcome} {detail}.")

    async def probe(self, targets: Sequence[str]) -> list[str]:
        """Send a request to each target through each member; nothing that is over may keep it from an answer."""
        wrong = list[str]()
        for turn, member in enumerate(self.world.slots):
            for target in targets:
                outcome, detail = await self.invoke(turn, f"{turn}-probe-{target}", target)
                if outcome != RIGHT:
                    wrong.append(f"{target} serves; {member.process.name} answers {outcome} {detail}")
        return wrong

    async def meet(self, target: str) -> list[str]:
        """Ask for a new endpoint through each member: none may say that there is no such endpoint."""
        asked = (self.invoke(turn, f"{target}-{turn}-new", target) for turn in range(len(self.world.slots)))
        return [
            f"{target} serves; member {turn} answers {detail}"
            for turn, (outcome, detail) in enumerate(await asyncio.gather(*asked))
            if outcome == "ValidationError"
        ]

    async def _attempt(self, number: int, index: int, target: str) -> Attempt:
        id_, began_s = f"{number}-{index}", self.world.loop.now_s
        outcome, detail = await self.invoke(number + index, id_, target)
        self.world.note(f"request {id_} {target} {outcome}")
        return Attempt(
            id=id_, api="invoke", endpoint=target, began_s=began_s, ended_s=self.world.loop.now_s, outcome=outcome,
            detail=detail,
        )  # fmt: skip

    async def invoke(
        self, turn: int, id_: str, target: str, leaves: asyncio.Event | None = None, *, is_deadly: bool = False
    ) -> tuple[str, str]:
        """Send a request once, until the client `leaves`; return its outcome, and what was wrong with it."""
        is_component = target.startswith("copies")
        headers = [(b"content-type", b"application/json")]
        if is_component:
            headers.append((b"x-amzn-sagemaker-inference-component", target.encode()))
        body = json.dumps({"id": id_, "is_deadly": is_deadly}).encode()

        async def work(member: SimulatedMember) -> tuple[str, bytes]:
            path = f"/endpoints/{HOST if is_component else target}/invocations"
            return await post(member, path, headers, body, leaves)

        try:
            async with asyncio.timeout(ATTEMPT_S + 1.0):
                error, answer = await self.world.ask(turn, work)
        except Broken as broken:
            return BROKEN, str(broken)
        except TimeoutError:
            return BROKEN, "no answer in time"
        if leaves is not None and leaves.is_set():
            return BROKEN, "the client has left"
        found = json.loads(answer)
        if error:
            return error, str(found)
        is_right = found["id"] == id_ and found["worker"].startswith(f"{target}-")
        return (RIGHT, "") if is_right else (WRONG, str(found))


async def post(
    member: SimulatedMember,
    path: str,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    leaves: asyncio.Event | None = None,
) -> tuple[str, bytes]:
    """
    Call the gateway's application as its server does; return the code of its error, and the body of its answer.

    The client is gone when `leaves` is set; without it, the client stays.
    """
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "extensions": {},
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    errors, parts = list[str](), list[bytes]()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        errors.extend(value.decode() for name, value in message.get("headers", ()) if name == b"x-amzn-errortype")
        parts.append(message.get("body", b""))

    await member.gateway(scope, receive, send)
    return "".join(errors), b"".join(parts)
