"""`POST /v1/chat/completions`: the body, its conversion to a generation request, and its answer, whole and streamed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.generation import ChatPrompt, Chunk, Finish, GenerationRequest, SamplingParams, Token
from headrace.serving.wire.answers import Answer, FinishedChoice, usage_of
from headrace.serving.wire.constraints import refuse_two
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import field_table
from headrace.serving.wire.framing import decode_body, invalid, refusing_deep_nesting, to_json
from headrace.serving.wire.openai import envelope as openai
from headrace.serving.wire.openai import parameters
from headrace.serving.wire.openai.answer_stream import (
    AnswerPlan,
    AnswerStream,
    ArgumentsDelta,
    CallStart,
    ChatDelta,
    ReasoningDelta,
    TextDelta,
)
from headrace.serving.wire.openai.messages import Message, template_messages
from headrace.serving.wire.openai.tools import Tool, ToolChoice, ToolPlan, plan_tools, template_tools
from headrace.serving.wire.reasoning import Thinking, reasoning_budget


class Reasoning(msgspec.Struct):
    """The field `reasoning` as OpenRouter defines it."""

    effort: str | None = None
    max_tokens: int | None = None
    """The budget of the reasoning."""
    exclude: bool | None = None
    enabled: bool | None = None


class ChatBody(parameters.CommonFields, kw_only=True):
    """The body of a chat completion request."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | float | None = None
    reasoning: Reasoning | None = None
    thinking_token_budget: int | None = None
    """vLLM's budget of the reasoning; -1: none."""
    thinking_budget_tokens: int | None = None
    """llama-server's name for it, as the next one."""
    reasoning_budget_tokens: int | None = None
    thinking_budget: int | None = None
    """The name of Qwen's API, as the next one."""
    enable_thinking: bool | None = None
    thinking: Thinking | bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


_BUDGETS = ("thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_budget")
_decoder = msgspec.json.Decoder(ChatBody)
FIELDS = field_table("openai-chat", ChatBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIChat:
    """The dialect of OpenAI's chat completions."""

    framing: parameters.Framing = "sse"

    name = "openai-chat"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _decoder)
        context, adapter = parameters.model_named(fields.model, context)
        ignored = FIELDS.check(body)
        envelope = openai.Envelope.of(fields, context, "chatcmpl", self.framing)
        plan = plan_tools(fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls is not False)
        sampling = _sampling(fields, context, plan)
        reasoning = fields.reasoning or Reasoning()
        shows_reasoning = fields.include_reasoning is not False and not reasoning.exclude
        is_separated = fields.separate_reasoning is not False and not fields.continue_final_message
        known = context.model.answer_format if is_separated else None  # a continued message is past its reasoning
        options = ChatOptions(
            envelope=envelope,
            plan=AnswerPlan(tools=plan, format=known, includes_reasoning=shows_reasoning),
            num_top_logprobs=sampling.logprobs,
            with_special=not sampling.skip_special_tokens,
            **parameters.token_options(fields),
        )
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=chat_prompt(fields, plan, context.model.answer_format),
            sampling=sampling,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
            cache_salt=fields.cache_salt or "",
            adapter=adapter,
            max_reasoning_tokens=_reasoning_budget(fields, reasoning, context),
            separates_reasoning=known is not None,
        )
        return ParsedRequest(requests=(request,), stream=envelope.stream, reply=ChatReply(options), ignored=ignored)

    render_error = staticmethod(partial(openai.render_error, prompt="messages"))


