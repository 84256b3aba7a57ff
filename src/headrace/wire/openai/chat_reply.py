"""Answers to `/v1/chat/completions`, whole and streamed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.core.generation import Chunk, Finish, Token
from headrace.wire.answers import Answer, FinishedChoice, usage_of
from headrace.wire.framing import to_json
from headrace.wire.openai.answer_stream import AnswerPlan, AnswerStream, ChatDelta, ReasoningDelta
from headrace.wire.openai.envelope import (
    UNFINISHED,
    EnvelopeOptions,
    EnvelopeReply,
    EnvelopeStream,
    finish_fields,
    finish_reason,
    streamed_finish,
)
from headrace.wire.openai.logprobs import chat_logprobs, visible
from headrace.wire.openai.tool_stream import ArgumentsDelta, CallStart, TextDelta

KIND = "chat.completion"
CHUNK_KIND = "chat.completion.chunk"
REASONING_FIELDS = ("reasoning", "reasoning_content")
"""The same text twice: vLLM's field, and the one of older vLLM, SGLang and DeepSeek, which clients still read."""
_NULL_FIELDS = ("refusal", "annotations", "audio", "function_call", *REASONING_FIELDS)
"""Members of a whole message that are null without a value, as in vLLM (`ChatMessage`); those of a delta are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(EnvelopeOptions):
    """Options of a chat request for the format of the answer."""

    plan: AnswerPlan

    def call_id(self, choice: int, call: int) -> str:
        """Return the id of a tool call."""
        return f"call_{self.envelope.id.removeprefix('chatcmpl-')}_{choice}_{call}"

    def reason(self, finish: Finish, num_calls: int) -> str:
        """Return `finish_reason`; a call that was forced by name ends with `stop`, as OpenAI's does."""
        reason = finish_reason(finish)
        return "tool_calls" if reason == "stop" and num_calls and self.plan.tools.mode != "named" else reason


@dataclass(frozen=True, slots=True)
class ChatReply(EnvelopeReply):
    """Renders the answer to a chat completion."""

    options: ChatOptions

    def stream(self) -> "ChatStream":
        """Return a renderer of one object per chunk."""
        return ChatStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the whole body."""
        (answer,) = answers
        streams = [AnswerStream(self.options.plan, choice.opening) for choice in answer.choices]
        choices = [self._choice(*pair) for pair in zip(answer.choices, streams, strict=True)]
        counts = [stream.num_reasoning_tokens for stream in streams]
        counted = [count for count in counts if count is not None]
        usage = replace(usage_of(answers), reasoning_tokens=sum(counted) if counted else None)
        return self.options.envelope.body(KIND, choices, usage)

    def _choice(self, choice: FinishedChoice, answer: AnswerStream) -> dict[str, object]:
        deltas = [*answer.feed(choice.text, choice.tokens), *answer.finish()]
        message: dict[str, object] = {"role": "assistant", "content": None, **dict.fromkeys(_NULL_FIELDS)}
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        calls = [delta for delta in deltas if isinstance(delta, CallStart)]
        if text or not (calls or reasoning):
            message["content"] = text
        if reasoning:
            message |= dict.fromkeys(REASONING_FIELDS, reasoning)
        if calls:
            message["tool_calls"] = [self._call(choice.index, call, deltas) for call in calls]
        logprobs = None
        if self.options.num_top_logprobs is not None:
            tokens = visible(choice.tokens, with_special=self.options.with_special)
            logprobs = chat_logprobs(tokens, num_top=self.options.num_top_logprobs)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": logprobs,
            **finish_fields(choice.finish, self.options.reason(choice.finish, answer.num_calls)),
        }

    def _call(self, choice: int, call: CallStart, deltas: Sequence[ChatDelta]) -> dict[str, object]:
        pieces = [delta.text for delta in deltas if isinstance(delta, ArgumentsDelta) and delta.index == call.index]
        return {
            "id": self.options.call_id(choice, call.index),
            "type": "function",
            "function": {"name": call.name, "arguments": "".join(pieces)},
        }


@dataclass(slots=True)
class _StreamedChoice:
    """The state of one choice of a stream."""

    answer: AnswerStream
    tokens: list[Token] = field(default_factory=list)
    """Tokens whose logprobs have not been sent yet."""


class ChatStream(EnvelopeStream):
    """Renders the role, then an object per delta, then the finish reason."""

    def __init__(self, options: ChatOptions) -> None:
        super().__init__(options.envelope, CHUNK_KIND)
        self._options = options
        self._choices: dict[int, _StreamedChoice] = {}

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        events: list[bytes] = []
        choice = self._choices.get(chunk.index)
        if choice is None:
            choice = self._choices[chunk.index] = _StreamedChoice(AnswerStream(self._options.plan, chunk.opening))
            events.append(self._event(chunk.index, b'{"role":"assistant","content":""}', b"null"))
        if self._options.num_top_logprobs is not None:
            choice.tokens.extend(visible(chunk.tokens, with_special=self._options.with_special))
        deltas = choice.answer.feed(chunk.text, chunk.tokens)
        if chunk.finish is not None:
            deltas += choice.answer.finish()
        events.extend(
            self._event(chunk.index, self._delta(chunk.index, delta), self._take_logprobs(choice)) for delta in deltas
        )
        if chunk.finish is not None:
            self._meter.add(request, chunk.finish, choice.answer.num_reasoning_tokens)
            end = streamed_finish(chunk.finish, self._options.reason(chunk.finish, choice.answer.num_calls))
            events.append(self._event(chunk.index, b"{}", self._take_logprobs(choice), end))
        return events

    def _delta(self, choice: int, delta: ChatDelta) -> bytes:
        if isinstance(delta, TextDelta):
            return b'{"content":%b}' % to_json(delta.text)
        if isinstance(delta, ReasoningDelta):
            return to_json(dict.fromkeys(REASONING_FIELDS, delta.text))
        if isinstance(delta, CallStart):
            return b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]}' % (
                delta.index,
                to_json(self._options.call_id(choice, delta.index)),
                to_json(delta.name),
            )
        return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (delta.index, to_json(delta.text))

    def _take_logprobs(self, choice: _StreamedChoice) -> bytes:
        if self._options.num_top_logprobs is None or not choice.tokens:
            return b"null"
        logprobs = to_json(chat_logprobs(choice.tokens, num_top=self._options.num_top_logprobs))
        choice.tokens.clear()
        return logprobs

    def _event(self, index: int, delta: bytes, logprobs: bytes, end: bytes = UNFINISHED) -> bytes:
        choice = b'{"index":%d,"delta":%b,"logprobs":%b,%b}' % (index, delta, logprobs, end)
        return self._framed(choice)
