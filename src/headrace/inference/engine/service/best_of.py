"""Selection of the `n` best of `best_of` candidates."""

from collections.abc import AsyncIterator
from dataclasses import replace

from headrace.core.generation import Chunk, FinishReason, Token
from headrace.inference.engine.service.stream import ChunkStream


async def best_chunks(stream: ChunkStream, *, count: int, shows_logprobs: bool) -> AsyncIterator[Chunk]:
    """
    Wait for all candidates and yield the `count` with the best mean logprob, best first, one chunk each.

    Args:
        stream: The chunks of all candidates.
        count: Choices to return.
        shows_logprobs: Whether the request asked for logprobs; they are computed for the ranking in any case.
    """
    pieces: dict[int, list[Chunk]] = {choice.index: [] for choice in stream.choices}
    while not stream.is_finished:
        chunk = await stream.next()
        pieces[chunk.index].append(chunk)
    prompt = next((c.prompt for chunks in pieces.values() for c in chunks if c.prompt is not None), None)
    failed = {index for index, chunks in pieces.items() if _has_failed(chunks[-1])}
    ranked = sorted(stream.choices, key=lambda c: (c.index in failed, -c.mean_logprob, c.index))[:count]
    for place, choice in enumerate(ranked):
        yield _joined(pieces[choice.index], place, prompt if place == 0 else None, shows_logprobs=shows_logprobs)


def _has_failed(last: Chunk) -> bool:
    return last.finish is not None and last.finish.reason in {FinishReason.ERROR, FinishReason.ABORT}


def _joined(chunks: list[Chunk], place: int, prompt: tuple[Token, ...] | None, *, shows_logprobs: bool) -> Chunk:
    tokens = tuple(token for chunk in chunks for token in chunk.tokens)
    if not shows_logprobs:
        tokens = tuple(replace(token, logprob=None) for token in tokens)
    text = "".join(chunk.text for chunk in chunks)
    first, last = chunks[0], chunks[-1]
    return Chunk(index=place, text=text, tokens=tokens, prompt=prompt, opening=first.opening, finish=last.finish)
