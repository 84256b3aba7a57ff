"""
Responses of OpenAI's API, for its description: the renderers write bytes or dicts, and tests compare them with these.

Sources: OpenAI API reference; vLLM `vllm/entrypoints/openai/protocol.py` for `stop_reason` and `reasoning`.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

JsonValue = object
"""Any value; a struct with a field `object` cannot name the type by itself."""
FinishReason = Literal["stop", "length", "tool_calls"]


class ServedModel(Struct):
    """A model or an adapter."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str | UnsetType = UNSET
    parent: str | UnsetType | None = UNSET
    max_model_len: int | UnsetType = UNSET
    has_chat_template: bool | UnsetType = UNSET
    tool_support: Literal["native", "generic"] | UnsetType | None = UNSET


class ServedModels(Struct):
    """A list of models and adapters."""

    object: Literal["list"]
    data: list[ServedModel]


class CachedTokens(Struct):
    """The tokens of the prompt that the prefix cache had."""

    cached_tokens: int


class ReasoningTokens(Struct):
    """The tokens of the reasoning."""

    reasoning_tokens: int


class Usage(Struct):
    """Numbers of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET


class TopLogprob(Struct):
    """A token that was likely at its place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer, with the most likely ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """The logprobs of a message."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Struct):
    """The name and the arguments of a call; a part of them in a stream."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCall(Struct):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolCallDelta(Struct):
    """A part of a call; the first one has its id and its name."""

    index: int
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatMessage(Struct):
    """The answer to a chat."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: None
    audio: None
    function_call: None
    reasoning: str | None
    reasoning_content: str | None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDelta(Struct):
    """A part of the answer to a chat."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice(Struct):
    """The answer to a chat, of which a request may ask for `n`."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | UnsetType = UNSET


class ChatChunkChoice(Struct):
    """A part of the answer to a chat."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | UnsetType = UNSET


class ChatCompletion(Struct):
    """The response of a chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatCompletionChunk(Struct):
    """An event of a streamed chat completion; the stream ends with `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class TextLogprobs(Struct):
    """The logprobs of a completion, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Struct):
    """A text or a part of it; a request may ask for `n` texts."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | UnsetType = UNSET


class TextCompletion(Struct):
    """The response of a completion, or an event of its stream, which ends with `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


class Embedding(Struct):
    """The vector of an input; a string in base64 if `encoding_format` asks for it."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class PromptUsage(Struct):
    """The tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct):
    """The vectors of all inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage
