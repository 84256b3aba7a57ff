"""
`route` in the custom attributes of `/invocations`, which sends a request to another route of the server.

SageMaker's runtime reaches `/invocations` only; AWS's containers of vLLM take the route from
`CustomAttributes="route=/v1/embeddings"`. Source: `scripts/docker/vllm/sagemaker_serve.py` of
aws/deep-learning-containers, which allows any path; here routes that change the server, those of adapters, are left
out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from starlette.routing import Route

from headrace.core.errors import NotFound
from headrace.http.asgi import ASGIApp, Receive, Scope, Send

ATTRIBUTES_HEADER: Final = b"x-amzn-sagemaker-custom-attributes"
_NAME: Final = "route"


def read_attributes(text: str) -> dict[str, str]:
    """Return the custom attributes of the form `name=value`, separated by commas or semicolons; the last one counts."""
    pairs = (part.partition("=") for part in text.replace(";", ",").split(","))
    return {name.strip().lower(): value.strip() for name, equals, value in pairs if equals or name.strip()}


def attributes_of(scope: Scope) -> dict[str, str]:
    """Return the custom attributes of a request."""
    values = (value for name, value in scope["headers"] if name == ATTRIBUTES_HEADER)
    return read_attributes(b",".join(values).decode("latin-1"))


class RoutedInvocations:
    """The app of `/invocations`, which passes requests that name another route to it."""

    def __init__(self, default: ASGIApp, routes: Mapping[str, ASGIApp]) -> None:
        self._default = default
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; raises `NotFound` if there is no such route."""
        path = attributes_of(scope).get(_NAME)
        if path is None or path == scope["path"]:
            await self._default(scope, receive, send)
            return
        app = self._routes.get(path)
        if app is None:
            known = ", ".join(sorted(self._routes))
            raise NotFound(f"The custom attribute route is {path[:100]!r}; expected one of {known}.")
        # In place, so that errors and the log are those of the route.
        scope.update(path=path, raw_path=path.encode())
        await app(scope, receive, send)


def posted(routes: Iterable[Route]) -> dict[str, ASGIApp]:
    """Return the apps of the routes that take a POST at one path."""
    return dict(_posted(routes))


def _posted(routes: Iterable[Route]) -> Iterator[tuple[str, ASGIApp]]:
    for route in routes:
        if "POST" in (route.methods or ()) and "{" not in route.path and route.path != "/":
            yield route.path, route.app
