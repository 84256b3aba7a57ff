"""`POST /v1/chat/completions`: the body and its conversion to a generation request."""

from dataclasses import dataclass, replace

import msgspec

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.wire.constraints import refuse_two
from headrace.wire.dialect import ErrorReply, ParsedRequest, RequestContext
from headrace.wire.fields import FieldTable, struct_fields
from headrace.wire.framing import decode_body, refusing_deep_nesting
from headrace.wire.openai.answer_stream import AnswerPlan
from headrace.wire.openai.chat_reply import ChatOptions, ChatReply
from headrace.wire.openai.envelope import Envelope
from headrace.wire.openai.errors import render_error
from headrace.wire.openai.fields import CHAT_REFUSED, NO_EFFECT
from headrace.wire.openai.messages import Message, template_messages
from headrace.wire.openai.parameters import (
    CommonFields,
    Framing,
    check_range,
    include_usage,
    is_stream,
    sampling_params,
    served_model,
)
from headrace.wire.openai.tools import Tool, ToolChoice, ToolPlan, plan_tools, template_tools


class ChatBody(CommonFields, kw_only=True):
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
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


_decoder = msgspec.json.Decoder(ChatBody)
FIELDS = FieldTable(applied=struct_fields(ChatBody), refused=CHAT_REFUSED, no_effect=NO_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIChat:
    """The dialect of OpenAI's chat completions."""

    framing: Framing = "sse"

    @property
    def name(self) -> str:
        """The dialect's name in the settings and the log."""
        return "openai-chat"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a chat body.

        Raises:
            InvalidRequest: with OpenAI's error text.
            ModelNotFound: the request names another model.
        """
        fields = decode_body(body, _decoder)
        context, adapter = served_model(fields, context)
        ignored = FIELDS.check(body)
        stream = is_stream(fields)
        plan = plan_tools(fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls is not False)
        sampling = _sampling(fields, context, plan)
        envelope = Envelope(
            id=f"chatcmpl-{context.request_id}",
            created_s=context.created_s,
            model=context.model,
            framing=self.framing,
            stream=stream,
            include_usage=include_usage(fields),
        )
        is_separated = fields.separate_reasoning is not False and not fields.continue_final_message
        known = context.model.answer_format if is_separated else None  # a continued message is past its reasoning
        options = ChatOptions(
            envelope=envelope,
            plan=AnswerPlan(tools=plan, format=known, includes_reasoning=fields.include_reasoning is not False),
            num_top_logprobs=sampling.logprobs,
            with_special=not sampling.skip_special_tokens,
        )
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=chat_prompt(fields, plan, context.model.answer_format),
            sampling=sampling,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
            cache_salt=fields.cache_salt or "",
            adapter=adapter,
            separates_reasoning=known is not None,
        )
        return ParsedRequest(
            requests=(request,),
            stream=stream,
            reply=ChatReply(options),
            ignored=ignored,
        )

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"error": {...}}`."""
        return render_error(error, prompt="messages")


def chat_prompt(fields: ChatBody, plan: ToolPlan, answer_format: AnswerFormat | None = None) -> ChatPrompt:
    """Return the messages and tools for the chat template."""
    continues = bool(fields.continue_final_message)
    if continues:
        _check_continuation(fields)
    shows_tools = bool(fields.tools) and plan.mode != "none"
    return ChatPrompt(
        messages=template_messages(fields.messages, answer_format),
        tools=template_tools(fields.tools or ()) if shows_tools else None,
        add_generation_prompt=fields.add_generation_prompt is not False and not continues,
        continues_final_message=continues,
        template_values={**_reasoning(fields.reasoning_effort), **(fields.chat_template_kwargs or {})},
    )


def _check_continuation(fields: ChatBody) -> None:
    """Check that the last message is one that an answer can continue."""
    if fields.add_generation_prompt:
        text = "Invalid 'continue_final_message': 'add_generation_prompt' is true; expected one of the two."
        raise InvalidRequest(text, param="continue_final_message")
    last = fields.messages[-1] if fields.messages else None
    if last is None or last.role != "assistant" or not last.content or last.tool_calls:
        text = (
            "Invalid 'continue_final_message': expected a last message of the assistant, with text and without calls."
        )
        raise InvalidRequest(text, param="continue_final_message")


def _reasoning(effort: str | float | None) -> dict[str, object]:
    """Return the template variables for the reasoning effort. Source: vLLM `build_chat_params`."""
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _sampling(fields: ChatBody, context: RequestContext, plan: ToolPlan) -> SamplingParams:
    for name in ("max_tokens", "max_completion_tokens"):
        check_range(name, getattr(fields, name), low=1)
    check_range("top_logprobs", fields.top_logprobs, low=0, high=context.limits.max_top_n_tokens)
    if fields.top_logprobs and not fields.logprobs:
        text = "Invalid 'top_logprobs': it is only allowed when 'logprobs' is true."
        raise InvalidRequest(text, param="top_logprobs")
    max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    sampling = sampling_params(fields, context, max_new_tokens=max_tokens)
    if plan.grammar is not None and sampling.grammar is not None:
        raise refuse_two(sampling.grammar.param.split(".")[0], "tool_choice")
    return replace(
        sampling,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        grammar=plan.grammar or sampling.grammar,
    )
