"""
`POST /v1/messages`: the body and its conversion to a generation request.

Neighbouring messages of one role are one turn, as in Anthropic's API. A turn of the user may hold results of tools
beside text: each result becomes a message of its own, in front of the text.
Source: Anthropic API reference, "Create a Message"; "Messages"; "Tool use"; "Structured outputs"; "Extended thinking".
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, SamplingParams
from headrace.serving.wire.anthropic.client_tools import CLIENT_TOOLS
from headrace.serving.wire.anthropic.reply import MessageOptions, MessageReply, render_error
from headrace.serving.wire.constraints import read_schema, refuse_two
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import clamp_count, effective_temperature, field_table, first_given
from headrace.serving.wire.framing import decode_body, refusing_deep_nesting
from headrace.serving.wire.openai import tools as openai_tools
from headrace.serving.wire.openai.answer_stream import AnswerPlan
from headrace.serving.wire.openai.messages import TAKE_OUT, CalledFunction, Message, ToolCall, template_messages
from headrace.serving.wire.openai.parameters import check_range, model_named
from headrace.serving.wire.reasoning import Thinking, reasoning_budget


class TextSource(msgspec.Struct):
    """The source of a document: plain text is the only one that is read."""

    type: str
    data: str | None = None


class Block(msgspec.Struct, kw_only=True):
    """A content block of any type; which fields it has depends on the type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    source: TextSource | None = None
    title: str | None = None


Content = str | list[Block]
_Placed = tuple[str, Block]
"""A block with its place in the body, for errors."""


class InputMessage(msgspec.Struct):
    """A message of the user or an earlier answer."""

    role: Literal["user", "assistant", "system"]
    content: Content


def chat_messages(system: Content | None, messages: Sequence[InputMessage]) -> list[Message]:
    """Return the conversation in OpenAI's form. Raises `InvalidRequest`: a block is not text, or not of its role."""
    if not messages:
        raise InvalidRequest("messages: at least one message is required", param="messages")
    result = [] if system is None else _system(system, "system")
    for role, turn in groupby(enumerate(messages), key=lambda message: message[1].role):
        if role == "system":
            for number, message in turn:
                result += _system(message.content, f"messages.{number}.content")
            continue
        blocks = [block for number, message in turn for block in _blocks(message, f"messages.{number}.content")]
        result += [_assistant(blocks)] if role == "assistant" else _user(blocks)
    return result


_ATTRIBUTION = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""
The line with which Claude Code begins its system prompt, in a block of its own.

It is for Anthropic's accounts and holds a hash that changes with every request: left in the prompt, it would make
the prefix cache useless for everything after it. Claude Code omits it if CLAUDE_CODE_ATTRIBUTION_HEADER is 0.
"""


def _system(content: Content, param: str) -> list[Message]:
    text = _text(content, param)
    own = _ATTRIBUTION.sub("", text)
    return [Message(role="system", content=own)] if own or not text else []


def _blocks(message: InputMessage, param: str) -> list[_Placed]:
    if isinstance(message.content, str):
        return [(param, Block(type="text", text=message.content))]
    if not message.content and message.role == "user":
        raise InvalidRequest(f"{param}: user messages must have non-empty content", param=param)
    return [(f"{param}.{number}", block) for number, block in enumerate(message.content)]


def _user(blocks: Sequence[_Placed]) -> Iterator[Message]:
    texts = []
    for place, block in blocks:
        if block.type == "tool_result":
            text = "" if block.content is None else _text(block.content, f"{place}.content")
            result = f"Error: {text}" if block.is_error else text
            yield Message(role="tool", tool_call_id=block.tool_use_id, content=result)
        else:
            texts.append(_block_text(block, place))
    if texts:
        yield Message(role="user", content="\n".join(texts))


def _assistant(blocks: Sequence[_Placed]) -> Message:
    texts, reasoning, calls = [], [], []
    for place, block in blocks:
        if block.type == "thinking":
            reasoning.append(block.thinking or "")
        elif block.type == "tool_use":
            if block.name is None:
                raise InvalidRequest(f"{place}.name: field required", param=f"{place}.name")
            function = CalledFunction(name=block.name, arguments=block.input or {})
            calls.append(ToolCall(id=block.id, function=function))
        elif block.type != "redacted_thinking":  # another provider's ciphertext
            texts.append(_block_text(block, place))
    return Message(
        role="assistant",
        content="\n".join(texts) if texts else None,
        tool_calls=calls or None,
        reasoning="\n".join(reasoning) or None,
    )


def _text(content: Content, param: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{param}.{number}") for number, block in enumerate(content))


def _block_text(block: Block, param: str) -> str:
    if block.type == "text" and block.text is not None:
        return block.text
    if block.type == "document" and block.source is not None and block.source.type == "text":
        title = f"{block.title}\n" if block.title else ""
        return f"{title}{block.source.data or ''}"
    text = f"this model reads text only, but got a block of type '{shortened(block.type)}'. {TAKE_OUT}"
    raise InvalidRequest(f"{param}: {text}", param=param)


class InputTool(msgspec.Struct):
    """A tool of the client, with a schema of its own or a published one, or a tool that Anthropic's servers run."""

    name: str = ""
    description: str | None = None
    input_schema: dict[str, object] | None = None
    type: str | None = None


