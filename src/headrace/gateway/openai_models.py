"""OpenAI's list of models: the endpoints and inference components that can answer. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, ModelFailed, ModelNotFound, ModelNotReady
from headrace.gateway.model_facts import ModelFacts, first_replicas
from headrace.gateway.routing import can_answer, is_for_components
from headrace.state.routes import Replica, Route, VariantRoute
from headrace.wire.framing import to_json
from headrace.wire.unknown_routes import MODELS

_MODEL_PATH = f"{MODELS}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model that can answer."""

    name: str
    created_s: float
    replicas: tuple[Replica, ...]
    """One replica of each fleet that may get requests; empty while the model is scaled to zero."""


def find_models(routes: Mapping[str, Route], path: str, *, can_wake: bool) -> Sequence[ListedModel]:
    """
    Return the models that `GET /v1/models` lists, or the one of `GET /v1/models/<name>`.

    Args:
        routes: the routes of all endpoints.
        path: the request's path.
        can_wake: whether requests may be held for targets that are scaled to zero.

    Raises:
        ModelNotFound: there is no model of that name.
        ModelNotReady: the model cannot answer yet.
        ModelFailed: the model's endpoint has failed.
    """
    able: dict[str, ListedModel] = {}
    others: dict[str, str] = {}
    in_order = sorted(routes.values(), key=lambda route: (is_for_components(route), route.endpoint))
    for route in in_order:  # the same precedence as for a request: endpoints before components
        for name, variants in _models_of(route):
            able_variants = [variant for variant in variants if can_answer(variant, can_wake=can_wake)]
            if able_variants:
                model = ListedModel(name=name, created_s=route.created_s, replicas=first_replicas(able_variants))
                able.setdefault(name, model)
            else:
                others.setdefault(name, route.status)
    if path == MODELS:
        return list(able.values())
    name = path.removeprefix(_MODEL_PATH)
    if name in able:
        return [able[name]]
    raise not_serving(name, others[name]) if name in others else no_model(name)


def render_models(path: str, models: Sequence[tuple[ListedModel, ModelFacts]]) -> bytes:
    """Render the models of `find_models` with their known facts."""
    rendered = [_rendered(model, facts) for model, facts in models]
    return to_json({"object": "list", "data": rendered} if path == MODELS else rendered[0])


def is_models_path(path: str) -> bool:
    """Return whether `path` names the list of models or one model."""
    return path == MODELS or (path.startswith(_MODEL_PATH) and len(path) > len(_MODEL_PATH) and ":" not in path)


def no_model(name: str) -> HeadraceError:
    """Return the error for a model that does not exist."""
    return ModelNotFound(
        f"The model `{shortened(name)}` does not exist. A model is the name of an endpoint or of one of its "
        "inference components; GET /v1/models lists those that can answer."
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


def _models_of(route: Route) -> Iterator[tuple[str, Sequence[VariantRoute]]]:
    """Yield the name of each model of an endpoint, and the variants or copies that get its requests."""
    if is_for_components(route):
        for component in route.components:
            yield component.name, (component.route,)
    else:
        yield route.endpoint, [variant for variant in route.variants if variant.weight > 0]


def _rendered(model: ListedModel, facts: ModelFacts) -> dict[str, object]:
    known = {name: value for name, value in asdict(facts).items() if value is not None}
    return {"id": model.name, "object": "model", "created": int(model.created_s), "owned_by": "headrace", **known}
