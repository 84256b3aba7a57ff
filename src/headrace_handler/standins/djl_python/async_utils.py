"""Responses of asynchronous handlers."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from .outputs import Output

logger = logging.getLogger(__name__)


def create_non_stream_output(
    data: str | dict[str, Any],
    properties: Mapping[str, Any] | None = None,
    error: str | None = None,
    code: int | None = None,
) -> Output:
    """Return a whole response in JSON."""
    return _output(data, True, "application/json", properties, error, code)


def create_stream_chunk_output(
    data: str | dict[str, Any], last_chunk: bool, error: str | None = None, code: int | None = None
) -> Output:
    """Return a part of a response in lines of JSON."""
    return _output(data, last_chunk, "application/jsonlines", None, error, code)


async def handle_streaming_response(
    response: AsyncIterator[Any],
    stream_output_formatter: Callable[..., Any],
    accumulate_chunks: bool = False,
    **kwargs: Any,
) -> AsyncIterator[Output]:
    """
    Convert the chunks that an engine generates to outputs.

    The formatter returns the text of a chunk and whether it is the last one; with `accumulate_chunks` it also gets and
    returns the `history` of chunks.
    """
    history: Any = []
    async for chunk in response:
        try:
            if accumulate_chunks:
                data, last, history = stream_output_formatter(chunk, history=history, **kwargs)
            else:
                data, last = stream_output_formatter(chunk, **kwargs)
        except Exception as error:
            logger.exception("stream_output_formatter failed")
            yield create_stream_chunk_output("", True, error=str(error), code=424)
            return
        yield create_stream_chunk_output(data, last)
        if last:
            return


def _output(
    data: str | dict[str, Any],
    last: bool,
    content_type: str,
    properties: Mapping[str, Any] | None,
    error: str | None,
    code: int | None,
) -> Output:
    text = json.dumps(data, ensure_ascii=False) if isinstance(data, dict) else data
    pairs: dict[str, Any] = {"data": f"{text}\n", "last": last}
    pairs |= {name: value for name, value in (("error", error), ("code", code)) if value}
    output = Output().add_property("Content-Type", content_type)
    for key, value in (properties or {}).items():
        output.add_property(key, value)
    return output.add(Output.binary_encode(pairs))
