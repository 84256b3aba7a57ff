"""
`POST /v1/embeddings`, and `/rerank` and `/score` as Cohere, Jina and vLLM serve them, with errors in OpenAI's format.

One answer to `/rerank` serves three clients: Cohere reads `id`, `results` and `meta`, Jina and vLLM `model` and `usage`
too. Source: OpenAI API reference, create embeddings; vLLM's extra fields.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.core.generation import PoolingParams
from headrace.serving.wire.answers import Answer, usage_of
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import field_table
from headrace.serving.wire.framing import decode_body, invalid, refusing_deep_nesting, to_json
from headrace.serving.wire.openai.envelope import render_error
from headrace.serving.wire.openai.parameters import Texts, check_range, model_named, read_texts
from headrace.serving.wire.pooled import MAX_INPUTS, Input, activated, parsed_pooling, pooled_of, vector_of, with_prompt


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of an embeddings request."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    prompt_name: str | None = None


_decoder = msgspec.json.Decoder(EmbeddingsBody)
FIELDS = field_table("openai-embeddings", EmbeddingsBody)


@dataclass(frozen=True, slots=True)
class OpenAIEmbeddings:
    """The dialect of OpenAI's embeddings."""

    name = "openai-embeddings"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _decoder)
        context, adapter = model_named(fields.model, context)
        ignored = FIELDS.check(body)
        inputs = with_prompt(read_inputs(fields.input, context), fields.prompt_name, context.model.pooling)
        if fields.encoding_format not in (None, "float", "base64"):
            found = shortened(str(fields.encoding_format))
            raise invalid("encoding_format", f"expected one of 'float' or 'base64', but got '{found}' instead")
        is_base64 = fields.encoding_format == "base64"

        def render(answers: Sequence[Answer]) -> bytes:
            vectors = [
                base64.b64encode(pooled_of(answer).data).decode() if is_base64 else vector_of(answer)
                for answer in answers
            ]
            data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(vectors)]
            return to_json({"object": "list", "data": data, "model": context.model.name, "usage": _usage(answers)})

        return parsed_pooling(inputs, _params(fields, context), context, render, ignored, adapter=adapter)

    render_error = staticmethod(partial(render_error, prompt="input"))


def _params(fields: EmbeddingsBody, context: RequestContext) -> PoolingParams:
    info = context.model.pooling
    check_range("dimensions", fields.dimensions, low=1, high=None if info is None else info.size)
    check_range("truncate_prompt_tokens", fields.truncate_prompt_tokens, low=-1)
    side = fields.truncation_side or "right"
    if side not in ("left", "right"):
        raise invalid("truncation_side", "expected 'left' or 'right'")
    if fields.truncate_prompt_tokens == 0:
        raise InvalidRequest("Invalid 'truncate_prompt_tokens': expected 1 or more, or -1 for the model's length.")
    asked = fields.use_activation if fields.normalize is None else fields.normalize
    normalize = asked if asked is not None else info is None or info.normalizes or fields.dimensions is not None
    return PoolingParams(
        task="embed",
        normalize=normalize,
        dimensions=fields.dimensions,
        truncate=None if fields.truncate_prompt_tokens is None else "left" if side == "left" else "right",
        max_tokens=fields.truncate_prompt_tokens if (fields.truncate_prompt_tokens or -1) > 0 else None,
    )


def read_inputs(value: Texts, context: RequestContext) -> list[Input]:
    """Return the inputs, texts or token ids, one or several. Raises `InvalidRequest`: one is empty, or too many."""
    no_text, no_ids = "input cannot be an empty string", "input cannot be an empty array"
    return read_texts("input", value, context, no_text=no_text, no_ids=no_ids, most=MAX_INPUTS)


class Document(msgspec.Struct):
    """A document as an object."""

    text: str


class RerankBody(msgspec.Struct, kw_only=True):
    """The body of a rerank request."""

    query: str
    documents: list[str | Document]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None


class ScoreBody(msgspec.Struct, kw_only=True):
    """The body of a score request; the older names are those of vLLM."""

    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    model: str | None = None
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None


_rerank_decoder = msgspec.json.Decoder(RerankBody)
_score_decoder = msgspec.json.Decoder(ScoreBody)
RERANK_FIELDS = field_table("rerank", RerankBody)
SCORE_FIELDS = field_table("score", ScoreBody)


