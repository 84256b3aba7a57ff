"""Bodies of TEI's routes. Source: text-embeddings-inference `router/src/http/types.rs`."""

from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.core.generation import PoolingParams
from headrace.core.model_kinds import PoolingTask
from headrace.wire.pooled import MAX_INPUTS, Input
from headrace.wire.tei.errors import EmptyInput

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

    def params(self, task: PoolingTask, *, normalizes: bool) -> PoolingParams:
        """Return the pooling that the body asks for; `/embed_all` never normalises."""
        wants = normalizes if self.normalize is None else self.normalize
        return PoolingParams(
            task=task,
            normalize=task == "embed" and wants,
            dimensions=self.dimensions if task == "embed" else None,
            truncate=self.side,
        )


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
    """Return a text unless it is empty."""
    if not text:
        raise EmptyInput(f"`{name}` cannot be empty", param=name)
    return text


def check_count(count: int) -> None:
    """Refuse more inputs than one request may have."""
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