def chat_prompt(fields: ChatBody, plan: ToolPlan, answer_format: AnswerFormat | None = None) -> ChatPrompt:
    """Return the messages and tools for the chat template."""
    continues = bool(fields.continue_final_message)
    if continues:
        _check_continuation(fields)
    shows_tools = bool(fields.tools) and plan.mode != "none"
    reasoning = fields.reasoning or Reasoning()
    effort = fields.reasoning_effort if fields.reasoning_effort is not None else reasoning.effort
    # Source of these variables: vLLM `build_chat_params`.
    values = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    thinking = fields.thinking.type != "disabled" if isinstance(fields.thinking, Thinking) else fields.thinking
    for enabled in (reasoning.enabled, thinking, fields.enable_thinking):
        values |= {} if enabled is None else {"enable_thinking": enabled}
    return ChatPrompt(
        messages=template_messages(fields.messages, answer_format),
        tools=template_tools(fields.tools or ()) if shows_tools else None,
        add_generation_prompt=fields.add_generation_prompt is not False and not continues,
        continues_final_message=continues,
        template_values={**values, **(fields.chat_template_kwargs or {})},
    )


def _reasoning_budget(fields: ChatBody, reasoning: Reasoning, context: RequestContext) -> int | None:
    asked = {name: getattr(fields, name) for name in _BUDGETS}
    asked["thinking.budget_tokens"] = getattr(fields.thinking, "budget_tokens", None)  # it may be a switch only
    for name, budget in asked.items():
        parameters.check_range(name, budget, low=-1)
    parameters.check_range("reasoning.max_tokens", reasoning.max_tokens, low=0)
    tokens = next((budget for budget in asked.values() if budget is not None), reasoning.max_tokens)
    effort = fields.reasoning_effort if fields.reasoning_effort is not None else reasoning.effort
    return reasoning_budget(context.model, tokens=tokens, effort=effort)


def _check_continuation(fields: ChatBody) -> None:
    if fields.add_generation_prompt:
        raise invalid("continue_final_message", "'add_generation_prompt' is true; expected one of the two")
    last = fields.messages[-1] if fields.messages else None
    if last is None or last.role != "assistant" or not last.content or last.tool_calls:
        raise invalid("continue_final_message", "expected a last message of the assistant, with text and without calls")


def _sampling(fields: ChatBody, context: RequestContext, plan: ToolPlan) -> SamplingParams:
    for name in ("max_tokens", "max_completion_tokens"):
        parameters.check_range(name, getattr(fields, name), low=1)
    parameters.check_range("top_logprobs", fields.top_logprobs, low=0, high=context.limits.max_top_n_tokens)
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "it is only allowed when 'logprobs' is true")
    max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    sampling = parameters.sampling_params(fields, context, max_new_tokens=max_tokens)
    if plan.grammar is not None and sampling.grammar is not None:
        raise refuse_two(sampling.grammar.param.split(".")[0], "tool_choice")
    return replace(
        sampling,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        grammar=plan.grammar or sampling.grammar,
    )


KIND = "chat.completion"
CHUNK_KIND = "chat.completion.chunk"
REASONING_FIELDS = ("reasoning", "reasoning_content")
"""The same text twice: vLLM's field, and the one of older vLLM, SGLang and DeepSeek, which clients still read."""
_NULL_FIELDS = ("refusal", "annotations", "audio", "function_call", *REASONING_FIELDS)
"""Members of a whole message that are null without a value, as in vLLM (`ChatMessage`); those of a delta are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(openai.EnvelopeOptions):
    """Options of a chat request for the format of the answer."""

    plan: AnswerPlan

    def call_id(self, choice: int, call: int) -> str:
        return f"call_{self.envelope.id.removeprefix('chatcmpl-')}_{choice}_{call}"

    def reason(self, finish: Finish, num_calls: int) -> str:
        """Return `finish_reason`; a call that was forced by name ends with `stop`, as OpenAI's does."""
        reason = openai.finish_reason(finish)
        return "tool_calls" if reason == "stop" and num_calls and self.plan.tools.mode != "named" else reason


