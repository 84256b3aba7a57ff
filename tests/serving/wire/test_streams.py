"""Every stream renderer ends once: with its end or with an error."""

import pytest

from headrace.core.errors import EngineFailed
from headrace.core.generation import Chunk, FinishReason
from headrace.serving.wire.dialect import Dialect, StreamRenderer
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.registry import DIALECT_NAMES, get_dialect
from tests.serving.wire.samples import answer, finish, parse

BODIES = {
    "openai-chat": {"messages": [{"role": "user", "content": "Hi"}], "stream": True},
    "openai-completions": {"prompt": "Hi", "stream": True},
    "torchserve": {"inputs": "Hi"},
}
NATIVE = {"inputs": "Hi", "stream": True}
DIALECTS = [get_dialect(name) for name in DIALECT_NAMES if name not in {"openai", "tei"}]
STREAMS = pytest.mark.parametrize(
    "dialect", [*DIALECTS, OpenAIChat(), OpenAICompletions()], ids=lambda dialect: dialect.name
)


def stream_of(dialect: Dialect) -> StreamRenderer:
    return parse(dialect, **BODIES.get(dialect.name, NATIVE)).reply.stream()


@STREAMS
def test_an_error_is_rendered_once_and_nothing_follows_it(dialect: Dialect) -> None:
    stream = stream_of(dialect)
    stream.chunk(Chunk(text="Hello"))

    assert b"It broke." in b"".join(stream.error(EngineFailed("It broke.")))
    assert b"".join(stream.error(EngineFailed("It broke."))) == b""
    assert b"".join(stream.end()) == b""


@STREAMS
def test_a_chunk_that_failed_is_the_error_of_the_stream(dialect: Dialect) -> None:
    stream = stream_of(dialect)

    failed = stream.chunk(Chunk(finish=finish(FinishReason.ERROR, message="It broke.")))

    assert b"It broke." in b"".join(failed)
    assert b"".join(stream.end()) == b""


@STREAMS
def test_a_whole_answer_ends_once(dialect: Dialect) -> None:
    stream = stream_of(dialect)
    for chunk in answer("Hello"):
        stream.chunk(chunk)

    stream.end()

    assert b"".join(stream.end()) == b""
    assert b"".join(stream.error(EngineFailed("It broke."))) == b""
