"""
`POST /api/chat` and `POST /api/generate`: the bodies and their conversion to generation requests.

Source: Ollama `docs/api.md`; `api/types.go` (ChatRequest, GenerateRequest).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, Grammar
from headrace.wire.constraints import read_schema
from headrace.wire.dialect import ErrorReply, ParsedRequest, RequestContext
from headrace.wire.fields import FieldTable, Refused, struct_fields
from headrace.wire.framing import decode_body, raw_fields, refusing_deep_nesting
from headrace.wire.ollama import options as ollama_options
from headrace.wire.ollama.errors import render_error
from headrace.wire.ollama.keep_alive import asks_to_unload
from headrace.wire.ollama.messages import Message, openai_messages
from headrace.wire.ollama.options import Options, sampling_params
from headrace.wire.ollama.reply import OllamaReply, ReplyOptions
from headrace.wire.openai import messages as openai
from headrace.wire.openai.answer_stream import AnswerPlan
from headrace.wire.openai.messages import template_messages
from headrace.wire.openai.parameters import check_range, model_named
from headrace.wire.openai.tools import NO_TOOLS, Tool, ToolPlan, plan_tools, template_tools

_DEFAULT_TAG = ":latest"


class CommonFields(msgspec.Struct, kw_only=True):
    """Fields of both bodies; null is the same as an absent field."""

    model: str
    stream: bool | None = None
    format: dict[str, object] | str | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class ChatBody(CommonFields, kw_only=True):
    """The body of a chat; without messages it asks to load the model."""

    messages: list[Message] | None = None
    tools: list[Tool] | None = None


class GenerateBody(CommonFields, kw_only=True):
    """The body of a request to answer a prompt; without one it asks to load the model."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


_COMMON_REFUSED: Mapping[str, Refused] = {
    "truncate": Refused("prompts that are too long are refused, not cut"),
    "shift": Refused("the context is not shifted when it is full"),
}
_GENERATE_REFUSED: Mapping[str, Refused] = {
    **_COMMON_REFUSED,
    "suffix": Refused("fill-in-the-middle is not supported"),
    "template": Refused("clients may not run templates on the server", "Start the server with --chat-template."),
    "context": Refused("conversations are not encoded as tokens", "Send the messages to /api/chat."),
    "images": Refused("this model reads text only"),
    "width": Refused("the model generates only text"),
    "height": Refused("the model generates only text"),
    "steps": Refused("the model generates only text"),
}
_NO_EFFECT = frozenset({"keep_alive"})
"""`keep_alive` is checked, and a request that only unloads the model is refused."""
CHAT_FIELDS = FieldTable(applied=struct_fields(ChatBody) - _NO_EFFECT, refused=_COMMON_REFUSED, no_effect=_NO_EFFECT)
GENERATE_FIELDS = FieldTable(
    applied=struct_fields(GenerateBody) - _NO_EFFECT, refused=_GENERATE_REFUSED, no_effect=_NO_EFFECT
)

_chat_decoder = msgspec.json.Decoder(ChatBody)
_generate_decoder = msgspec.json.Decoder(GenerateBody)


@dataclass(frozen=True, slots=True)
class OllamaChat:
    """The dialect of chats: `POST /api/chat`."""

    @property
    def name(self) -> str:
        """The dialect's name in the log."""
        return "ollama-chat"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a body.

        Raises:
            InvalidRequest: a field has a value that is not served.
            ModelNotFound: the request names another model.
        """
        fields = decode_body(body, _chat_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = _check(CHAT_FIELDS, body)
        if not fields.messages:
            return _load(fields, context, ignored, is_chat=True)
        tools = plan_tools(fields.tools, None, parallel=True)
        messages = openai_messages(fields.messages)
        prompt = _chat_prompt(messages, fields, context, tools=fields.tools)
        return _parsed(fields, context, prompt, ignored, tools=tools, adapter=adapter, is_chat=True)

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"error": "..."}`."""
        return render_error(error)


@dataclass(frozen=True, slots=True)
class OllamaGenerate:
    """The dialect of single prompts: `POST /api/generate`."""

    @property
    def name(self) -> str:
        """The dialect's name in the log."""
        return "ollama-generate"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a body.

        Raises:
            InvalidRequest: a field has a value that is not served.
            ModelNotFound: the request names another model.
        """
        fields = decode_body(body, _generate_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = _check(GENERATE_FIELDS, body)
        if not fields.prompt:
            return _load(fields, context, ignored, is_chat=False)
        prompt = _generate_prompt(fields, context)
        return _parsed(fields, context, prompt, ignored, tools=NO_TOOLS, adapter=adapter, is_chat=False)

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"error": "..."}`."""
        return render_error(error)


def named_model(name: str, context: RequestContext) -> tuple[RequestContext, str | None]:
    """
    Return the context with the model that answers, and the adapter if it is named; the tag `latest` is optional.

    Raises:
        ModelNotFound: the server accepts certain names only, and this is none of them.
    """
    return model_named(name.removesuffix(_DEFAULT_TAG), context)


