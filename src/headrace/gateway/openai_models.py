"""OpenAI's list of models: the endpoints and inference components that can answer. Pure."""

from collections.abc import Iterator, Mapping

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, ModelFailed, ModelNotFound, ModelNotReady
from headrace.gateway.routing import can_answer, is_for_components
from headrace.state.routes import Route
from headrace.wire.framing import to_json
from headrace.wire.unknown_routes import MODELS

_MODEL_PATH = f"{MODELS}/"


def models_page(routes: Mapping[str, Route], path: str, *, can_wake: bool) -> bytes:
    """
    Answer `GET /v1/models` or `GET /v1/models/<name>`.

    Args:
        routes: the routes of all endpoints.
        path: the request's path.
        can_wake: whether requests may be held for targets that are scaled to zero.

    Raises:
        ModelNotFound: there is no model of that name.
        ModelNotReady: the model cannot answer yet.
        ModelFailed: the model's endpoint has failed.
    """
    able: dict[str, Route] = {}
    others: dict[str, Route] = {}
    in_order = sorted(routes.values(), key=lambda route: (is_for_components(route), route.endpoint))
    for route in in_order:  # the same precedence as for a request: endpoints before components
        for name, is_able in _models_of(route, can_wake=can_wake):
            (able if is_able else others).setdefault(name, route)
    if path == MODELS:
        return to_json({"object": "list", "data": [_model(name, route) for name, route in able.items()]})
    name = path.removeprefix(_MODEL_PATH)
    if name in able:
        return to_json(_model(name, able[name]))
    raise not_serving(name, others[name].status) if name in others else no_model(name)


def is_models_path(path: str) -> bool:
    """Return whether `path` is the list of models or one model of it."""
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


def _models_of(route: Route, *, can_wake: bool) -> Iterator[tuple[str, bool]]:
    """Yield the name of each model of an endpoint, and whether it can answer."""
    if is_for_components(route):
        for component in route.components:
            yield component.name, can_answer(component.route, can_wake=can_wake)
    else:
        variants = (variant for variant in route.variants if variant.weight > 0)
        yield route.endpoint, any(can_answer(variant, can_wake=can_wake) for variant in variants)


def _model(name: str, route: Route) -> dict[str, object]:
    return {"id": name, "object": "model", "created": int(route.created_s), "owned_by": "headrace"}
