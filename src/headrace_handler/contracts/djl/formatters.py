"""
Run the formatters of a `model.py` around the server's own engine: calls of the mode `format`.

A call's item has one part, whose name is its kind. The path of the item is the number of the response, which
identifies the calls of a response: request ids are chosen by clients.

- `input`: the body of the request → the payload for the engine, as JSON. The item's headers are those of the request.
- `output`: a whole response, as JSON → the body for the client.
- `event`: an event of a streamed response, as text → what the client gets in its place.
- `token`: `{"index", "token": {"id", "text", "log_prob", "special_token"}, "finish_reason", "input"}`, the next token
  of a response; the reason with the last one, the input with the first one, where no formatter has made it → text for
  the client. For formatters that take a `RequestOutput`.

A formatter that fails is answered with 424 and `{"code", "error"}`. A call of the mode `describe` is answered with the
kinds that the code has: `{"formatters": ["input", "output"]}` or `["input", "token"]`.

Sources: djl-serving, `custom_formatter_handling.py`, `lmi_vllm/vllm_async_service.py`, `input_parser.py`, `request.py`.
"""

import importlib
import inspect
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace_handler.contract import Item
from headrace_handler.contracts.djl import messages
from headrace_handler.contracts.djl.code import UserCode, describe
from headrace_handler.contracts.djl.messages import properties

logger = logging.getLogger(__name__)

_MAX_RESPONSES = 4096
"""Unfinished responses that are kept; those of disconnected clients stay until they are evicted."""
_INPUT_KIND, _OUTPUT_KIND, _TOKEN_KIND = "input", "output", "token"


class FormatterFailed(Exception):
    """A formatter raised an exception, or cannot be applied."""


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
        return json.dumps(self, ensure_ascii=False, separators=(",", ":"))


class Tokenizer:
    """
    The tokenizer of transformers, loaded from local files on first use.

    The import of transformers takes seconds, and formatters that only have the parameter need not wait for it.
    """

    def __init__(self, model: str) -> None:
        """Take the name of a folder, a `.gguf` file, or a model in the cache of Hugging Face."""
        self._model = model
        self._loaded: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tokenizer()(*args, **kwargs)

    def __len__(self) -> int:
        return len(self._tokenizer())

    def __bool__(self) -> bool:
        return True

    def _tokenizer(self) -> Any:
        if self._loaded is None:
            transformers = importlib.import_module("transformers")
            path = Path(self._model)
            is_file = path.suffix == ".gguf"
            self._loaded = transformers.AutoTokenizer.from_pretrained(
                str(path.parent) if is_file else self._model,
                local_files_only=True,
                **({"gguf_file": path.name} if is_file else {}),
            )
        return self._loaded


@dataclass(slots=True)
class _Response:
    """A response that is being generated token by token."""

    request: Any
    """The `RequestInput`."""
    output: Any = None
    """The `RequestOutput`, from the first token on."""
    num_tokens: int = 0