def timestamp(seconds: float) -> str:
    """Return seconds since 1970 in the format of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _check(table: FieldTable, body: bytes) -> tuple[str, ...]:
    ignored = table.check(body)
    options = raw_fields(body).get("options")
    return ignored if options is None else (*ignored, *ollama_options.FIELDS.check(options, prefix="options."))


def _generate_prompt(fields: GenerateBody, context: RequestContext) -> str | ChatPrompt:
    """Return the prompt as one message, or unchanged with `raw` and where the model has no chat template."""
    is_text = bool(fields.raw) or not context.model.has_chat_template
    if is_text and (fields.system or fields.think):
        param = "system" if fields.system else "think"
        reason = "'raw' prompts are used unchanged" if fields.raw else "the model has no chat template"
        raise InvalidRequest(f"'{param}' cannot be applied: {reason}. Leave it out.", param=param)
    prompt = fields.prompt or ""
    if is_text:
        return prompt
    system = [openai.Message(role="system", content=fields.system)] if fields.system else []
    return _chat_prompt([*system, openai.Message(role="user", content=prompt)], fields, context)


def _chat_prompt(
    messages: list[openai.Message], fields: CommonFields, context: RequestContext, tools: list[Tool] | None = None
) -> ChatPrompt:
    continues = messages[-1].role == "assistant"
    if continues and fields.think:
        text = "'think' cannot be applied: the answer continues the last message, which is past its thinking."
        raise InvalidRequest(f"{text} Leave it out.", param="think")
    return ChatPrompt(
        messages=template_messages(messages, context.model.answer_format),
        tools=template_tools(tools) if tools else None,
        add_generation_prompt=not continues,
        continues_final_message=continues,
        template_values=_thinking_values(fields, context),
    )


def _thinking_values(fields: CommonFields, context: RequestContext) -> dict[str, object]:
    """Return the values of the chat template for `think`: off, on, or on with an effort such as `low`."""
    if fields.think is None:
        return {}
    if fields.think and context.model.answer_format is None:
        raise InvalidRequest(f"'{context.model.name}' does not support thinking. Leave 'think' out.", param="think")
    values: dict[str, object] = {"enable_thinking": bool(fields.think)}
    return {**values, "reasoning_effort": fields.think} if isinstance(fields.think, str) else values


def _parsed(
    fields: CommonFields,
    context: RequestContext,
    prompt: str | ChatPrompt,
    ignored: tuple[str, ...],
    *,
    tools: ToolPlan,
    adapter: str | None,
    is_chat: bool,
) -> ParsedRequest:
    asks_to_unload(fields.keep_alive)  # raises if it is not a duration
    separates = isinstance(prompt, ChatPrompt) and not prompt.continues_final_message
    known = context.model.answer_format if separates else None
    plan = AnswerPlan(tools=tools, format=known, includes_reasoning=fields.think is not False)
    reply = _reply(fields, context, plan, is_chat=is_chat)
    sampling = sampling_params(fields.options or Options(), context, _grammar(fields.format))
    request = GenerationRequest(
        request_id=context.request_id,
        prompt=prompt,
        sampling=replace(sampling, logprobs=reply.options.num_top_logprobs),
        adapter=adapter,
        separates_reasoning=known is not None,
    )
    return ParsedRequest(requests=(request,), stream=reply.options.is_stream, reply=reply, ignored=ignored)


def _num_top_logprobs(fields: CommonFields, context: RequestContext) -> int | None:
    """Return the number of alternatives per token; None: no logprobs."""
    check_range("top_logprobs", fields.top_logprobs, low=0, high=context.limits.max_top_n_tokens)
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true. Add it.", param="top_logprobs")
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _load(fields: CommonFields, context: RequestContext, ignored: tuple[str, ...], *, is_chat: bool) -> ParsedRequest:
    """Return the answer to a body without a prompt, which asks to load the model; it is already loaded."""
    if asks_to_unload(fields.keep_alive):
        text = "'keep_alive': the model cannot be unloaded, it is served until the server stops."
        raise InvalidRequest(text, param="keep_alive")
    reply = _reply(fields, context, AnswerPlan(tools=NO_TOOLS), is_chat=is_chat)
    return ParsedRequest(requests=(), stream=reply.options.is_stream, reply=reply, ignored=ignored)


def _reply(fields: CommonFields, context: RequestContext, plan: AnswerPlan, *, is_chat: bool) -> OllamaReply:
    options = ReplyOptions(
        id=context.request_id,
        model=context.model.name,
        created_at=timestamp(context.created_s),
        is_chat=is_chat,
        is_stream=fields.stream is not False,
        timings=context.timings,
        plan=plan,
        num_top_logprobs=_num_top_logprobs(fields, context),
    )
    return OllamaReply(options)


def _grammar(form: dict[str, object] | str | None) -> Grammar | None:
    if form is None or form == "":
        return None
    if form == "json":
        return Grammar("json_object", param="format")
    if isinstance(form, str):
        text = f"`format` is '{form[:80]}'; expected 'json' or a JSON schema as an object."
        raise InvalidRequest(text, param="format")
    return read_schema(form, param="format")
