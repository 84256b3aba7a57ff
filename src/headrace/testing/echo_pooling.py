"""Vectors and scores of the echo: counts of words, and the share of the query's words that a document has."""

import math
import zlib
from array import array
from collections.abc import Sequence

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, Finish, FinishReason, Pooled, PoolingInfo, PoolingParams

VECTOR_SIZE = 8


def pooling_info(labels: tuple[str, ...], *, max_tokens: int) -> PoolingInfo:
    """Describe the echo's embeddings, or its scores if there are labels."""
    return PoolingInfo(
        method="mean",
        size=len(labels) or VECTOR_SIZE,
        max_tokens=max_tokens,
        labels=labels,
        prompts={"query": "query: "},
    )


def pooled_chunk(params: PoolingParams, pieces: Sequence[str], info: PoolingInfo | None) -> Chunk:
    """Return the only chunk of a request that pools the words `pieces`."""
    words = [piece.strip().lower() for piece in pieces]
    if params.task == "score":
        if info is None or not info.labels:
            raise InvalidRequest("This echo has no head for scores.")
        size, values = len(info.labels), _scores(words, params.document, len(info.labels))
    elif params.task == "embed_tokens":
        size, values = VECTOR_SIZE, [number for word in words for number in _counts([word])]
    else:
        values = _counts(words)[: params.dimensions]
        length = math.sqrt(math.fsum(value * value for value in values)) or 1.0
        size, values = len(values), [value / length for value in values] if params.normalize else values
    finish = Finish(reason=FinishReason.POOLED, prompt_tokens=len(pieces), output_tokens=0)
    return Chunk(pooled=Pooled(array("f", values).tobytes(), size), finish=finish)


def _counts(words: Sequence[str]) -> list[float]:
    counts = [0.0] * VECTOR_SIZE
    for word in words:
        counts[zlib.crc32(word.encode()) % VECTOR_SIZE] += 1
    return counts


def _scores(words: Sequence[str], document: str | None, count: int) -> list[float]:
    """Return as first score a number between -4 and 4 that grows with the share of common words."""
    others = set((document or "").lower().split())
    share = sum(word in others for word in words) / max(1, len(words))
    return [8 * share - 4, *(float(index) for index in range(1, count))]
