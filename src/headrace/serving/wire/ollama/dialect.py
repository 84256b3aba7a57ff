"""
`POST /api/chat` and `POST /api/generate`: the bodies and their conversion to generation requests.

Source: Ollama `docs/api.md`; `api/types.go` (ChatRequest, GenerateRequest, Duration).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, Grammar
from headrace.serving.wire.constraints import read_schema
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import FieldTable, Refused, struct_fields
from headrace.serving.wire.framing import decode_body, raw_fields, refusing_deep_nesting
from headrace.serving.wire.ollama import options as ollama_options
from headrace.serving.wire.ollama.options import Options, sampling_params
from headrace.serving.wire.ollama.reply import OllamaReply, ReplyOptions, render_error
from headrace.serving.wire.openai import messages as openai
from headrace.serving.wire.openai.answer_stream import AnswerPlan
from headrace.serving.wire.openai.messages import template_messages
from headrace.serving.wire.openai.parameters import check_range, model_named
from headrace.serving.wire.openai.tools import NO_TOOLS, Tool, ToolPlan, plan_tools, template_tools

_DURATION = re.compile(r"[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h))+)", re.ASCII)
_NUMBER_ABOVE_ZERO = re.compile(r"[1-9]")


def asks_to_unload(keep_alive: float | str | None) -> bool:
    """Return whether the value is zero, which unloads the model. Raises `InvalidRequest`: it is not a duration."""
    if keep_alive is None or isinstance(keep_alive, float | int):
        return keep_alive == 0
    if keep_alive == "":
        return False
    if not _DURATION.fullmatch(keep_alive):
        text = (
            f"`keep_alive` is '{keep_alive[:80]}'; expected seconds as a number, or a duration such as '5m' or '-1s'."
        )
        raise InvalidRequest(text, param="keep_alive")
    return _NUMBER_ABOVE_ZERO.search(keep_alive) is None


_ROLES: dict[str, openai.Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class CalledFunction(msgspec.Struct):
    """The function of an earlier tool call."""

    name: str
    arguments: dict[str, object] | None = None


class ToolCall(msgspec.Struct):
    """An earlier tool call of the assistant."""

    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct):
    """A chat message of any role; null is the same as an absent field, and roles may be in any case."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


def openai_messages(messages: Sequence[Message]) -> list[openai.Message]:
    """
    Return the conversation in OpenAI's form; the answer continues a last message that is the assistant's.

    Raises:
        InvalidRequest: a message has images, or the last one is the assistant's and cannot be continued.
    """
    for number, message in enumerate(messages):
        if message.role.lower() not in _ROLES:
            param = f"messages[{number}].role"
            expected = ", ".join(_ROLES)
            raise InvalidRequest(f"`{param}` is {shortened(message.role)!r}; expected one of {expected}.", param=param)
        if message.images:
            param = f"messages[{number}].images"
            raise InvalidRequest(f"`{param}`: this model reads text only.", param=param)
    last = messages[-1]
    if last.role.lower() == "assistant" and (not last.content or last.tool_calls):
        text = "`messages`: the last message is the assistant's without text or with a call; expected text to continue."
        raise InvalidRequest(text, param="messages")
    return [_openai_message(message) for message in messages]


def _openai_message(message: Message) -> openai.Message:
    calls = [
        openai.ToolCall(
            function=openai.CalledFunction(name=call.function.name, arguments=call.function.arguments), id=call.id
        )
        for call in message.tool_calls or ()
    ]
    return openai.Message(
        role=_ROLES[message.role.lower()],
        content=message.content or "",
        name=message.tool_name,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
        reasoning=message.thinking,
    )


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

    name = "ollama-chat"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse a body."""
        fields = decode_body(body, _chat_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = _check(CHAT_FIELDS, body)
        if not fields.messages:
            return _load(fields, context, ignored, is_chat=True)
        tools = plan_tools(fields.tools, None, parallel=True)
        messages = openai_messages(fields.messages)
        prompt = _chat_prompt(messages, fields, context, tools=fields.tools)
        return _parsed(fields, context, prompt, ignored, tools=tools, adapter=adapter, is_chat=True)

    render_error = staticmethod(render_error)


@dataclass(frozen=True, slots=True)
class OllamaGenerate:
    """The dialect of single prompts: `POST /api/generate`."""

    name = "ollama-generate"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """Parse a body."""
        fields = decode_body(body, _generate_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = _check(GENERATE_FIELDS, body)
        if not fields.prompt:
            return _load(fields, context, ignored, is_chat=False)
        prompt = _generate_prompt(fields, context)
        return _parsed(fields, context, prompt, ignored, tools=NO_TOOLS, adapter=adapter, is_chat=False)

    render_error = staticmethod(render_error)


def named_model(name: str, context: RequestContext) -> tuple[RequestContext, str | None]:
    """Return what `model_named` returns; the tag `latest` is optional."""
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
    templated = template_messages(messages, context.model.answer_format)
    if fields.think and context.model.answer_format is None:
        raise InvalidRequest(f"'{context.model.name}' does not support thinking. Leave 'think' out.", param="think")
    # Off, on, or on with an effort such as `low`.
    values: dict[str, object] = {} if fields.think is None else {"enable_thinking": bool(fields.think)}
    if isinstance(fields.think, str):
        values["reasoning_effort"] = fields.think
    return ChatPrompt(
        messages=templated,
        tools=template_tools(tools) if tools else None,
        add_generation_prompt=not continues,
        continues_final_message=continues,
        template_values=values,
    )


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


def _load(fields: CommonFields, context: RequestContext, ignored: tuple[str, ...], *, is_chat: bool) -> ParsedRequest:
    """Return the answer to a body without a prompt, which asks to load the model; it is already loaded."""
    if asks_to_unload(fields.keep_alive):
        text = "'keep_alive': the model cannot be unloaded, it is served until the server stops."
        raise InvalidRequest(text, param="keep_alive")
    reply = _reply(fields, context, AnswerPlan(tools=NO_TOOLS), is_chat=is_chat)
    return ParsedRequest(requests=(), stream=reply.options.is_stream, reply=reply, ignored=ignored)


def _reply(fields: CommonFields, context: RequestContext, plan: AnswerPlan, *, is_chat: bool) -> OllamaReply:
    check_range("top_logprobs", fields.top_logprobs, low=0, high=context.limits.max_top_n_tokens)
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs': true. Add it.", param="top_logprobs")
    options = ReplyOptions(
        id=context.request_id,
        model=context.model.name,
        created_at=timestamp(context.created_s),
        is_chat=is_chat,
        is_stream=fields.stream is not False,
        timings=context.timings,
        plan=plan,
        num_top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
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