@dataclass(frozen=True, slots=True)
class Rerank:
    """A dialect of `/rerank`; `shows_documents` is the default of `return_documents`."""

    shows_documents: bool = True

    name = "rerank"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _rerank_decoder)
        context, adapter = model_named(fields.model, context)
        ignored = RERANK_FIELDS.check(body)
        _check_scores(context)
        documents = [item if isinstance(item, str) else item.text for item in fields.documents]
        _check_texts("documents", documents)
        _check_texts("query", [fields.query])
        check_range("top_n", fields.top_n, low=1)
        params = [_pair_params(text, fields.truncate_prompt_tokens) for text in documents]

        def render(answers: Sequence[Answer]) -> bytes:
            return self._render(fields, documents, answers, context)

        return parsed_pooling([fields.query] * len(documents), params, context, render, ignored, adapter=adapter)

    render_error = staticmethod(partial(render_error, prompt="query and document"))

    def _render(
        self, fields: RerankBody, documents: list[str], answers: Sequence[Answer], context: RequestContext
    ) -> bytes:
        scores = [_score(answer, fields.use_activation) for answer in answers]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: fields.top_n]
        shows = self.shows_documents if fields.return_documents is None else fields.return_documents
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": documents[index]}} if shows else {})
            for index in order
        ]
        return to_json(
            {
                "id": f"rerank-{context.request_id}",
                "model": context.model.name,
                "usage": _usage(answers),
                "results": results,
                "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
            }
        )


@dataclass(frozen=True, slots=True)
class Score:
    """The dialect of vLLM's `/score`: one query with each document, or as many queries as documents."""

    name = "score"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _score_decoder)
        context, adapter = model_named(fields.model, context)
        ignored = SCORE_FIELDS.check(body)
        _check_scores(context)
        queries = _texts("queries", fields.queries, fields.text_1)
        documents = _texts("documents", fields.documents, fields.text_2)
        if len(queries) == 1:
            queries *= len(documents)
        if len(queries) != len(documents):
            raise InvalidRequest(
                f"There are {len(queries)} queries and {len(documents)} documents; expected one query, or as many "
                "queries as documents.",
                param="queries",
            )
        params = [_pair_params(text, fields.truncate_prompt_tokens) for text in documents]

        def render(answers: Sequence[Answer]) -> bytes:
            data = [
                {"index": index, "object": "score", "score": _score(answer, fields.use_activation)}
                for index, answer in enumerate(answers)
            ]
            head = {"id": f"score-{context.request_id}", "object": "list", "created": context.created_s}
            return to_json({**head, "model": context.model.name, "data": data, "usage": _usage(answers)})

        return parsed_pooling(queries, params, context, render, ignored, adapter=adapter)

    render_error = staticmethod(partial(render_error, prompt="query and document"))


def _check_scores(context: RequestContext) -> None:
    info = context.model.pooling
    if info is None or len(info.labels) != 1:
        raise InvalidRequest(
            f"The model `{context.model.name}` is not a reranker: it does not compute one score for a query and a "
            "document. Serve a reranker (a cross-encoder, Qwen3-Reranker, BGE), or compare embeddings."
        )


def _texts(name: str, value: str | list[str] | None, older: str | list[str] | None) -> list[str]:
    found = older if value is None else value
    if found is None:
        raise InvalidRequest(f"`{name}` is missing.", param=name)
    texts = [found] if isinstance(found, str) else found
    _check_texts(name, texts)
    return texts


def _check_texts(name: str, texts: list[str]) -> None:
    if not texts:
        raise invalid(name, "empty array. Expected at least one text")
    if len(texts) > MAX_INPUTS:
        raise invalid(name, f"expected at most {MAX_INPUTS} texts, but got {len(texts)}")
    if "" in texts:
        raise invalid(name, "a text must not be empty")


def _pair_params(document: str, truncate_prompt_tokens: int | None) -> PoolingParams:
    """Return the parameters of one pair; a document that is too long is cut at its end, as in all three APIs."""
    check_range("truncate_prompt_tokens", truncate_prompt_tokens, low=-1)
    most = truncate_prompt_tokens if (truncate_prompt_tokens or -1) > 0 else None
    return PoolingParams(task="score", normalize=False, truncate="right", max_tokens=most, document=document)


def _score(answer: Answer, use_activation: bool | None) -> float:
    scores = vector_of(answer)
    return scores[0] if use_activation is False else activated(scores)[0]


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    tokens = usage_of(answers).prompt_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens}
