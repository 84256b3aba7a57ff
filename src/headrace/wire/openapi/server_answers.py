"""
Responses of TGI, TEI, vLLM's tokenizer routes, rerankers and adapters, for their description.

Sources: `docs/openapi.json` of text-generation-inference and of text-embeddings-inference; Cohere, "Rerank v2".
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from headrace.wire.openapi.openai_answers import PromptUsage


class Health(Struct):
    """The state of a server."""

    status: str
    model: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class TgiToken(Struct):
    """A token with its logprob."""

    id: int
    text: str
    logprob: float
    special: bool


class PrefillToken(Struct):
    """A token of the prompt; the first one has no logprob."""

    id: int
    text: str
    logprob: float | None


class TgiDetails(Struct):
    """The end of an answer and, if the request asks for details, its tokens."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int | UnsetType = UNSET
    prefill: list[PrefillToken] | UnsetType = UNSET
    tokens: list[TgiToken] | UnsetType = UNSET
    top_tokens: list[list[TgiToken]] | UnsetType = UNSET
    best_of_sequences: list[dict[str, object]] | UnsetType = UNSET


class GeneratedText(Struct):
    """A generated text, with details on request."""

    generated_text: str
    details: TgiDetails | UnsetType = UNSET


class TgiEvent(Struct):
    """An event of a stream: a token; the last one has the whole text."""

    token: TgiToken
    generated_text: str | None
    details: TgiDetails | None
    index: int | UnsetType = UNSET
    top_tokens: list[TgiToken] | UnsetType = UNSET


class TextSpan(Struct):
    """A token and its place in the text."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokens(Struct):
    """The tokens of messages, and the text of the chat template."""

    tokenize_response: list[TextSpan]
    templated_text: str


class Tokens(Struct):
    """The tokens of a prompt (vLLM)."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Prompt(Struct):
    """The text of tokens (vLLM)."""

    prompt: str


class TokenizerFacts(Struct):
    """The special tokens, the chat template, and whatever else the tokenizer's configuration has."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | UnsetType | None = UNSET


class LabelScore(Struct):
    """The score of a label."""

    score: float
    label: str


class RankedText(Struct):
    """A text by its place in the request (TEI)."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class RerankedText(Struct):
    """The text of a document."""

    text: str


class RerankedDocument(Struct):
    """A document by its place in the request."""

    index: int
    relevance_score: float
    document: RerankedText | UnsetType = UNSET


class Reranked(Struct):
    """The documents, the most relevant first."""

    id: str
    model: str
    usage: PromptUsage
    results: list[RerankedDocument]
    meta: dict[str, object]


class PairScore(Struct):
    """The score of a pair."""

    index: int
    object: Literal["score"]
    score: float


class PairScores(Struct):
    """The scores of all pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: PromptUsage


class ListedAdapter(Struct):
    """An adapter and its folder, in LMI's form."""

    name: str
    src: str
    pin: bool


class Adapters(Struct):
    """The list of adapters in LMI's form."""

    adapters: list[ListedAdapter]


class Change(Struct):
    """A sentence that confirms a change of adapters."""

    status: str


class PlatformHealth(Struct):
    """The state of a platform."""

    service: Literal["headrace"]
    status: str
    version: str
    region: str
    asks_for_keys: bool
    object_storage: str
    gpus: str
    uptime_s: int


class TargetGroup(Struct):
    """A worker, as Prometheus' service discovery reads it."""

    targets: list[str]
    labels: dict[str, str]
