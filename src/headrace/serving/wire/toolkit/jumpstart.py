"""
The schema of JumpStart's embedding models: `{"text_inputs": ...}` returns `{"embedding": [...]}`, one vector a text.

Source: the default payloads of `huggingface-textembedding-*` and `huggingface-sentencesimilarity-*` in AWS's specs.
"""

from collections.abc import Sequence

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.core.generation import PoolingParams
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.framing import decode_body, field_names, shortened_names, to_json
from headrace.serving.wire.pooled import parsed_pooling, vector_of
from headrace.serving.wire.tei.dialect import check_count, check_text

FIELD = "text_inputs"


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """One text or several; the other modes of the container search a corpus, which Headrace does not keep."""

    text_inputs: str | list[str]
    mode: str = "embedding"


_decoder = msgspec.json.Decoder(EmbeddingBody)


def parse_embedding(body: bytes, context: RequestContext) -> ParsedRequest:
    """Parse a body with `text_inputs`. Raises `InvalidRequest`: it has no text, too many, or another mode."""
    fields = decode_body(body, _decoder)
    if fields.mode != "embedding":
        raise InvalidRequest(f"`mode` is {shortened(fields.mode)!r}; expected 'embedding'.", param="mode")
    texts = [fields.text_inputs] if isinstance(fields.text_inputs, str) else fields.text_inputs
    if not texts:
        raise InvalidRequest(f"`{FIELD}` cannot be empty", param=FIELD)
    check_count(len(texts))
    inputs = [check_text(text, FIELD) for text in texts]
    params = PoolingParams(task="embed", truncate="right")

    def render(answers: Sequence[Answer]) -> bytes:
        return to_json({"embedding": [vector_of(answer) for answer in answers]})

    ignored = shortened_names(field_names(body) - {FIELD, "mode"})
    return parsed_pooling(inputs, params, context, render, ignored)
