"""TEI's routes: `/embed`, `/embed_all`, `/rerank`, `/predict`, `/similarity`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import PoolingInfo, PoolingParams
from headrace.wire.answers import Answer
from headrace.wire.dialect import ErrorReply, ParsedRequest, RequestContext
from headrace.wire.fields import struct_fields
from headrace.wire.framing import decode_body, field_names, refusing_deep_nesting, shortened_names, to_json
from headrace.wire.pooled import activated, parsed_pooling, pooled_of, vector_of, with_prompt
from headrace.wire.tei.bodies import (
    EmbedBody,
    PredictBody,
    RerankBody,
    SimilarityBody,
    TruncationFields,
    check_count,
    check_text,
    read_inputs,
)
from headrace.wire.tei.errors import EmptyInput, render_error

TeiRoute = Literal["embed", "embed_all", "rerank", "predict", "similarity"]

_embed_decoder = msgspec.json.Decoder(EmbedBody)
_rerank_decoder = msgspec.json.Decoder(RerankBody)
_predict_decoder = msgspec.json.Decoder(PredictBody)
_similarity_decoder = msgspec.json.Decoder(SimilarityBody)


@dataclass(frozen=True, slots=True)
class Tei:
    """TEI on one of its routes."""

    route: TeiRoute

    @property
    def name(self) -> str:
        """The dialect's name in the settings and the log."""
        return f"tei-{self.route}"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a body.

        Raises:
            InvalidRequest: with TEI's text.
        """
        return _PARSERS[self.route](body, context)

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"error": ..., "error_type": ...}` with TEI's status."""
        return render_error(error)


def _embed(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = decode_body(body, _embed_decoder)
    info = context.model.pooling
    inputs = with_prompt(read_inputs(fields.inputs, vocab_size=context.model.vocab_size), fields.prompt_name, info)
    params = fields.params("embed", normalizes=info is None or info.normalizes or fields.dimensions is not None)
    return parsed_pooling(inputs, params, context, _vectors, _ignored(body, EmbedBody))


def _vectors(answers: Sequence[Answer]) -> bytes:
    return to_json([vector_of(answer) for answer in answers])


def _embed_all(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = decode_body(body, _embed_decoder)
    inputs = read_inputs(fields.inputs, vocab_size=context.model.vocab_size)
    inputs = with_prompt(inputs, fields.prompt_name, context.model.pooling)
    params = fields.params("embed_tokens", normalizes=False)
    return parsed_pooling(inputs, params, context, _all_vectors, _ignored(body, EmbedBody))


def _all_vectors(answers: Sequence[Answer]) -> bytes:
    return to_json([pooled_of(answer).vectors() for answer in answers])


def _rerank(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = decode_body(body, _rerank_decoder)
    check_reranker(context.model.pooling)
    if not fields.texts:
        raise EmptyInput("`texts` cannot be empty", param="texts")
    check_count(len(fields.texts))
    query = check_text(fields.query, "query")
    params = [
        PoolingParams(task="score", normalize=False, truncate=fields.side, document=text) for text in fields.texts
    ]

    def render(answers: Sequence[Answer]) -> bytes:
        return to_json(_ranked(fields, answers))

    return parsed_pooling([query] * len(params), params, context, render, _ignored(body, RerankBody))


def _score_params(fields: TruncationFields, documents: Sequence[str | None]) -> list[PoolingParams]:
    side = fields.side
    return [PoolingParams(task="score", normalize=False, truncate=side, document=text) for text in documents]


def check_reranker(info: PoolingInfo | None) -> None:
    """Refuse a model whose outputs are not one score of a pair."""
    if info is None or len(info.labels) != 1:
        raise InvalidRequest("model is not a re-ranker model: it does not compute one score for a query and a text")


def _ranked(fields: RerankBody, answers: Sequence[Answer]) -> list[dict[str, object]]:
    """Return the texts by score, the best first; equal scores keep their order."""
    scores = [vector_of(answer) for answer in answers]
    values = [score[0] if fields.raw_scores else activated(score)[0] for score in scores]
    order = sorted(range(len(values)), key=lambda index: -values[index])
    if not fields.return_text:
        return [{"index": index, "score": values[index]} for index in order]
    return [{"index": index, "text": fields.texts[index], "score": values[index]} for index in order]


def _predict(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = decode_body(body, _predict_decoder)
    items, is_batch = _sequences(fields)
    check_count(len(items))
    info = context.model.pooling
    labels = () if info is None else info.labels
    params = _score_params(fields, [document for _, document in items])

    def render(answers: Sequence[Answer]) -> bytes:
        found = [_labelled(vector_of(answer), labels, is_raw=fields.raw_scores) for answer in answers]
        return to_json(found if is_batch else found[0])

    texts = [check_text(text, "inputs") for text, _ in items]
    return parsed_pooling(texts, params, context, render, _ignored(body, PredictBody))


def _sequences(fields: PredictBody) -> tuple[list[tuple[str, str | None]], bool]:
    """Return texts and pairs, and whether they are a batch: a flat list of two strings is one pair."""
    if isinstance(fields.inputs, str):
        return [(fields.inputs, None)], False
    if not fields.inputs:
        raise EmptyInput("`inputs` cannot be empty", param="inputs")
    if all(isinstance(item, str) for item in fields.inputs):
        return [_pair([item for item in fields.inputs if isinstance(item, str)])], False
    return [_pair([item] if isinstance(item, str) else item) for item in fields.inputs], True


def _pair(texts: list[str]) -> tuple[str, str | None]:
    if not 1 <= len(texts) <= 2:
        raise InvalidRequest(f"`inputs` has a sequence of {len(texts)} texts; expected one or two", param="inputs")
    return texts[0], texts[1] if len(texts) > 1 else None


def _labelled(scores: list[float], labels: tuple[str, ...], *, is_raw: bool) -> list[dict[str, object]]:
    values = scores if is_raw else activated(scores)
    order = sorted(range(len(values)), key=lambda index: -values[index])
    return [{"score": values[index], "label": labels[index]} for index in order]


def _similarity(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = decode_body(body, _similarity_decoder)
    sentences = fields.inputs.sentences
    if not sentences:
        raise EmptyInput("`inputs.sentences` cannot be empty", param="inputs")
    check_count(len(sentences) + 1)
    texts = [check_text(text, "inputs") for text in (fields.inputs.source_sentence, *sentences)]
    inputs = with_prompt(texts, fields.parameters.prompt_name, context.model.pooling)
    params = PoolingParams(task="embed", truncate=fields.parameters.side)
    return parsed_pooling(inputs, params, context, _similarities, _ignored(body, SimilarityBody))


def _similarities(answers: Sequence[Answer]) -> bytes:
    source, *others = (vector_of(answer) for answer in answers)
    return to_json([sum(a * b for a, b in zip(source, other, strict=True)) for other in others])


def _ignored(body: bytes, struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return shortened_names(field_names(body) - struct_fields(struct))


_PARSERS: dict[TeiRoute, Callable[[bytes, RequestContext], ParsedRequest]] = {
    "embed": _embed,
    "embed_all": _embed_all,
    "rerank": _rerank,
    "predict": _predict,
    "similarity": _similarity,
}
