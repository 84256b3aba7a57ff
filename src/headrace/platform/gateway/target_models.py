"""
Send a request to the model of a multi-model endpoint that its `TargetModel` names.

The instance loads the model for the request. When it does not know the model, the gateway says where the files are,
with a grant for exactly these: instances have no keys of the object storage. Once a model has been unloaded the
instance forgets it, so that the next load reads what is in the object storage then, as on SageMaker.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from headrace.platform.cluster.launcher import NO_GRANTS, Grants
from headrace.platform.cluster.model_host.protocol import INVOCATIONS, WAIT_HEADER, Registration, model_id, reason_of
from headrace.platform.gateway.errors import ErrorTexts
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import ClientResponse, NoResponse, ResponseBroken, ResponseTooLarge

_MAX_REGISTRATIONS: Final = 8
"""A model may be unloaded for others between its registration and the request."""
_MAX_ANSWER_BYTES: Final = 64 * 1024


@dataclass(slots=True, kw_only=True)
class TargetModels:
    """Sends requests to instances of multi-model endpoints."""

    upstream: HttpClient
    texts: ErrorTexts
    wait_s: float
    """Longest time that a request waits for its model. AWS: 60 s, within the timeout of an invocation."""
    grants: Grants = NO_GRANTS

    async def send(self, url: str, request: ClientRequest, *, prefix: str, target: str) -> ClientResponse:
        """
        Send a request to an instance, for the model at `target` below the `prefix` of the endpoint.

        Raises `NoResponse` as `HttpClient.send` does, or `AwsError`: there is no such model.
        """
        path = f"/models/{model_id(target)}{'/invoke' if request.path == INVOCATIONS else request.path}"
        deadline_s = time.monotonic() + self.wait_s
        for number in range(_MAX_REGISTRATIONS):
            wait = (WAIT_HEADER, f"{max(0.0, deadline_s - time.monotonic()):.6f}")
            response = await self.upstream.send(url, replace(request, path=path, headers=(*request.headers, wait)))
            if reason_of(response.headers) != "unknown" or number == _MAX_REGISTRATIONS - 1:
                break
            await _finish(response)
            await self._register(url, request, prefix + target, target)
        return response

    async def _register(self, url: str, request: ClientRequest, location: str, target: str) -> None:
        grant = await asyncio.to_thread(self.grants.for_uri, location)
        if grant is not None and (grant.error or not grant.objects):
            raise self.texts.model_not_found(location, grant.error)
        registration = Registration(
            model_name=model_id(target), url=location, grants=() if grant is None else (grant,), lazy=True
        )
        authorization = tuple(field for field in request.headers if field[0] == "Authorization")
        headers = (("Content-Type", "application/json"), *authorization)
        body = msgspec.json.encode(registration)
        response = await self.upstream.send(url, ClientRequest(path="/models", headers=headers, body=body))
        status, answer = response.status, await _finish(response)
        if status != 200:
            raise self.texts.model_not_found(location, answer.decode(errors="replace"))


async def _finish(response: ClientResponse) -> bytes:
    """Return the rest of a short response, whose connection is kept."""
    try:
        return await response.read(_MAX_ANSWER_BYTES)
    except (ResponseBroken, ResponseTooLarge) as error:
        raise NoResponse(str(error)) from error
    finally:
        response.close()