class InputToolChoice(msgspec.Struct):
    """The value of `tool_choice`: whether and which tool must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct):
    """The format of structured outputs."""

    type: Literal["json_schema"]
    schema: dict[str, object] | None = None


class OutputConfig(msgspec.Struct):
    """The value of `output_config`: the format of the answer and the effort of thinking."""

    format: OutputFormat | None = None
    effort: str | None = None


class PromptFields(msgspec.Struct, kw_only=True):
    """The fields of `/v1/messages` that make the prompt, which are all of `/v1/messages/count_tokens`."""

    model: str
    messages: list[InputMessage]
    system: Content | None = None
    tools: list[InputTool] | None = None
    tool_choice: InputToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesBody(PromptFields, kw_only=True):
    """The body of a request for a message."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


_HOSTED = ("code_execution_", "mcp_toolset", "tool_search_", "web_fetch_", "web_search_")
"""Beginnings of the types of tools that run on Anthropic's servers."""

_decoder = msgspec.json.Decoder(MessagesBody)
_prompt_decoder = msgspec.json.Decoder(PromptFields)
FIELDS = field_table("anthropic", MessagesBody)


@dataclass(frozen=True, slots=True)
class AnthropicMessages:
    """The dialect of Anthropic's Messages API."""

    name = "anthropic"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _decoder)
        context, adapter = model_named(fields.model, context)
        ignored = (*FIELDS.check(body), *_hosted_tools(fields))
        plan = _tool_plan(fields)
        prompt = _prompt(fields, plan, context)
        is_prefilled = prompt.continues_final_message
        known = None if is_prefilled else context.model.answer_format  # a continued message is past its reasoning
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=prompt,
            sampling=_sampling(fields, context, plan),
            adapter=adapter,
            max_reasoning_tokens=_budget(fields, context),
            separates_reasoning=known is not None,
        )
        options = MessageOptions(
            id=f"msg_{context.request_id}",
            model=context.model.name,
            plan=AnswerPlan(tools=plan, format=known, includes_reasoning=_is_thinking(fields)),
            is_stream=bool(fields.stream),
            max_tokens=fields.max_tokens,
        )
        return ParsedRequest(
            requests=(request,), stream=bool(fields.stream), reply=MessageReply(options), ignored=ignored
        )

    render_error = staticmethod(render_error)


@refusing_deep_nesting()
def parse_count(body: bytes, context: RequestContext) -> ChatPrompt:
    """Return the prompt of a body of `/v1/messages/count_tokens`. Raises what `parse` raises."""
    fields = decode_body(body, _prompt_decoder)
    context, _ = model_named(fields.model, context)
    FIELDS.check(body)
    return _prompt(fields, _tool_plan(fields), context)


def _prompt(fields: PromptFields, plan: openai_tools.ToolPlan, context: RequestContext) -> ChatPrompt:
    messages = chat_messages(fields.system, fields.messages)
    is_prefilled = messages[-1].role == "assistant"
    if is_prefilled:
        _check_prefill(messages[-1], fields)
    values: dict[str, object] = {"enable_thinking": _is_thinking(fields)}
    if fields.output_config is not None and fields.output_config.effort is not None:
        values["reasoning_effort"] = fields.output_config.effort
    return ChatPrompt(
        messages=template_messages(messages, context.model.answer_format),
        tools=openai_tools.template_tools(_tools(fields)) if fields.tools and plan.mode != "none" else None,
        add_generation_prompt=not is_prefilled,
        continues_final_message=is_prefilled,
        template_values=values,
    )


def _check_prefill(last: Message, fields: PromptFields) -> None:
    """Check that the answer can continue the last message. Source: Anthropic's documentation, "Prefill"."""
    if _is_thinking(fields):
        text = "messages: the last message is the assistant's; expected one of the user when 'thinking' is on"
    elif not last.content or last.tool_calls:
        text = "messages: the last message is the assistant's without text or with a call; expected text to continue"
    elif str(last.content) != str(last.content).rstrip():
        text = "messages: final assistant content cannot end with trailing whitespace"
    else:
        return
    raise InvalidRequest(text, param="messages")


def _budget(fields: PromptFields, context: RequestContext) -> int | None:
    tokens = None if fields.thinking is None else fields.thinking.budget_tokens
    check_range("thinking.budget_tokens", tokens, low=1)
    effort = None if fields.output_config is None else fields.output_config.effort
    return reasoning_budget(context.model, tokens=tokens, effort=effort) if _is_thinking(fields) else None


