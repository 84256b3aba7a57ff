"""`POST /api/embed`, and `POST /api/embeddings`, which it replaces. Source: Ollama `docs/api.md`."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.core.generation import PoolingParams
from headrace.serving.wire.answers import Answer, usage_of
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import field_table
from headrace.serving.wire.framing import decode_body, to_json
from headrace.serving.wire.ollama.dialect import named_model
from headrace.serving.wire.ollama.reply import nanoseconds, render_error
from headrace.serving.wire.openai.parameters import check_range
from headrace.serving.wire.openai.pooling import read_inputs
from headrace.serving.wire.pooled import parsed_pooling, vector_of, with_prompt


class EmbedBody(msgspec.Struct, kw_only=True):
    """The body of `/api/embed`: one or more inputs."""

    model: str
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of `/api/embeddings`: a single prompt."""

    model: str
    prompt: str | None = None


EMBED_FIELDS = field_table("ollama-embed", EmbedBody)
EMBEDDINGS_FIELDS = field_table("ollama-embed", EmbeddingsBody)

_embed_decoder = msgspec.json.Decoder(EmbedBody)
_embeddings_decoder = msgspec.json.Decoder(EmbeddingsBody)


@dataclass(frozen=True, slots=True)
class OllamaEmbed:
    """The dialect of `/api/embed`: vectors of length 1."""

    name = "ollama-embed"

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _embed_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = EMBED_FIELDS.check(body)
        info = context.model.pooling
        check_range("dimensions", fields.dimensions, low=1, high=None if info is None else info.size)
        inputs = with_prompt(read_inputs(fields.input or "", context), None, info)
        params = PoolingParams(dimensions=fields.dimensions, truncate=None if fields.truncate is False else "right")

        def render(answers: Sequence[Answer]) -> bytes:
            return to_json(
                {
                    "model": context.model.name,
                    "embeddings": [vector_of(answer) for answer in answers],
                    "total_duration": nanoseconds(context.timings().total_s),
                    "load_duration": 0,
                    "prompt_eval_count": usage_of(answers).prompt_tokens,
                }
            )

        return parsed_pooling(inputs, params, context, render, ignored, adapter=adapter)

    render_error = staticmethod(render_error)


@dataclass(frozen=True, slots=True)
class OllamaEmbeddings:
    """The dialect of `/api/embeddings`: one vector, with the length that the model gives it."""

    name = "ollama-embeddings"

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _embeddings_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = EMBEDDINGS_FIELDS.check(body)
        info = context.model.pooling
        inputs = with_prompt(read_inputs(fields.prompt or "", context), None, info)
        params = PoolingParams(normalize=info is None or info.normalizes, truncate="right")

        def render(answers: Sequence[Answer]) -> bytes:
            return to_json({"embedding": vector_of(answers[0])})

        return parsed_pooling(inputs, params, context, render, ignored, adapter=adapter)

    render_error = staticmethod(render_error)
