"""The HTTP application of a server for a model's own code: SageMaker's routes, and those that a contract adds."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, InvalidRequest, MethodNotAllowed, ModelNotFound, NotFound
from headrace.core.tracing import trace_of
from headrace.serving.handlers.errors import Refused, WholeResponse
from headrace.serving.handlers.exchange import HandlerRequest, RequestPart
from headrace.serving.handlers.spec import ContractName
from headrace.serving.http.asgi import Receive, Scope, Send
from headrace.serving.server.base_service import NOT_READY, ServerPhase
from headrace.serving.server.handlers.metrics import handler_metrics
from headrace.serving.server.handlers.relay import HandlerRoute, clean_headers, clean_status
from headrace.serving.server.handlers.service import CodeService
from headrace.serving.server.middleware import EXCEPTION_HANDLERS, middleware, route_error_handler
from headrace.serving.wire.adapters import parse_register, render_change
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, to_json
from headrace.serving.wire.torchserve.dialect import render_error
from headrace.serving.wire.unknown_routes import render_error_for

_WORDS = {ServerPhase.READY: "Healthy", ServerPhase.TERMINATING: "Healthy", ServerPhase.LOADING: "PENDING"}
"""DJL's words; TorchServe and the toolkits know the first and `Unhealthy`."""


def handler_app(service: CodeService, more_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application; `more_routes` come before those of all contracts."""

    async def ping(_request: Request) -> Response:
        health = service.health
        status = 200 if health is ServerPhase.READY else 500 if health is ServerPhase.FAILED else 503
        reason = {} if status == 200 else {"reason": NOT_READY[health]}
        return JSONResponse(ping_body(service.contract, service.model_name, health) | reason, status_code=status)

    async def metrics(_request: Request) -> Response:
        return handler_metrics(service)

    def describe(method: str, path: str, *, allowed: Sequence[str] = ()) -> HeadraceError:
        unserved = f"{method} {path} is not served"
        if allowed:
            return MethodNotAllowed(f"{unserved}; use {' or '.join(allowed)}.", allowed=tuple(allowed))
        name = service.model_name or "<model>"
        predictions = f" and /predictions/{name}" if service.contract != "sagemaker" else ""
        return NotFound(f"{unserved}: the model's own code answers POST /invocations{predictions}.")

    # In the format that DJL, TorchServe and multi-model-server share.
    other_routes = route_error_handler(
        describe, lambda path, error: render_error_for(path, error, default=render_error)
    )

    routes = [
        *more_routes,
        *(djl_routes(service) if service.contract == "djl" else ()),
        Route("/ping", ping, methods=["GET", "POST"]),
        Route("/invocations", HandlerRoute(service), methods=["POST"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
    if service.contract == "sagemaker":  # for batch transform jobs; the code of an image answers, or returns 404
        routes.append(Route("/execution-parameters", HandlerRoute(service), methods=["GET"]))
    app = Starlette(
        routes=routes,
        middleware=middleware(service),
        exception_handlers=EXCEPTION_HANDLERS | {HTTPException: other_routes},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def ping_body(contract: ContractName, model_name: str, health: ServerPhase) -> dict[str, object]:
    if contract == "djl":
        word = "FAILED" if health is ServerPhase.FAILED else _WORDS.get(health, "Unhealthy")
        return {model_name: {"status": word}}
    return {"status": "Healthy" if health in {ServerPhase.READY, ServerPhase.TERMINATING} else "Unhealthy"}


_MODEL_PATHS = ("/predictions/{model}", "/models/{model}/invoke")


def djl_routes(service: CodeService) -> Sequence[BaseRoute]:
    """
    Return DJL Serving's routes beside `/invocations`: by the model's name, and for adapters with and without it.

    Sources: djl-serving, `InferenceRequestHandler`, `AdapterManagementRequestHandler`, `Adapter`.
    """
    adapters = _Adapters(service)
    return [
        *(Route(path, _ModelRoute(service), methods=["GET", "POST", "PUT"]) for path in _MODEL_PATHS),
        *(
            route
            for prefix in ("", "/models/{model}")
            for route in (
                Route(f"{prefix}/adapters", _errors_told(adapters.list_all), methods=["GET"]),
                Route(f"{prefix}/adapters", _errors_told(adapters.register), methods=["POST"]),
                Route(f"{prefix}/adapters/{{name}}", _errors_told(adapters.describe), methods=["GET"]),
                Route(f"{prefix}/adapters/{{name}}/update", _errors_told(adapters.update), methods=["POST"]),
                Route(f"{prefix}/adapters/{{name}}", _errors_told(adapters.unregister), methods=["DELETE"]),
            )
        ),
    ]


Endpoint = Callable[[Request], Awaitable[Response]]


def _errors_told(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with errors in the format that DJL Serving shares with TorchServe."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HeadraceError as error:
            return _error(error)

    return answer


def _error(error: HeadraceError) -> Response:
    reply = render_error(error)
    return Response(reply.body, reply.status, dict(reply.headers), media_type=reply.content_type)


def check_model(service: CodeService, name: str | None) -> None:
    """Raise `ModelNotFound` if a path names another model."""
    if name is not None and name != service.model_name:
        raise ModelNotFound(f"Model or workflow not found: {shortened(name)}")


class _ModelRoute(HandlerRoute):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_model(self._service, scope["path_params"]["model"])
        except ModelNotFound as error:
            await _error(error)(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _Adapters:
    """
    The routes for adapters, which functions of the model load and unload.

    Each process of the code gets every change; one that is started later gets those that are loaded then.
    """

    def __init__(self, service: CodeService) -> None:
        self._service = service
        self._sources: dict[str, str] = {}
        self._changing = asyncio.Lock()
        """Serializes the changes, so that every process gets them in the same order."""

    async def list_all(self, request: Request) -> Response:
        check_model(self._service, request.path_params.get("model"))
        return _json({"adapters": [{"name": name, "src": source} for name, source in self._sources.items()]})

    async def describe(self, request: Request) -> Response:
        name = self._known(request)
        return _json([{"name": name, "src": self._sources[name]}])

    async def register(self, request: Request) -> Response:
        return await self._load(request, "register_adapter", "registered", request.query_params)

    async def update(self, request: Request) -> Response:
        query = {
            "src": self._sources[self._known(request)],
            **request.query_params,
            "name": request.path_params["name"],
        }
        return await self._load(request, "update_adapter", "updated", query)

    async def unregister(self, request: Request) -> Response:
        async with self._changing:
            name = self._known(request)
            setup = self._service.pool.for_every_child.pop(name, None)
            answer = await self._ask_all(_change(request, "unregister_adapter", name, self._sources[name]))
            if answer.status >= 300:
                if setup is not None:
                    self._service.pool.for_every_child[name] = setup
                return _relayed(answer)
            del self._sources[name]
            return Response(render_change(name, "unregistered"), media_type=JSON_CONTENT_TYPE)

    async def _load(self, request: Request, function: str, done: str, query: Mapping[str, str]) -> Response:
        check_model(self._service, request.path_params.get("model"))
        async with self._service.admit(request.scope, request.receive) as body, self._changing:
            change = await self._service.parse_body(body, lambda body: parse_register(body, query))
            setups = self._service.pool.for_every_child
            before = setups.get(change.name)
            setups[change.name] = _change(request, "register_adapter", change.name, change.source)
            answer = await self._ask_all(_change(request, function, change.name, change.source))
            if answer.status >= 300:
                setups.pop(change.name)
                if before is not None:
                    setups[change.name] = before
                return _relayed(answer)
            self._sources[change.name] = change.source
            return Response(render_change(change.name, done), media_type=JSON_CONTENT_TYPE)

    async def _ask_all(self, request: HandlerRequest) -> WholeResponse:
        """Submit a request to all processes; return the first error response, else any other one."""
        try:
            responses = self._service.pool.submit_to_all(request)
        except Refused as refused:
            return refused.response
        try:
            heads = [await response.head() for response in responses]
        finally:
            for response in responses:
                response.close()
        head = next((head for head in heads if head.status >= 300), heads[0])
        return head if isinstance(head, WholeResponse) else WholeResponse(status=head.status)

    def _known(self, request: Request) -> str:
        check_model(self._service, request.path_params.get("model"))
        name: str = request.path_params["name"]
        if name not in self._sources:
            raise InvalidRequest(f"The adapter {shortened(name)} was not found", param="name")
        return name


def _change(request: Request, function: str, name: str, source: str) -> HandlerRequest:
    """Return a call of one of the model's functions; the other query parameters are its content."""
    named = {"handler": function, "name": name, "alias": request.query_params.get("alias") or name, "src": source}
    parts = [
        RequestPart(name=key, content=value.encode())
        for key, value in request.query_params.multi_items()
        if key not in named
    ]
    return HandlerRequest(
        request_id=trace_of(request.scope).request_id, mode="adapter", headers=list(named.items()), parts=parts
    )


def _relayed(answer: WholeResponse) -> Response:
    headers = dict(clean_headers(answer.headers))
    return Response(bytes(answer.body), status_code=clean_status(answer.status), headers=headers)


def _json(value: object) -> Response:
    return Response(to_json(value), media_type=JSON_CONTENT_TYPE)
