"""
TEI's routes: `/embed`, `/embed_all`, `/rerank`, `/predict`, `/similarity`, and `/info`.

Source: text-embeddings-inference `router/src/http/types.rs` (bodies), `router/src/http/server.rs` (status of errors),
`core/src/lib.rs`, `router/src/lib.rs` (Info, ModelType).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import Busy, EngineFailed, HeadraceError, Internal, InvalidRequest, PromptTooLong, Unavailable
from headrace.core.generation import ModelInfo, PoolingInfo, PoolingParams
from headrace.serving.wire import framing
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import ErrorReply, ParsedRequest, RequestContext, retry_headers
from headrace.serving.wire.fields import struct_fields
from headrace.serving.wire.pooled import MAX_INPUTS, Input, activated, parsed_pooling, pooled_of, vector_of, with_prompt


class EmptyInput(InvalidRequest):
    """An input or a list of inputs without content."""

    code = "empty_input"


def render_error(error: HeadraceError) -> ErrorReply:
    message = error.message
    if isinstance(error, PromptTooLong):
        message = f"`inputs` must have less than {error.max_prompt_tokens} tokens. Given: {error.prompt_tokens}"
    own = (HeadraceError, "{}", error.code, error.http_status)
    _, text, error_type, status = next((form for form in _FORMS if isinstance(error, form[0])), own)
    body = framing.to_json({"error": text.format(message), "error_type": error_type})
    return ErrorReply(status=status, body=body, headers=retry_headers(error))


_FORMS: tuple[tuple[type[HeadraceError], str, str, int], ...] = (
    (framing.MalformedBody, "Failed to parse the request body as JSON: {}", "validation", 400),
    (EmptyInput, "Input validation error: {}", "empty", 400),
    (InvalidRequest, "Input validation error: {}", "validation", 413),
    (Busy, "Model is overloaded", "overloaded", 429),
    (Unavailable, "{}", "unhealthy", 503),
    (EngineFailed, "Backend error: {}", "backend", 424),
    (Internal, "Backend error: {}", "backend", 424),
)
"""Kind of error, text, `error_type` and status; the first kind that fits counts."""


Inputs = str | list[str | int | list[int]]
Sequences = str | list[str | list[str]]


class TruncationFields(msgspec.Struct, kw_only=True):
    """The treatment of inputs that are too long."""

    truncate: bool | None = None
    truncation_direction: str | None = None

    @property
    def side(self) -> Literal["left", "right"] | None:
        """Return the side that is cut, or None."""
        if not self.truncate:
            return None
        direction = (self.truncation_direction or "right").lower()
        if direction in ("left", "right"):
            return "left" if direction == "left" else "right"
        raise InvalidRequest(
            f"`truncation_direction` is {shortened(direction)!r}; expected 'left' or 'right'.",
            param="truncation_direction",
        )


class EmbedBody(TruncationFields, kw_only=True):
    """The body of `/embed` and `/embed_all`: inputs and what is done with their vectors."""

    inputs: Inputs
    normalize: bool | None = None
    dimensions: int | None = None
    prompt_name: str | None = None


class RerankBody(TruncationFields, kw_only=True):
    """The body of `/rerank`: a query and the texts to order."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False


class PredictBody(TruncationFields, kw_only=True):
    """The body of `/predict`: texts or pairs to classify."""

    inputs: Sequences
    raw_scores: bool = False


class SimilarityInputs(msgspec.Struct, kw_only=True):
    """A sentence and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TruncationFields, kw_only=True):
    """The parameters of `/similarity`: truncation and the prompt."""

    prompt_name: str | None = None


class SimilarityBody(msgspec.Struct, kw_only=True):
    """The body of `/similarity`: a sentence and those to compare it with."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters = msgspec.field(default_factory=SimilarityParameters)


def read_inputs(inputs: Inputs, *, vocab_size: int) -> list[Input]:
    """
    Return the inputs of a text, a list of texts, of token ids or of lists of token ids.

    Raises:
        EmptyInput: there is none, or one is empty.
        InvalidRequest: there are too many, or a token id is unknown.
    """
    if isinstance(inputs, str):
        return [check_text(inputs, "inputs")]
    if not inputs:
        raise EmptyInput("`inputs` cannot be empty", param="inputs")
    if all(isinstance(item, int) for item in inputs):
        return [_token_ids(inputs, vocab_size)]
    check_count(len(inputs))
    return [check_text(item, "inputs") if isinstance(item, str) else _token_ids(item, vocab_size) for item in inputs]


def check_text(text: str, name: str) -> str:
    if not text:
        raise EmptyInput(f"`{name}` cannot be empty", param=name)
    return text


def check_count(count: int) -> None:
    if count > MAX_INPUTS:
        raise InvalidRequest(f"batch size {count} > maximum allowed batch size {MAX_INPUTS}", param="inputs")


def _token_ids(ids: object, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(ids, list):
        raise InvalidRequest("`inputs` mixes texts and token ids", param="inputs")
    if not ids:
        raise EmptyInput("`inputs` cannot be empty", param="inputs")
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"token id {token_id} is not below {vocab_size}", param="inputs")
    return tuple(ids)


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
        return f"tei-{self.route}"

    @framing.refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        return _PARSERS[self.route](body, context)

    render_error = staticmethod(render_error)


