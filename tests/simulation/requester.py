"""The clients that send requests to models, and judge the answers."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.chaos.history import ATTEMPT_S, BROKEN, DEADLINE_S, RIGHT, WRONG, Attempt, Request

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

    async def _attempt(self, number: int, index: int, target: str) -> Attempt:
        id_, began_s = f"{number}-{index}", self.world.loop.now_s
        outcome, detail = await self.invoke(number + index, id_, target)
        self.world.note(f"request {id_} {target} {outcome}")
        return Attempt(
            id=id_, api="invoke", endpoint=target, began_s=began_s, ended_s=self.world.loop.now_s, outcome=outcome,
            detail=detail,
        )  # fmt: skip

    async def invoke(self, turn: int, id_: str, target: str) -> tuple[str, str]:
        """Send a request once; return its outcome, and what was wrong with it."""
        is_component = target.startswith("copies")
        headers = [(b"content-type", b"application/json")]
        if is_component:
            headers.append((b"x-amzn-sagemaker-inference-component", target.encode()))
        body = json.dumps({"id": id_}).encode()

        async def work(member: SimulatedMember) -> tuple[str, bytes]:
            return await post(member, f"/endpoints/{HOST if is_component else target}/invocations", headers, body)

        try:
            async with asyncio.timeout(ATTEMPT_S + 1.0):
                error, answer = await self.world.ask(turn, work)
        except Broken as broken:
            return BROKEN, str(broken)
        except TimeoutError:
            return BROKEN, "no answer in time"
        found = json.loads(answer)
        if error:
            return error, str(found)
        is_right = found["id"] == id_ and found["worker"].startswith(f"{target}-")
        return (RIGHT, "") if is_right else (WRONG, str(found))


async def post(
    member: SimulatedMember, path: str, headers: list[tuple[bytes, bytes]], body: bytes
) -> tuple[str, bytes]:
    """Call the gateway's application as its server does; return the code of its error, and the body of its answer."""
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "extensions": {},
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    errors, parts = list[str](), list[bytes]()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        errors.extend(value.decode() for name, value in message.get("headers", ()) if name == b"x-amzn-errortype")
        parts.append(message.get("body", b""))

    await member.gateway(scope, receive, send)
    return "".join(errors), b"".join(parts)