@dataclass(frozen=True, slots=True)
class ChatReply(openai.EnvelopeReply):
    """Renders the answer to a chat completion."""

    options: ChatOptions

    def stream(self) -> "ChatStream":
        return ChatStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        streams = [AnswerStream(self.options.plan, choice.opening) for choice in answer.choices]
        choices = [self._choice(choice, stream) for choice, stream in zip(answer.choices, streams, strict=True)]
        counts = [stream.num_reasoning_tokens for stream in streams]
        counted = [count for count in counts if count is not None]
        usage = replace(usage_of(answers), reasoning_tokens=sum(counted) if counted else None)
        more: dict[str, object] = {}
        if self.options.returns_ids:
            more["prompt_token_ids"] = answer.choices[0].prompt_ids
        if self.options.shows_prompt:
            more["prompt_logprobs"] = openai.prompt_logprobs(answer.prompt or ())
        return self.options.envelope.body(KIND, choices, usage, more)

    def _choice(self, choice: FinishedChoice, answer: AnswerStream) -> dict[str, object]:
        deltas = [*answer.feed(choice.text, choice.tokens), *answer.finish()]
        message: dict[str, object] = {"role": "assistant", "content": None, **dict.fromkeys(_NULL_FIELDS)}
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        calls = [delta for delta in deltas if isinstance(delta, CallStart)]
        arguments = {call.index: "" for call in calls}
        for delta in deltas:
            if isinstance(delta, ArgumentsDelta):
                arguments[delta.index] += delta.text
        if text or not (calls or reasoning):
            message["content"] = text
        if reasoning:
            message |= dict.fromkeys(REASONING_FIELDS, reasoning)
        if calls:
            message["tool_calls"] = [
                {
                    "id": self.options.call_id(choice.index, call.index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": arguments[call.index]},
                }
                for call in calls
            ]
        logprobs = None
        if self.options.num_top_logprobs is not None:
            tokens = openai.visible(choice.tokens, with_special=self.options.with_special)
            logprobs = openai.chat_logprobs(tokens, self.options)
        ids = {"token_ids": openai.token_ids(choice.tokens)} if self.options.returns_ids else {}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": logprobs,
            **ids,
            **openai.finish_fields(choice.finish, self.options.reason(choice.finish, answer.num_calls)),
        }


@dataclass(slots=True)
class _StreamedChoice:
    """The state of one choice of a stream."""

    answer: AnswerStream
    tokens: list[Token] = field(default_factory=list)
    """Tokens whose logprobs have not been sent yet."""
    ids: list[int] = field(default_factory=list)
    """Token ids that have not been sent yet."""


class ChatStream(openai.EnvelopeStream):
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
            opening = self._choice_object(chunk.index, b'{"role":"assistant","content":""}', b"null")
            events.append(self._framed(opening, chunk.prompt_ids))
        if self._options.returns_ids:
            choice.ids.extend(token.id for token in chunk.tokens)
        if self._options.num_top_logprobs is not None:
            choice.tokens.extend(openai.visible(chunk.tokens, with_special=self._options.with_special))
        deltas = choice.answer.feed(chunk.text, chunk.tokens)
        if chunk.finish is not None:
            deltas += choice.answer.finish()
        events.extend(self._event(chunk.index, self._delta(chunk.index, delta), choice) for delta in deltas)
        if chunk.finish is not None:
            self._meter.add(request, chunk.finish, choice.answer.num_reasoning_tokens)
            end = openai.streamed_finish(chunk.finish, self._options.reason(chunk.finish, choice.answer.num_calls))
            events.append(self._event(chunk.index, b"{}", choice, end))
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
        logprobs = to_json(openai.chat_logprobs(choice.tokens, self._options))
        choice.tokens.clear()
        return logprobs

    def _event(self, index: int, delta: bytes, choice: _StreamedChoice, end: bytes = openai.UNFINISHED) -> bytes:
        """Return an object with a delta, and with the logprobs and the ids that wait for one."""
        if self._options.returns_ids:
            ids, choice.ids = choice.ids, []
            end = b'"token_ids":%b,%b' % (to_json(ids), end)
        return self._framed(self._choice_object(index, delta, self._take_logprobs(choice), end))

    @staticmethod
    def _choice_object(index: int, delta: bytes, logprobs: bytes, end: bytes = openai.UNFINISHED) -> bytes:
        return b'{"index":%d,"delta":%b,"logprobs":%b,%b}' % (index, delta, logprobs, end)