class Formatters:
    """The formatters of a model, with the responses that are being generated."""

    def __init__(self, djl: Any, request_io: Any, code: UserCode, tokenizer: Any, options: Mapping[str, str]) -> None:
        self._djl = djl
        self._io = request_io
        self._code = code
        self._tokenizer = tokenizer
        self._options = options
        self._payload_class = _payload_class(djl)
        self._takes_input = code.input_formatter is not None and _takes(code.input_formatter, "input_item", "Input")
        self._responses: OrderedDict[str, _Response] = OrderedDict()
        self._num_responses = 0

    @property
    def kinds(self) -> list[str]:
        """The kinds of formatters: `input`, and `output` or `token`."""
        output = self._code.output_formatter
        kinds = [] if self._code.input_formatter is None else [_INPUT_KIND]
        if output is None:
            return kinds
        takes_tokens = _takes(output, "request_output", "RequestOutput", "TextGenerationOutput")
        return [*kinds, _TOKEN_KIND if takes_tokens else _OUTPUT_KIND]

    def answer(self, item: Item) -> None:
        output = self._djl.Output()
        part = item.parts[0]
        content = bytes(part.content)
        try:
            formatted = self._format(part.name, item, content)
        except FormatterFailed as error:
            logger.exception("Custom formatter failed")
            output.set_code(424)
            formatted = json.dumps({"code": 424, "error": str(error)}, ensure_ascii=False).encode()
        messages.send_one(output.add(formatted), item.reply, self._djl)

    def _format(self, name: str, item: Item, content: bytes) -> bytes:
        kind = _OUTPUT_KIND if name == "event" else name
        if kind not in self.kinds:
            raise FormatterFailed(f"Custom formatter failed: model.py formats {self.kinds}, not {name!r}")
        if name == _INPUT_KIND:
            return self._input(item, content)
        try:
            return self._token(item, content) if name == _TOKEN_KIND else self._output(name, content)
        except Exception as error:
            text = f"Custom formatter failed: Custom output formatter execution failed: {describe(error)}"
            raise FormatterFailed(text) from error

    def _input(self, item: Item, content: bytes) -> bytes:
        if self._takes_input:
            return self._input_of_request(item, content)
        try:
            payload = self._decoded(item, content)
        except Exception as error:
            raise FormatterFailed(f"Input parsing failed: {error}") from error
        adapters = payload.pop("adapters", None)  # the engine's, which formatters do not get
        try:
            formatted = self._called(payload, {"tokenizer": self._tokenizer})
            return self._payload(item, formatted, adapters)
        except Exception as error:
            text = f"Custom formatter failed: Custom input formatter execution failed: {describe(error)}"
            raise FormatterFailed(text) from error

    def _input_of_request(self, item: Item, content: bytes) -> bytes:
        configs = SimpleNamespace(**self._options)
        named = {"tokenizer": self._tokenizer, "configs": configs, "is_rolling_batch": True}
        try:
            return self._payload(item, self._called(self._inputs(properties(item), content), named), None)
        except Exception as error:
            reason = f"Invalid Request Property: {error}" if isinstance(error, KeyError) else str(error)
            text = f"Input Parsing failed. Ensure that the request payload is valid. {reason}"
            raise FormatterFailed(text) from error

    def _decoded(self, item: Item, content: bytes) -> Any:
        """Return a body as its content type says, as an object for both forms of formatters."""
        named = properties(item)
        inputs = self._inputs(named, content)
        decode = importlib.import_module("djl_python.encode_decode").decode
        payload = decode(inputs, inputs.get_property("Content-Type"))
        return self._payload_class(payload if isinstance(payload, dict) else {"inputs": payload}, named, content)

    def _inputs(self, named: Mapping[str, Any], content: bytes) -> Any:
        inputs = self._djl.Input()
        inputs.properties.update(named)
        inputs.content.add(key="data", value=bytearray(content))
        return inputs

    def _called(self, first: Any, named: Mapping[str, Any]) -> Any:
        function = self._code.input_formatter
        assert function is not None
        return function(first, **_accepted(function, named))

    def _payload(self, item: Item, formatted: Any, adapters: Any) -> bytes:
        """Return the engine's payload of what an input formatter returned."""
        request = formatted
        if isinstance(formatted, self._io.RequestInput):
            formatted = self._payload_of_request(formatted)
        elif not isinstance(formatted, Mapping):
            raise TypeError(f"the input formatter returned {type(formatted)}; expected a dict or RequestInput")
        else:
            request = self._request(item, formatted)
        if adapters is not None:
            formatted = {"adapters": adapters, **formatted}
        encoded = json.dumps(formatted, ensure_ascii=False).encode()
        if _TOKEN_KIND in self.kinds:
            self._keep(item.path, _Response(request))
        return encoded

    def _payload_of_request(self, request: Any) -> dict[str, Any]:
        if request.output_formatter is not None and self._code.output_formatter is None:
            raise TypeError("the input formatter sets output_formatter; mark that function with @output_formatter")
        parameters = dict(request.parameters)
        payload = {"inputs": getattr(request, "input_text", None), "parameters": parameters}
        if "stream" in parameters:
            payload["stream"] = parameters.pop("stream")
        adapters = getattr(request, "adapters", None)
        return payload if adapters is None else {**payload, "adapters": adapters}

    def _request(self, item: Item, payload: Mapping[str, Any]) -> Any:
        return self._io.TextInput(
            client_request_id=item.request_id,
            parameters=payload.get("parameters") or {},
            input_text=payload.get("inputs"),
        )

    def _output(self, name: str, content: bytes) -> bytes:
        assert self._code.output_formatter is not None
        response = content.decode() if name == "event" else json.loads(content, object_hook=Payload)
        return (_text(self._code.output_formatter(response)) + "\n").encode()

    def _token(self, item: Item, content: bytes) -> bytes:
        assert self._code.output_formatter is not None
        step = json.loads(content)
        response = self._responses.pop(item.path, None)
        if response is None and step["index"] == 0 and "input" in step:
            payload = step["input"]
            response = _Response(self._request(item, payload if isinstance(payload, dict) else {"inputs": payload}))
        if response is None or response.num_tokens != step["index"]:
            raise RuntimeError("the process of the formatter was started again in the middle of the response")
        if response.output is None:
            response.output = self._io.TextGenerationOutput(request_id=self._num_responses, input=response.request)
            self._num_responses += 1
        reason = step.get("finish_reason")
        response.num_tokens += 1
        response.output.set_next_token(
            self._io.Token(**step["token"]), is_last_token=reason is not None, finish_reason=reason
        )
        response.output.finished = reason is not None
        text = self._code.output_formatter(response.output)
        if reason is None:
            self._keep(item.path, response)
        if not isinstance(text, str):
            raise TypeError(f"the output formatter returned {type(text)}; expected a str")
        return text.encode()

    def _keep(self, key: str, response: _Response) -> None:
        self._responses[key] = response
        if len(self._responses) > _MAX_RESPONSES:
            self._responses.popitem(last=False)


