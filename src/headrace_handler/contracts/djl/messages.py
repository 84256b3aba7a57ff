"""Conversion of requests to DJL's `Input`, and of its `Output` to responses."""

import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace_handler.client_data import InvalidBody
from headrace_handler.contract import Cancelled, Item, Reply, error_body
from headrace_handler.contracts.djl.code import is_out_of_memory

_CUSTOM_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
_DATA = "data"


def properties(item: Item) -> dict[str, Any]:
    """Return the headers, with the pairs of SageMaker's custom attributes in place of that header."""
    named: dict[str, Any] = {}
    for name, value in item.headers:
        if name.lower() == _CUSTOM_ATTRIBUTES:
            pairs = (pair.split("=", 1) for pair in value.split(";") if "=" in pair)
            named |= {key.strip(): text.strip() for key, text in pairs}
        else:
            named[name] = value
    named["requestId"] = item.request_id
    return named


def requested_handler(item: Item) -> str | None:
    """Return the function that a client asks for; None if it leaves the choice to the model."""
    return next((value for name, value in properties(item).items() if name.lower() == "handler"), None)


def contents(item: Item) -> Iterator[tuple[str, bytearray]]:
    """Yield the contents: query parameters, and the form's fields or else the body as `data`."""
    for name, value in item.query:
        yield name, bytearray(value.encode())
    for part in item.parts:
        yield part.name or _DATA, part.content
    if not item.parts:
        yield _DATA, bytearray()  # without any content it would be taken for the call that loads the model


def make_input(djl: Any, item: Item, common: Mapping[str, Any]) -> Any:
    """Return the input of one request; `common` are the properties that the server adds."""
    return _input(djl, {**properties(item), **common}, contents(item))


def make_inputs(djl: Any, items: Sequence[Item], common: Mapping[str, Any]) -> Any:
    """Return the input of a call: that of its request, or for several one with keys such as `batch_001.data`."""
    if len(items) == 1:
        return make_input(djl, items[0], common)
    named: dict[str, Any] = {"batch_size": str(len(items))}
    content: list[tuple[str, bytearray]] = []
    for index, item in enumerate(items):
        named |= {f"batch_{index:03}.{key}": value for key, value in properties(item).items()}
        content += [(f"batch_{index:03}.{key}", value) for key, value in contents(item)]
    return _input(djl, {**named, **common}, content)


def make_step(djl: Any, items: Sequence[tuple[Item, bool]], common: Mapping[str, Any], *, is_reset: bool) -> Any:
    """
    Return the input of a step of a rolling batch.

    Args:
        djl: the package `djl_python`.
        items: all live requests, and whether an earlier step had each; its properties are sent in the first one only.
        common: the properties that the server adds.
        is_reset: the last step failed, so that the handler has to forget its requests.
    """
    named: dict[str, Any] = {"reset_rollingbatch": "true"} if is_reset else {}
    content: list[tuple[str, bytearray]] = []
    for index, (item, is_known) in enumerate(items):
        prefix = f"batch_{index:03}."
        if is_known:
            content.append((f"{prefix}{_DATA}", bytearray()))
            continue
        named |= {f"{prefix}{key}": value for key, value in properties(item).items()}
        found = dict(contents(item))
        content.append((f"{prefix}{_DATA}", found.get(_DATA) or next(iter(found.values()))))
        content.append((f"{prefix}seed", bytearray(str(random.getrandbits(31)).encode())))
    named["batch_size"] = str(len(items))
    return _input(djl, {**named, **common}, content)


def make_warm_up(djl: Any, options: Mapping[str, str], common: Mapping[str, Any]) -> Any:
    """Return the input without content that lets the handler load its model by the options."""
    return _input(djl, {**options, **common}, ())


def _input(djl: Any, named: Mapping[str, Any], content: Iterator[tuple[str, bytearray]] | Sequence[Any]) -> Any:
    inputs = djl.Input()
    inputs.properties.update(named)
    for key, value in content:
        inputs.content.add(key=key, value=value)
    inputs.function_name = named.get("handler")
    return inputs


logger = logging.getLogger(__name__)

_BATCH_KEY = re.compile(r"batch_(\d+)\.(.*)", re.DOTALL)
_LINE_BREAKS = frozenset("\r\n\0")
_JSON = [("Content-Type", "application/json")]


def checked(djl: Any, output: Any) -> Any:
    """Return what a handler returned as an `Output` that can be sent."""
    if output is None:
        return djl.Output(code=204, message="No content")
    if not isinstance(output, djl.Output):
        return djl.Output().error(f"Invalid output type: {type(output)}")
    try:
        output.code = int(output.code)
    except (TypeError, ValueError):
        return djl.Output().error(f"Invalid output code: {output.code!r}")
    if not 200 <= output.code <= 999:
        return djl.Output().error(f"Invalid output code: {output.code}")
    broken = next(
        (key for key, value in output.properties.items() if not _LINE_BREAKS.isdisjoint(f"{key}{value}")), None
    )
    return output if broken is None else djl.Output().error(f"Invalid output property: {broken!r} has a line break")


