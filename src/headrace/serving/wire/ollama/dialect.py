"""
`POST /api/chat` and `POST /api/generate`: the bodies, their `options`, and their conversion to generation requests.

Options that a request leaves out have the model's recommended values, like the parameters of a Modelfile in Ollama.
Source: Ollama `docs/api.md`; `docs/modelfile.md`; `api/types.go` (ChatRequest, GenerateRequest, Duration, Options).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, Grammar, InfillPrompt, SamplingParams
from headrace.core.sampling_defaults import RecommendedSampling
from headrace.serving.wire.constraints import read_schema
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import LARGEST_SEED, check_nested, clamp_count, effective_temperature, field_table
from headrace.serving.wire.framing import decode_body, refusing_deep_nesting
from headrace.serving.wire.ollama.keep_alive import asks_to_unload
from headrace.serving.wire.ollama.reply import OllamaReply, ReplyOptions, render_error
from headrace.serving.wire.openai import messages as openai
from headrace.serving.wire.openai.answer_stream import AnswerPlan
from headrace.serving.wire.openai.messages import template_messages
from headrace.serving.wire.openai.parameters import check_range, model_named, read_stop
from headrace.serving.wire.openai.tools import NO_TOOLS, Tool, ToolPlan, plan_tools, template_tools
from headrace.serving.wire.reasoning import reasoning_budget

_DEFAULT_REPEAT_LAST_N = 64
"""Source: Ollama `docs/modelfile.md`; some clients send all defaults."""


class Options(msgspec.Struct, kw_only=True):
    """The options that are applied; null is the same as an absent one."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


OPTION_FIELDS = field_table("ollama-options", Options)


def sampling_params(options: Options, context: RequestContext, grammar: Grammar | None) -> SamplingParams:
    """Check the options and convert them. Raises `InvalidRequest`: a value is out of range."""
    _check_ranges(options)
    default = context.model.recommended
    temperature = default.temperature if options.temperature is None else options.temperature
    top_p = default.top_p if options.top_p is None else options.top_p
    is_unlimited = options.num_predict is None or options.num_predict <= 0
    is_random = options.seed is None or options.seed < 0
    return SamplingParams(
        max_new_tokens=None if is_unlimited else options.num_predict,
        is_cut_at_context=True,
        temperature=effective_temperature(temperature) if top_p > 0.0 else 0.0,
        top_k=clamp_count(max(0, default.top_k if options.top_k is None else options.top_k)),
        top_p=top_p if top_p > 0.0 else 1.0,
        min_p=default.min_p if options.min_p is None else options.min_p,
        typical_p=1.0 if options.typical_p is None else options.typical_p,
        repetition_penalty=_repetition_penalty(options, default),
        presence_penalty=options.presence_penalty or 0.0,
        frequency_penalty=options.frequency_penalty or 0.0,
        seed=None if is_random or options.seed is None else options.seed & LARGEST_SEED,
        stop=read_stop(options.stop, context, param="options.stop"),
        grammar=grammar,
    )


def _repetition_penalty(options: Options, default: RecommendedSampling) -> float:
    """Return the penalty, which covers the whole context; Ollama's default window of 64 tokens counts as unset."""
    penalty = default.repetition_penalty if options.repeat_penalty is None else options.repeat_penalty
    if options.repeat_last_n == 0:
        return 1.0
    if penalty != 1.0 and options.repeat_last_n not in {None, -1, _DEFAULT_REPEAT_LAST_N}:
        text = (
            f"'options.repeat_last_n' is {options.repeat_last_n}; expected 0 (no penalty), -1 or 64: 'repeat_penalty' "
            "covers the prompt and the whole answer. Leave it out."
        )
        raise InvalidRequest(text, param="options.repeat_last_n")
    return penalty


def parameters_of(recommended: RecommendedSampling) -> str:
    """Return the defaults as lines of a Modelfile without the word PARAMETER, as `/api/show` has them."""
    values = {
        "temperature": recommended.temperature,
        "top_p": recommended.top_p,
        "top_k": recommended.top_k,
        "min_p": recommended.min_p,
        "repeat_penalty": recommended.repetition_penalty,
    }
    return "\n".join(f"{name:<30} {value:g}" for name, value in values.items())


def _check_ranges(options: Options) -> None:
    check_range("options.temperature", options.temperature, low=0, high=2)
    check_range("options.top_p", options.top_p, low=0, high=1)
    check_range("options.top_k", options.top_k, low=-1)
    check_range("options.min_p", options.min_p, low=0, high=1)
    check_range("options.typical_p", options.typical_p, above=0, high=1)
    check_range("options.repeat_penalty", options.repeat_penalty, above=0)
    check_range("options.presence_penalty", options.presence_penalty, low=-2, high=2)
    check_range("options.frequency_penalty", options.frequency_penalty, low=-2, high=2)


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
    suffix: str | None = None
    """The text after the answer, which then fills the gap between prompt and suffix."""
    system: str | None = None
    raw: bool | None = None


CHAT_FIELDS = field_table("ollama-chat", ChatBody)
GENERATE_FIELDS = field_table("ollama-generate", GenerateBody)

_chat_decoder = msgspec.json.Decoder(ChatBody)
_generate_decoder = msgspec.json.Decoder(GenerateBody)


@dataclass(frozen=True, slots=True)
class OllamaChat:
    """The dialect of chats: `POST /api/chat`."""

    name = "ollama-chat"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _chat_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = check_nested(body, CHAT_FIELDS, OPTION_FIELDS, name="options")
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
        fields = decode_body(body, _generate_decoder)
        context, adapter = named_model(fields.model, context)
        ignored = check_nested(body, GENERATE_FIELDS, OPTION_FIELDS, name="options")
        if not fields.prompt and not fields.suffix:
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


def _generate_prompt(fields: GenerateBody, context: RequestContext) -> str | ChatPrompt | InfillPrompt:
    """Return the prompt as one message, or unchanged with `raw`, `suffix` and where the model has no chat template."""
    is_text = bool(fields.raw or fields.suffix) or not context.model.has_chat_template
    if is_text and (fields.system or fields.think):
        param = "system" if fields.system else "think"
        reason = "'raw' prompts are used unchanged" if fields.raw else "the model has no chat template"
        if fields.suffix:
            reason = "'suffix' asks for a text and not for a message"
        raise InvalidRequest(f"'{param}' cannot be applied: {reason}. Leave it out.", param=param)
    prompt = fields.prompt or ""
    if fields.suffix:
        return InfillPrompt(prefix=prompt, suffix=fields.suffix)
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
    prompt: str | ChatPrompt | InfillPrompt,
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
        max_reasoning_tokens=reasoning_budget(context.model, tokens=None, effort=fields.think),
        separates_reasoning=known is not None,
    )
    return ParsedRequest(requests=(request,), stream=reply.options.is_stream, reply=reply, ignored=ignored)


def _load(fields: CommonFields, context: RequestContext, ignored: tuple[str, ...], *, is_chat: bool) -> ParsedRequest:
    """Return the answer to a body without a prompt, which asks to load the model; it is already loaded."""
    if asks_to_unload(fields.keep_alive):
        text = (
            "'keep_alive': the model cannot be unloaded, it is served until the server stops. "
            "`headrace serve --models` loads and unloads models."
        )
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
