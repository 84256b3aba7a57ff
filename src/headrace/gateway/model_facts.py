"""
Facts of models as their workers report them: the context length and the chat template, for `GET /v1/models`.

A worker is asked once for its own `GET /v1/models`: the model of a worker does not change.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.http.client import ClientRequest, HttpClient
from headrace.http.client_response import NoResponse, ResponseBroken, ResponseTooLarge
from headrace.state.routes import Replica, VariantRoute

WAIT_S = 1.0
"""Longest time that a list of models waits for workers; facts that arrive later are in the next list."""

FETCH_TIMEOUT_S = 10.0
RETRY_S = 30.0
"""Seconds before a worker that did not answer, or is still loading its model, is asked again."""

MAX_ASKED = 16
"""Workers asked at the same time."""

MAX_WAITING = 1024
"""Workers being asked or queued; the others are asked for a later list."""

MAX_PAGE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts that clients need before they call a model. None: unknown."""

    max_model_len: int | None = None
    has_chat_template: bool | None = None
    tool_support: str | None = None


class _Listed(msgspec.Struct):
    max_model_len: int | None = None
    has_chat_template: bool | None = None
    tool_support: str | None = None


class _Page(msgspec.Struct):
    data: list[_Listed]


_decode_page = msgspec.json.Decoder(_Page).decode
UNKNOWN = ModelFacts()


class FactsOfWorkers:
    """The facts of each worker's model, read when a list of models needs them."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._known: dict[str, ModelFacts] = {}
        self._retry_at_s: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_ASKED)

    def of(self, replicas: Sequence[Replica]) -> ModelFacts:
        """Return the facts that hold for all of the replicas, as any of them may get a request."""
        return combined([self._known.get(replica.worker, UNKNOWN) for replica in replicas])

    async def learn(self, replicas: Iterable[Replica]) -> None:
        """Ask the workers that are not known yet, and wait for them, at most `WAIT_S`."""
        now_s = asyncio.get_running_loop().time()
        waited = set()
        for replica in replicas:
            worker = replica.worker
            if worker in self._known or self._retry_at_s.get(worker, 0.0) > now_s:
                continue
            if worker not in self._tasks and len(self._tasks) < MAX_WAITING:
                self._tasks[worker] = asyncio.create_task(self._ask(replica), name=f"model-facts-{worker}")
            if worker in self._tasks:
                waited.add(self._tasks[worker])
        if waited:
            await asyncio.wait(waited, timeout=WAIT_S)

    def retain(self, workers: Collection[str]) -> None:
        """Drop the facts of all other workers."""
        for kept in (self._known, self._retry_at_s):
            for worker in kept.keys() - workers:
                kept.pop(worker)

    async def close(self) -> None:
        """Cancel the requests to workers."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._slots, asyncio.timeout(FETCH_TIMEOUT_S):
                facts = await self._fetch(replica)
        except (TimeoutError, NoResponse, ResponseBroken):
            facts = None
        finally:
            self._tasks.pop(replica.worker, None)
        if facts is None:
            self._retry_at_s[replica.worker] = loop.time() + RETRY_S
        else:
            self._known[replica.worker] = facts

    async def _fetch(self, replica: Replica) -> ModelFacts | None:
        """Return the facts; all unknown for a worker without a list of models, None for one that may have it later."""
        headers = (("Authorization", f"Bearer {replica.token}"),) if replica.token else ()
        response = await self._client.send(replica.url, ClientRequest(method="GET", path="/v1/models", headers=headers))
        try:
            if response.status >= 500:
                return None
            page = await response.read(MAX_PAGE_BYTES)
        except ResponseTooLarge:
            return UNKNOWN
        finally:
            response.close()
        return _facts_of(page) if response.status == 200 else UNKNOWN


def first_replicas(variants: Iterable[VariantRoute]) -> tuple[Replica, ...]:
    """
    Return one replica of each fleet that gets traffic: all replicas of a fleet serve the same model.

    Empty if one of the variants has no replica, so that nothing is known about its model.
    """
    found: list[Replica] = []
    for variant in variants:
        of_variant = [fleet.replicas[0] for fleet in variant.fleets if fleet.share > 0 and fleet.replicas]
        if not of_variant:
            return ()
        found.extend(of_variant)
    return tuple(found)


def combined(all_facts: Sequence[ModelFacts]) -> ModelFacts:
    """Return the facts that hold for several models: the shortest context, and the others if they agree."""
    lengths = [facts.max_model_len for facts in all_facts]
    templates = {facts.has_chat_template for facts in all_facts}
    tools = {facts.tool_support for facts in all_facts}
    known = [length for length in lengths if length is not None]
    return ModelFacts(
        max_model_len=min(known) if known and len(known) == len(lengths) else None,
        has_chat_template=templates.pop() if len(templates) == 1 else None,
        tool_support=tools.pop() if len(tools) == 1 else None,
    )


def _facts_of(page: bytes) -> ModelFacts:
    """Return the facts of the first model of a list; its adapters and other names have the same."""
    try:
        listed = _decode_page(page).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return UNKNOWN
    if not listed:
        return UNKNOWN
    return ModelFacts(**msgspec.structs.asdict(listed[0]))