def failed(djl: Any, error: Exception, **kwargs: str) -> Any:
    """Return the `Output` for an exception of a handler."""
    if is_out_of_memory(error):
        return djl.Output(code=507, message=str(error))
    if isinstance(error, InvalidBody):
        return djl.Output().error(str(error), code=error.status, **kwargs)
    return djl.Output().error(str(error), **kwargs)


def send(output: Any, replies: Sequence[Reply], djl: Any) -> None:
    """Answer all requests of a call, then run what the handler wants run after that."""
    try:
        if len(replies) == 1:
            send_one(output, replies[0], djl)
        else:
            _send_batch(output, replies, djl)
    finally:
        try:
            output.execute_finalize()
        except Exception:
            logger.exception("Failed on finalize function")


def send_one(output: Any, reply: Reply, djl: Any) -> None:
    """Send a response, or its stream until the client disconnects."""
    try:
        if output.stream_content is not None:
            _send_stream(output, reply, djl)
        else:
            _send_body(output, reply, body_of(output))
    except Cancelled:
        logger.info("The client has gone: its response ends.")


def send_error(reply: Reply, status: int, kind: str, message: str) -> None:
    """Send an error of the model server itself."""
    reply.head(status, _JSON)
    reply.end(error_body(status, kind, message))


def head(output: Any, reply: Reply) -> None:
    """Begin the response to an output: its code, message and properties."""
    phrase = "OK" if output.code == 200 else phrase_of(output.message)
    reply.head(output.code, headers_of(output.properties), phrase=phrase)


def headers_of(properties: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(key), str(value)) for key, value in properties.items()]


def phrase_of(message: Any) -> str:
    """Return a message as the phrase of a status line, which is one line of Latin-1."""
    return " ".join(str(message or "").split()).encode("latin-1", "replace").decode("latin-1")


def body_of(output: Any) -> bytes | bytearray:
    """Return the content `data`, else the first one."""
    content = output.content
    if content.size() == 0:
        return b""
    data = content.get(_DATA)
    found: bytes | bytearray = content.value_at(0) if data is None else data
    return found


def _send_body(output: Any, reply: Reply, body: bytes | bytearray) -> None:
    head(output, reply)
    reply.end(body)


def _send_stream(output: Any, reply: Reply, djl: Any) -> None:
    head(output, reply)
    try:
        last = _send_items(output, reply, djl)
    finally:
        close = getattr(output.stream_content, "close", None)
        if close is not None:
            close()
    reply.end(last)


def _send_items(output: Any, reply: Reply, djl: Any) -> bytes:
    """Send the items, and return the last part: the text of an exception of the iterator or formatter."""
    while True:
        if reply.is_cancelled:
            raise Cancelled
        try:
            item = next(output.stream_content)
            if output.stream_output_formatter is not None:
                item = output.stream_output_formatter(item)
            data = item if isinstance(item, bytes | bytearray) else djl.Output().add(item).content.value_at(0)
        except StopIteration:
            return b""
        except Exception as error:
            logger.exception("Failed read streaming content from output")
            return str(error).encode()
        if data:  # an empty chunk would end the response
            reply.data(data)


def _send_batch(output: Any, replies: Sequence[Reply], djl: Any) -> None:
    if output.stream_content is None and output.code >= 300:
        for reply in replies:
            send_one(output, reply, djl)
        return
    try:
        bodies = _bodies(output, len(replies))
    except _BadBatch as error:
        logger.error("%s", error)  # noqa: TRY400  # the user's code has not raised: its response does not fit
        for reply in replies:
            with suppress(Cancelled):
                send_error(reply, 400, "TranslateException", str(error))
        return
    for index, reply in enumerate(replies):
        with suppress(Cancelled):
            _send_body(output, reply, bodies.get(index, b""))


class _BadBatch(Exception):
    """The output of a batch is not one for each request."""


def _bodies(output: Any, size: int) -> dict[int, bytes]:
    actual = output.content.size() if output.stream_content is None else 1
    if actual != size:
        raise _BadBatch(f"Batch output size mismatch, expected: {size}, actual: {actual}")
    found: dict[int, dict[str, Any]] = {}
    for key, value in zip(output.content.keys, output.content.values, strict=True):
        match = _BATCH_KEY.fullmatch(str(key))
        if match is None or int(match[1]) >= size:
            raise _BadBatch(f"Unexpected batch output key: {'null' if key is None else key}")
        found.setdefault(int(match[1]), {}).setdefault(match[2], value)
    return {index: parts.get(_DATA, next(iter(parts.values()))) for index, parts in found.items()}
