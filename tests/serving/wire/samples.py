"""Contexts, answers and ways to run them through a dialect, for all tests of the wire."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hypothesis import strategies as st

from headrace.core.generation import Chunk, Finish, FinishReason, ModelInfo, RequestLimits, Token, TokenLogprob
from headrace.serving.wire.answers import Collector
from headrace.serving.wire.dialect import Dialect, ParsedRequest, RequestContext
from headrace.serving.wire.openai.envelope import system_fingerprint

MODEL = ModelInfo(
    name="smol",
    revision="abc",
    family="llama",
    dtype="bf16",
    kv_dtype="bf16",
    device="cpu (avx512)",
    max_model_len=2048,
    max_prompt_tokens=2000,
    max_num_seqs=64,
    vocab_size=49152,
    num_parameters=135_000_000,
    has_chat_template=True,
    created_s=5,
)
FINGERPRINT = b'"system_fingerprint":"fp_%b",' % system_fingerprint(MODEL).removeprefix("fp_").encode()
CONTEXT = RequestContext(
    request_id="r1",
    created_s=7,
    model=MODEL,
    limits=RequestLimits(max_best_of=3, max_stop_sequences=4, max_top_n_tokens=5),
    default_max_new_tokens=50,
)

EOS = Token(2, "</s>", -0.125, special=True, raw=b"</s>")


def token(text: str, number: int = 5, logprob: float | None = -0.5, *, num_top: int = 0) -> Token:
    """An ordinary token."""
    top = tuple(TokenLogprob(number + i, f"{text}{i or ''}", -0.5 - i) for i in range(num_top))
    return Token(number, text, logprob, top=top, raw=text.encode())


def finish(reason: FinishReason = FinishReason.EOS, *, output_tokens: int = 3, **facts: object) -> Finish:
    """The end of a choice."""
    return Finish(reason=reason, prompt_tokens=4, output_tokens=output_tokens, **facts)  # type: ignore[arg-type]


def answer(
    *texts: str, reason: FinishReason = FinishReason.EOS, index: int = 0, num_top: int = 0, seed: int | None = None
) -> list[Chunk]:
    """A chunk for each text, and an end-of-sequence token in a chunk of its own."""
    tokens = [token(text, number, num_top=num_top) for number, text in enumerate(texts, start=10)]
    chunks = [Chunk(index=index, text=item.text, tokens=(item,)) for item in tokens]
    end = finish(reason, output_tokens=len(texts) + (reason is FinishReason.EOS), seed=seed)
    if reason is FinishReason.EOS:
        return [*chunks, Chunk(index=index, tokens=(EOS,), finish=end)]
    last = chunks.pop()
    return [*chunks, Chunk(index=index, text=last.text, tokens=last.tokens, finish=end)]


def body(**fields: object) -> bytes:
    """A JSON body."""
    return json.dumps(fields).encode()


def parse(dialect: Dialect, **fields: object) -> ParsedRequest:
    """Parse a body with these fields."""
    return dialect.parse(body(**fields), CONTEXT)


def streamed(parsed: ParsedRequest, chunks: Iterable[Chunk], *, request: int = 0) -> list[bytes]:
    """The parts in which a stream is sent."""
    renderer = parsed.reply.stream()
    parts = [part for chunk in chunks for part in renderer.chunk(chunk, request=request)]
    return [*parts, *renderer.end()]


def whole(parsed: ParsedRequest, *answers: Sequence[Chunk]) -> bytes:
    """The body of an answer that is not streamed."""
    collector = Collector(parsed.requests)
    for number, chunks in enumerate(answers):
        for chunk in chunks:
            collector.add(chunk, request=number)
    return parsed.reply.render(collector.answers())


def sse_objects(parts: Iterable[bytes]) -> list[dict]:
    """The JSON objects of a server-sent stream."""
    events = b"".join(parts).decode().split("\n\n")
    assert events.pop() == ""
    data = [event.removeprefix("data:").strip() for event in events]
    return [json.loads(item) for item in data if item != "[DONE]"]


def line_objects(parts: Iterable[bytes]) -> list[dict]:
    """The JSON objects of a JSON-lines stream."""
    return [json.loads(line) for line in b"".join(parts).decode().splitlines()]


pieces = st.lists(
    st.text(st.characters(codec="utf-8"), max_size=6)
    | st.sampled_from(['"', "\\", "\n", "\n\n", "</s>", "é", "😀", "中"]),
    min_size=1,
    max_size=12,
)
"""The texts of an answer's tokens."""

reasons = st.sampled_from([FinishReason.EOS, FinishReason.LENGTH, FinishReason.STOP])


@st.composite
def answers(draw: st.DrawFn, texts: st.SearchStrategy[list[str]] = pieces) -> tuple[str, list[Chunk]]:
    """A text, and chunks that make it up, several tokens to a chunk at times."""
    items = draw(texts)
    chunks = answer(*items, reason=draw(reasons), num_top=draw(st.integers(0, 2)))
    merged: list[Chunk] = []
    for chunk in chunks:
        if merged and draw(st.booleans()):
            last = merged.pop()
            tokens = (*last.tokens, *chunk.tokens)
            merged.append(Chunk(text=last.text + chunk.text, tokens=tokens, finish=chunk.finish))
        else:
            merged.append(chunk)
    return "".join(items), merged


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data split at these places."""
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(edges)]