def _is_thinking(fields: PromptFields) -> bool:
    """Return whether the client asks for thinking; without the field it is off, as in Anthropic's API."""
    return fields.thinking is not None and fields.thinking.type != "disabled"


def _hosted_tools(fields: PromptFields) -> tuple[str, ...]:
    """Return the tools that are left out, for the log: agents name them in requests that have tools of their own."""
    tools = enumerate(fields.tools or ())
    return tuple(f"tools.{number}.{tool.type}" for number, tool in tools if (tool.type or "").startswith(_HOSTED))


def _tools(fields: PromptFields) -> list[openai_tools.Tool]:
    tools = []
    is_only_hosted = len(_hosted_tools(fields)) == len(fields.tools or ())
    for number, tool in enumerate(fields.tools or ()):
        is_hosted = (tool.type or "").startswith(_HOSTED)
        if is_hosted and not is_only_hosted:
            continue
        known = CLIENT_TOOLS.get(tool.type or "")
        if known is None and tool.type not in {None, "custom"}:
            where = "runs on Anthropic's servers" if is_hosted else "has a schema that models here do not know"
            text = f"tools.{number}.type: '{tool.type}' {where}; expected a tool of the client with an 'input_schema'"
            raise InvalidRequest(text, param=f"tools.{number}.type")
        if not tool.name:
            raise InvalidRequest(f"tools.{number}.name: field required", param=f"tools.{number}.name")
        description, schema = (
            (tool.description, tool.input_schema) if known is None else (known.description, known.schema)
        )
        function = openai_tools.Function(name=tool.name, description=description, parameters=schema)
        tools.append(openai_tools.Tool(function=function))
    return tools


def _tool_plan(fields: PromptFields) -> openai_tools.ToolPlan:
    choice = fields.tool_choice
    is_parallel = choice is None or not choice.disable_parallel_tool_use
    if choice is None or choice.type != "tool":
        mode = "auto" if choice is None else {"any": "required"}.get(choice.type, choice.type)
        return openai_tools.plan_tools(_tools(fields), mode, parallel=is_parallel)
    if choice.name is None:
        raise InvalidRequest("tool_choice.tool.name: field required", param="tool_choice.name")
    named = openai_tools.ToolChoice(function=openai_tools.NamedFunction(name=choice.name))
    return openai_tools.plan_tools(_tools(fields), named, parallel=is_parallel)


def _sampling(fields: MessagesBody, context: RequestContext, plan: openai_tools.ToolPlan) -> SamplingParams:
    _check_range("max_tokens", fields.max_tokens, low=1)
    _check_range("temperature", fields.temperature, low=0, high=1)
    _check_range("top_p", fields.top_p, low=0, high=1)
    _check_range("top_k", fields.top_k, low=0)
    stops = tuple(fields.stop_sequences or ())
    if len(stops) > context.limits.max_stop_sequences:
        text = f"stop_sequences: at most {context.limits.max_stop_sequences} are allowed, but got {len(stops)}"
        raise InvalidRequest(text, param="stop_sequences")
    if any(not stop.strip() for stop in stops):
        text = "stop_sequences: each stop sequence must contain non-whitespace"
        raise InvalidRequest(text, param="stop_sequences")
    defaults = context.model.sampling_defaults  # as vLLM's Messages API; Anthropic's for the rest
    top_p = first_given(fields.top_p, defaults.top_p, 1.0)
    temperature = first_given(fields.temperature, defaults.temperature, 1.0)
    grammar = None  # the schema of structured outputs, in either of its places
    if fields.output_format is not None:
        grammar = read_schema(fields.output_format.schema, param="output_format.schema")
    elif fields.output_config is not None and fields.output_config.format is not None:
        grammar = read_schema(fields.output_config.format.schema, param="output_config.format.schema")
    sampling = SamplingParams(
        max_new_tokens=fields.max_tokens,
        is_cut_at_context=True,  # as for Claude 4.5 and later: agents ask for 32,000 tokens of any model
        temperature=effective_temperature(temperature) if top_p > 0.0 else 0.0,
        top_p=top_p if top_p > 0.0 else 1.0,
        top_k=clamp_count(first_given(fields.top_k, defaults.top_k, 0)),
        min_p=first_given(None, defaults.min_p, 0.0),
        repetition_penalty=first_given(None, defaults.repetition_penalty, 1.0),
        stop=stops,
        grammar=grammar,
    )
    if plan.grammar is None:
        return sampling
    if sampling.grammar is not None:
        raise refuse_two(sampling.grammar.param, "tool_choice")
    return replace(sampling, grammar=plan.grammar)


def _check_range(name: str, value: float | None, *, low: float, high: float | None = None) -> None:
    if value is None:
        return
    if value < low:
        raise InvalidRequest(f"{name}: {value} is less than {low:g}; expected at least {low:g}", param=name)
    if high is not None and value > high:
        raise InvalidRequest(f"{name}: {value} is greater than {high:g}; expected at most {high:g}", param=name)
