"""`POST /v1/embeddings`. Source: OpenAI API reference, create embeddings; vLLM's extra fields."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.core.generation import PoolingParams
from headrace.wire.answers import Answer, usage_of
from headrace.wire.dialect import ParsedRequest, RequestContext
from headrace.wire.fields import FieldTable, Refused, struct_fields
from headrace.wire.framing import decode_body, refusing_deep_nesting, to_json
from headrace.wire.openai.envelope import render_error
from headrace.wire.openai.parameters import Texts, check_range, model_named, read_texts
from headrace.wire.pooled import MAX_INPUTS, Input, parsed_pooling, pooled_of, vector_of, with_prompt

Encoding = Literal["float", "base64"]


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
FIELDS = FieldTable(
    applied=struct_fields(EmbeddingsBody),
    refused={
        "messages": Refused("embeddings of chats are not served", "Send the text as 'input'."),
        "embed_dtype": Refused("embeddings are 32-bit floats", neutral="float32"),
        "endianness": Refused("embeddings are little-endian", neutral="little"),
        "add_special_tokens": Refused("special tokens are always added", neutral=True),
        "input_type": Refused("this model names its prompts", "Use 'prompt_name'."),
    },
    no_effect=frozenset({"priority", "request_id"}),
)


@dataclass(frozen=True, slots=True)
class OpenAIEmbeddings:
    """The dialect of OpenAI's embeddings."""

    name = "openai-embeddings"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse an embeddings body."""
        fields = decode_body(body, _decoder)
        context, adapter = model_named(fields.model, context)
        ignored = FIELDS.check(body)
        inputs = with_prompt(read_inputs(fields.input, context), fields.prompt_name, context.model.pooling)
        render = partial(_render, model=context.model.name, encoding=_encoding(fields))
        return parsed_pooling(inputs, _params(fields, context), context, render, ignored, adapter=adapter)

    render_error = staticmethod(partial(render_error, prompt="input"))


def _encoding(fields: EmbeddingsBody) -> Encoding:
    if fields.encoding_format in (None, "float"):
        return "float"
    if fields.encoding_format == "base64":
        return "base64"
    found = shortened(str(fields.encoding_format))
    raise InvalidRequest(
        f"Invalid 'encoding_format': expected one of 'float' or 'base64', but got '{found}' instead.",
        param="encoding_format",
    )


def _params(fields: EmbeddingsBody, context: RequestContext) -> PoolingParams:
    info = context.model.pooling
    check_range("dimensions", fields.dimensions, low=1, high=None if info is None else info.size)
    check_range("truncate_prompt_tokens", fields.truncate_prompt_tokens, low=-1)
    side = fields.truncation_side or "right"
    if side not in ("left", "right"):
        raise InvalidRequest("Invalid 'truncation_side': expected 'left' or 'right'.", param="truncation_side")
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


def _render(answers: Sequence[Answer], *, model: str, encoding: Encoding) -> bytes:
    tokens = usage_of(answers).prompt_tokens
    data = [
        {"object": "embedding", "index": index, "embedding": _embedding(answer, encoding)}
        for index, answer in enumerate(answers)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return to_json({"object": "list", "data": data, "model": model, "usage": usage})


def _embedding(answer: Answer, encoding: Encoding) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(pooled_of(answer).data).decode()
    return vector_of(answer)
