"""OpenAI's list of models: the endpoints and inference components that can answer. Pure."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, ModelFailed, ModelNotFound, ModelNotReady
from headrace.platform.gateway.routing import can_answer, is_for_components
from headrace.platform.state.routes import Replica, Route, VariantRoute
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge
from headrace.serving.wire.framing import to_json
from headrace.serving.wire.key_limits import INVOKE, NO_LIMITS, KeyLimits
from headrace.serving.wire.ollama import models as ollama
from headrace.serving.wire.openai.pages import listed_model, model_list
from headrace.serving.wire.unknown_routes import MODELS, OLLAMA_PAGES

_MODEL_PATH = f"{MODELS}/"


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


class _Page(msgspec.Struct):
    data: list[ModelFacts]


_decode_page = msgspec.json.Decoder(_Page).decode
UNKNOWN = ModelFacts()


class FactsOfWorkers:
    """
    The facts of each worker's model, read when a list of models needs them.

    A worker is asked once for its own `GET /v1/models`: the model of a worker does not change.
    """

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
        for kept in (self._known, self._retry_at_s):
            for worker in kept.keys() - workers:
                kept.pop(worker)

    async def close(self) -> None:
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
        if response.status != 200:
            return UNKNOWN
        try:
            listed = _decode_page(page).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return UNKNOWN
        return listed[0] if listed else UNKNOWN  # the model's adapters and other names have the same facts


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    name: str
    created_s: float
    replicas: tuple[Replica, ...]
    """One replica of each fleet that may get requests; empty while the model is scaled to zero."""


def find_models(
    routes: Mapping[str, Route], path: str, *, can_wake: bool, limits: KeyLimits = NO_LIMITS
) -> Sequence[ListedModel]:
    """
    Return the models that `GET /v1/models` lists, or the one of `GET /v1/models/<name>`.

    Those that `limits` do not allow do not exist. `can_wake`: requests may be held for targets scaled to zero.

    Raises `ModelNotFound`, `ModelNotReady` or `ModelFailed`.
    """
    able: dict[str, ListedModel] = {}
    others: dict[str, str] = {}
    in_order = sorted(routes.values(), key=lambda route: (is_for_components(route), route.endpoint))
    for route in in_order:  # the same precedence as for a request: endpoints before components
        served: Sequence[tuple[str, Sequence[VariantRoute]]] = [
            (component.name, (component.route,)) for component in route.components
        ]
        if not is_for_components(route):
            served = [(route.endpoint, [variant for variant in route.variants if variant.weight > 0])]
        for name, variants in served:
            if not limits.allows_action(INVOKE) or not limits.allows_model(name, route.endpoint):
                continue
            able_variants = [variant for variant in variants if can_answer(variant, can_wake=can_wake)]
            if able_variants:
                model = ListedModel(name=name, created_s=route.created_s, replicas=first_replicas(able_variants))
                able.setdefault(name, model)
            else:
                others.setdefault(name, route.status)
    if path == MODELS or path in OLLAMA_PAGES:
        return list(able.values())
    name = path.removeprefix(_MODEL_PATH)
    if name in able:
        return [able[name]]
    raise not_serving(name, others[name]) if name in others else no_model(name)


def render_models(path: str, models: Sequence[tuple[ListedModel, ModelFacts]]) -> bytes:
    if path in OLLAMA_PAGES:
        return render_ollama(path, models)
    rendered = [
        {
            **listed_model(model.name, model.created_s),
            **{name: value for name, value in asdict(facts).items() if value is not None},
        }
        for model, facts in models
    ]
    return to_json(model_list(rendered) if path == MODELS else rendered[0])


def render_ollama(path: str, models: Sequence[tuple[ListedModel, ModelFacts]]) -> bytes:
    """Render a page of Ollama: its version, all models, or those that have a replica, which stay loaded."""
    if path == "/api/version":
        return ollama.render_version()
    is_running = path == "/api/ps"
    entries = [
        ollama.listed_model(model.name, model.created_s)
        | (
            {"expires_at": ollama.NEVER, "size_vram": 0, "context_length": facts.max_model_len or 0}
            if is_running
            else {}
        )
        for model, facts in models
        if model.replicas or not is_running
    ]
    return to_json({"models": entries})


def is_models_path(path: str) -> bool:
    """Return whether `path` names a list of models or one model."""
    return (
        path == MODELS
        or path in OLLAMA_PAGES
        or (path.startswith(_MODEL_PATH) and len(path) > len(_MODEL_PATH) and ":" not in path)
    )


def no_model(name: str) -> HeadraceError:
    return ModelNotFound(
        f"The model `{shortened(name)}` does not exist, or this key may not use it. A model is the name of an endpoint "
        "or of one of its inference components; GET /v1/models lists those that can answer."
    )


def not_serving(name: str, status: str) -> HeadraceError:
    """Return the error for a model that exists but cannot answer, by the status of its endpoint."""
    if status == "Failed":
        return ModelFailed(
            f"The model `{name}` cannot answer: its endpoint has failed. DescribeEndpoint has the "
            f"`FailureReason` (`headrace describe {name}`); delete the endpoint and create it again."
        )
    return ModelNotReady(
        f"The model `{name}` cannot answer now: it has no instance, and its endpoint is {status}. Try again when "
        "GET /v1/models lists it."
    )


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
    templates = {facts.has_chat_template for facts in all_facts}
    tools = {facts.tool_support for facts in all_facts}
    known = [facts.max_model_len for facts in all_facts if facts.max_model_len is not None]
    return ModelFacts(
        max_model_len=min(known) if known and len(known) == len(all_facts) else None,
        has_chat_template=templates.pop() if len(templates) == 1 else None,
        tool_support=tools.pop() if len(tools) == 1 else None,
    )