def _text(formatted: Any) -> str:
    """Return what an output formatter returned as the text for the client."""
    if hasattr(formatted, "model_dump_json"):
        formatted = formatted.model_dump_json()
    elif hasattr(formatted, "model_dump"):
        formatted = formatted.model_dump()
    if isinstance(formatted, str):
        return formatted
    if isinstance(formatted, Mapping | list):
        return json.dumps(formatted, ensure_ascii=False)
    raise TypeError(f"the output formatter returned {type(formatted)}; expected a dict, a str or the response")


def _payload_class(djl: Any) -> Any:
    """Return a class for functions that do not say which form they take: a decoded payload, and an `Input`."""

    class InputPayload(dict[str, Any], djl.Input):  # type: ignore[misc]
        def __init__(self, payload: Mapping[str, Any], named: Mapping[str, Any], content: bytes) -> None:
            dict.__init__(self, payload)
            djl.Input.__init__(self)
            self.properties.update(named)
            self.content.add(key="data", value=bytearray(content))

    return InputPayload


def _accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in values.items() if takes_all or name in parameters}


def _takes(function: Callable[..., Any], named: str, *types: str) -> bool:
    """Return whether a formatter's first parameter has one of these types, or that name and no type."""
    name, annotation = _first_parameter(function)
    return annotation in types or (name == named and not annotation)


def _first_parameter(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the name of the first parameter, and the last name of its type; both empty if there is none."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return "", ""
    if first.annotation is inspect.Parameter.empty:
        return first.name, ""
    annotation = getattr(first.annotation, "__name__", str(first.annotation))
    return first.name, annotation.rpartition(".")[2].strip("'\"")