def _embed(body: bytes, context: RequestContext, *, is_whole: bool = True) -> ParsedRequest:
    """Parse a body of `/embed`, or of `/embed_all`, whose vectors are those of all tokens, never normalised."""
    fields = framing.decode_body(body, _embed_decoder, only_integers=True)
    info = context.model.pooling
    inputs = with_prompt(read_inputs(fields.inputs, vocab_size=context.model.vocab_size), fields.prompt_name, info)
    by_default = info is None or info.normalizes or fields.dimensions is not None
    params = PoolingParams(
        task="embed" if is_whole else "embed_tokens",
        normalize=is_whole and (by_default if fields.normalize is None else fields.normalize),
        dimensions=fields.dimensions if is_whole else None,
        truncate=fields.side,
    )

    def render(answers: Sequence[Answer]) -> bytes:
        vectors = [pooled_of(answer).vectors() for answer in answers]
        return framing.to_json([of_input[0] for of_input in vectors] if is_whole else vectors)

    return parsed_pooling(inputs, params, context, render, _ignored(body, EmbedBody))


def _rerank(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = framing.decode_body(body, _rerank_decoder)
    check_reranker(context.model.pooling)
    if not fields.texts:
        raise EmptyInput("`texts` cannot be empty", param="texts")
    check_count(len(fields.texts))
    query = check_text(fields.query, "query")
    params = _score_params(fields, fields.texts)

    def render(answers: Sequence[Answer]) -> bytes:
        scores = [vector_of(answer) for answer in answers]
        values = [score[0] if fields.raw_scores else activated(score)[0] for score in scores]
        texts = [{"text": text} if fields.return_text else {} for text in fields.texts]
        return framing.to_json(
            [{"index": index, **texts[index], "score": values[index]} for index in _best_first(values)]
        )

    return parsed_pooling([query] * len(params), params, context, render, _ignored(body, RerankBody))


def _best_first(values: Sequence[float]) -> list[int]:
    """Return the places of the values, the largest first; equal ones keep their order."""
    return sorted(range(len(values)), key=lambda index: -values[index])


def _score_params(fields: TruncationFields, documents: Sequence[str | None]) -> list[PoolingParams]:
    side = fields.side
    return [PoolingParams(task="score", normalize=False, truncate=side, document=text) for text in documents]


def check_reranker(info: PoolingInfo | None) -> None:
    """Refuse a model whose outputs are not one score of a pair."""
    if info is None or len(info.labels) != 1:
        raise InvalidRequest("model is not a re-ranker model: it does not compute one score for a query and a text")


def _predict(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = framing.decode_body(body, _predict_decoder)
    items, is_batch = _sequences(fields)
    check_count(len(items))
    info = context.model.pooling
    labels = () if info is None else info.labels
    params = _score_params(fields, [document for _, document in items])

    def render(answers: Sequence[Answer]) -> bytes:
        scores = [vector_of(answer) for answer in answers]
        values = scores if fields.raw_scores else [activated(score) for score in scores]
        found = [[{"score": row[index], "label": labels[index]} for index in _best_first(row)] for row in values]
        return framing.to_json(found if is_batch else found[0])

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


def _similarity(body: bytes, context: RequestContext) -> ParsedRequest:
    fields = framing.decode_body(body, _similarity_decoder)
    sentences = fields.inputs.sentences
    if not sentences:
        raise EmptyInput("`inputs.sentences` cannot be empty", param="inputs")
    check_count(len(sentences) + 1)
    texts = [check_text(text, "inputs") for text in (fields.inputs.source_sentence, *sentences)]
    inputs = with_prompt(texts, fields.parameters.prompt_name, context.model.pooling)
    params = PoolingParams(task="embed", truncate=fields.parameters.side)

    def render(answers: Sequence[Answer]) -> bytes:
        source, *others = (vector_of(answer) for answer in answers)
        return framing.to_json([sum(a * b for a, b in zip(source, other, strict=True)) for other in others])

    return parsed_pooling(inputs, params, context, render, _ignored(body, SimilarityBody))


def _ignored(body: bytes, struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return framing.shortened_names(framing.field_names(body) - struct_fields(struct))


_PARSERS: dict[TeiRoute, Callable[[bytes, RequestContext], ParsedRequest]] = {
    "embed": _embed,
    "embed_all": partial(_embed, is_whole=False),
    "rerank": _rerank,
    "predict": _predict,
    "similarity": _similarity,
}


_DTYPES = {"bf16": "bfloat16"}


def render_info(model: ModelInfo, info: PoolingInfo, *, max_concurrent_requests: int, server_version: str) -> bytes:
    labels = {
        "id2label": {str(index): label for index, label in enumerate(info.labels)},
        "label2id": {label: index for index, label in enumerate(info.labels)},
    }
    model_type: dict[str, object] = {"reranker" if len(info.labels) == 1 else "classifier": labels}
    if not info.labels:
        model_type = {"embedding": {"pooling": {"last": "last_token"}.get(info.method, info.method)}}
    return framing.to_json(
        {
            "model_id": model.name,
            "model_sha": model.revision,
            "model_dtype": _DTYPES.get(model.dtype, model.dtype),
            "model_type": model_type,
            "max_concurrent_requests": max_concurrent_requests,
            "max_input_length": info.max_tokens,
            "max_batch_tokens": model.max_batch_tokens,
            "max_batch_requests": model.max_num_seqs,
            "max_client_batch_size": MAX_INPUTS,
            "auto_truncate": False,
            "tokenization_workers": 1,
            "version": server_version,
            "sha": None,
            "docker_label": None,
        }
    )
