"""
Runs the formatters of a `model.py` around the server's own engine: calls of the mode `format`.

A call's item has one part with JSON, by whose name it is answered with JSON, or with 424 if the formatter fails:

- `input`: the request's payload → the payload for the engine. The item's headers are those of the request.
- `output`: a response, or a chunk of a streamed one → what the client gets.
- `token`: `{"token": {"id", "text", "log_prob", "special_token"}, "finish_reason", "input": {...}}`, the next token of
  the request `request_id`; the `input` only with the first one, the reason with the last → text for the client, as a
  JSON string. For formatters that take a `RequestOutput`.

A call of the mode `describe` is answered with the kinds that the code has: `{"formatters": ["input", "output"]}`.
"""

import inspect
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from headrace_handler.contract import Item
from headrace_handler.contracts.djl import responses
from headrace_handler.contracts.djl.code import UserCode
from headrace_handler.contracts.djl.requests import properties

logger = logging.getLogger(__name__)

_MAX_OUTPUTS = 4096
"""Unfinished responses that are kept; a client that has gone leaves its own behind."""


class FormatterFailed(Exception):
    """A formatter raised an exception."""


class Payload(dict[str, Any]):
    """A JSON object whose members are attributes, too, as in the responses of vLLM that formatters change."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return dict(self)

    def model_dump_json(self, **_: Any) -> str:
        return json.dumps(self, ensure_ascii=False)


class Formatters:
    """The formatters of a model, with the responses that are being generated."""

    def __init__(self, djl: Any, request_io: Any, code: UserCode, tokenizer: Callable[[], Any]) -> None:
        self._djl = djl
        self._io = request_io
        self._code = code
        self._tokenizer = tokenizer
        self._payload_class = _payload_class(djl)
        self._outputs: OrderedDict[str, Any] = OrderedDict()

    @property
    def kinds(self) -> list[str]:
        """The parts that are formatted."""
        output = self._code.output_formatter
        kinds = [] if self._code.input_formatter is None else ["input"]
        return kinds if output is None else [*kinds, "token" if _takes_tokens(output) else "output"]

    def answer(self, item: Item) -> None:
        """Answer a call of the mode `format`."""
        output = self._djl.Output()
        try:
            formatted = json.dumps(self._format(item), ensure_ascii=False).encode()
        except Exception as error:
            logger.exception("Custom formatter failed")
            output.error(f"Custom formatter failed: {error}")
        else:
            output.add_property("Content-Type", "application/json").add(formatted)
        responses.send_one(output, item.reply, self._djl)

    def _format(self, item: Item) -> Any:
        part = item.parts[0]
        if part.name not in self.kinds:
            raise FormatterFailed(f"model.py formats {self.kinds}, not {part.name!r}")
        return getattr(self, f"_{part.name}")(item, bytes(part.content))

    def _input(self, item: Item, content: bytes) -> Any:
        function = self._code.input_formatter
        assert function is not None
        payload = self._payload_class(content, properties(item))
        formatted = function(payload, **_accepted(function, {"tokenizer": self._tokenizer}))
        if isinstance(formatted, self._io.RequestInput):
            return {"inputs": getattr(formatted, "input_text", None), "parameters": formatted.parameters}
        if not isinstance(formatted, Mapping):
            raise FormatterFailed(f"the input formatter returned {type(formatted)}; expected a dict or RequestInput")
        return formatted

    def _output(self, _: Item, content: bytes) -> Any:
        assert self._code.output_formatter is not None
        return self._code.output_formatter(json.loads(content, object_hook=Payload))

    def _token(self, item: Item, content: bytes) -> Any:
        assert self._code.output_formatter is not None
        step = json.loads(content)
        output = self._outputs.pop(item.request_id, None) or self._new_output(item, step)
        reason = step.get("finish_reason")
        token = self._io.Token(**step["token"])
        output.set_next_token(token, is_last_token=reason is not None, finish_reason=reason)
        output.finished = reason is not None
        if not output.finished:
            self._outputs[item.request_id] = output
            if len(self._outputs) > _MAX_OUTPUTS:
                self._outputs.popitem(last=False)
        return self._code.output_formatter(output)

    def _new_output(self, item: Item, step: Mapping[str, Any]) -> Any:
        payload = step.get("input") or {}
        parameters = payload.get("parameters") or {}
        request = self._io.TextInput(
            client_request_id=item.request_id, parameters=parameters, input_text=payload.get("inputs")
        )
        return self._io.TextGenerationOutput(request_id=len(self._outputs), input=request)


def _payload_class(djl: Any) -> Any:
    """Return a class for both forms of input formatters: the decoded payload as a dict, and an `Input`."""

    class InputPayload(dict[str, Any], djl.Input):  # type: ignore[misc]
        def __init__(self, content: bytes, named: Mapping[str, Any]) -> None:
            payload = json.loads(content)
            dict.__init__(self, payload if isinstance(payload, dict) else {"inputs": payload})
            djl.Input.__init__(self)
            self.properties.update(named)
            self.content.add(key="data", value=bytearray(content))

    return InputPayload


def _accepted(function: Callable[..., Any], values: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the values of the parameters that a function has, made only for those."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: make() for name, make in values.items() if takes_all or name in parameters}


def _takes_tokens(function: Callable[..., Any]) -> bool:
    """Return whether an output formatter takes a `RequestOutput`, as its first parameter's type or name says."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    annotation = getattr(first.annotation, "__name__", str(first.annotation))
    return annotation in {"RequestOutput", "TextGenerationOutput"} or first.name == "request_output"
