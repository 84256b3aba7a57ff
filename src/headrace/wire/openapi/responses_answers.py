"""
Responses of OpenAI's Responses API, for its description.

Source: OpenAI API reference, "Responses" and "Streaming events".
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from headrace.wire.openapi.openai_answers import CachedTokens, JsonValue, ReasoningTokens, TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, tag_field="type", tag="output_text"):
    """A text of a message."""

    text: str
    annotations: list[JsonValue]
    logprobs: list[TokenLogprob]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """A text of the reasoning."""

    text: str


class MessageItem(Struct, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    """The reasoning of the model."""

    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[JsonValue]


class FunctionCallItem(Struct, tag_field="type", tag="function_call"):
    """A call of a tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputTokenDetails(CachedTokens):
    """The tokens of the input that the prefix cache had."""

    cache_write_tokens: int


class ResponseUsage(Struct):
    """Numbers of tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseError(Struct):
    """The reason of a response that failed."""

    code: str
    message: str


class IncompleteDetails(Struct):
    """The reason of a response that was cut."""

    reason: str


class ModelResponse(Struct):
    """A response with the fields of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[OutputItem]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    background: bool
    instructions: JsonValue
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, JsonValue]
    safety_identifier: str | None
    store: bool
    temperature: float | None
    text: dict[str, JsonValue]
    tool_choice: JsonValue
    tools: list[JsonValue]
    top_logprobs: int
    top_p: float | None
    truncation: str
    user: str | None


class InputTokens(Struct):
    """The number of tokens of the input of a response."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseEvent(Struct):
    """An event about the whole response."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ModelResponse


class OutputItemEvent(Struct):
    """The begin or the end of an item."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    output_index: int
    item: OutputItem


class ContentPartEvent(Struct):
    """The begin or the end of a text."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class TextEvent(Struct):
    """A part of a text (`delta`), or all of it (`text`)."""

    type: Literal[
        "response.output_text.delta",
        "response.output_text.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
    ]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ArgumentsEvent(Struct):
    """A part of the arguments of a call (`delta`), or all of them (`arguments`)."""

    type: Literal["response.function_call_arguments.delta", "response.function_call_arguments.done"]
    sequence_number: int
    item_id: str
    output_index: int
    name: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ErrorEvent(Struct):
    """The end of a stream that failed before its response began."""

    type: Literal["error"]
    sequence_number: int
    code: str | None
    message: str
    param: str | None
    error: dict[str, JsonValue]


RESPONSE_EVENTS = (ResponseEvent, OutputItemEvent, ContentPartEvent, TextEvent, ArgumentsEvent, ErrorEvent)


class DeletedResponse(Struct):
    """A stored response that was deleted."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(Struct):
    """A page of the input of a stored response."""

    object: Literal["list"]
    data: list[dict[str, JsonValue]]
    first_id: str | None
    last_id: str | None
    has_more: bool
