"""Conversion of requests to DJL's `Input`."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace_handler.contract import Item

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
