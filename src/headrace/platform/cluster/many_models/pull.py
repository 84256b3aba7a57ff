"""Ollama's `/api/pull`: a model of the Hub is downloaded by its first load; the others are there already."""

from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.tracing import trace_of
from headrace.platform.cluster.many_models.presets import ModelPreset
from headrace.platform.cluster.many_models.service import ManyModels
from headrace.serving.http.asgi import Receive, Scope, Send
from headrace.serving.http.body import ClientGone
from headrace.serving.http.errors import errors_answered
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, decode_body, json_line, to_json
from headrace.serving.wire.ollama.reply import error_line, render_error

_PROGRESS_S: Final = 5.0
"""Seconds between two lines of a stream while a model is loaded."""
_SUCCESS: Final = to_json({"status": "success"})


class ModelBody(msgspec.Struct, kw_only=True):
    """The body of a request about a model; `name` is Ollama's older name of `model`."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None


_decoder = msgspec.json.Decoder(ModelBody)


def read_body(body: bytes) -> ModelBody:
    """Parse a body that names a model. Raises `InvalidRequest`."""
    fields = decode_body(body, _decoder)
    if not (fields.model or fields.name):
        raise InvalidRequest("`model` is missing.", param="model")
    return fields


@dataclass(slots=True)
class PullRoute:
    """The app that answers requests to `/api/pull`."""

    service: ManyModels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, keep_alive_s=_PROGRESS_S)

        async def fail(error: HeadraceError) -> None:
            if exchange.is_started:
                exchange.put(error_line(error))
                await exchange.finish()
            else:
                reply = render_error(error)
                await exchange.respond(reply.status, (("content-type", reply.content_type), *reply.headers), reply.body)

        try:
            async with errors_answered(fail, request_id=trace_of(scope).request_id):
                self.service.check_open()
                async with self.service.admit(scope, receive) as body:
                    fields = await self.service.parse_body(body, read_body)
                    preset = await self.service.find(fields.model or fields.name)
                    async with exchange.cancelled_on_disconnect():
                        await self._pull(preset, exchange, is_stream=fields.stream is not False)
        except ClientGone:
            pass

    async def _pull(self, preset: ModelPreset, exchange: Exchange, *, is_stream: bool) -> None:
        if is_stream:
            line = json_line(to_json({"status": f"pulling {preset.model}"}))
            exchange.begin_stream((("content-type", NDJSON_CONTENT_TYPE),), keep_alive=line)
            exchange.put(json_line(to_json({"status": "pulling manifest"})))
            await exchange.drain()
        if preset.path is None:
            await self.service.load(preset)
        if not is_stream:
            await exchange.respond(200, (("content-type", JSON_CONTENT_TYPE),), _SUCCESS)
            return
        exchange.put(json_line(_SUCCESS))
        await exchange.finish()
