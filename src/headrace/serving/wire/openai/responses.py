"""
`POST /v1/responses`: the body and its conversion to a generation request.

A request has the whole conversation, or continues a stored response (`wire.openai.stored_responses`).

Source: OpenAI API reference, "Create a model response"; vLLM `entrypoints/openai/responses/protocol.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, Grammar, SamplingParams
from headrace.serving.wire.constraints import read_schema, refuse_two
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import field_table
from headrace.serving.wire.framing import decode_body, missing, raw_fields, refusing_deep_nesting
from headrace.serving.wire.json_size import INLINE_BYTES, check_json_size
from headrace.serving.wire.openai import parameters
from headrace.serving.wire.openai import stored_responses as stored
from headrace.serving.wire.openai.answer_stream import AnswerPlan
from headrace.serving.wire.openai.chat import ChatBody, chat_prompt
from headrace.serving.wire.openai.envelope import render_error
from headrace.serving.wire.openai.responses_items import (
    InputItem,
    ResponseTool,
    ResponseToolChoice,
    chat_messages,
    read_choice,
    read_tools,
    stored_items,
)
from headrace.serving.wire.openai.responses_reply import ResponseOptions, ResponseReply
from headrace.serving.wire.openai.tools import ToolPlan, plan_tools
from headrace.serving.wire.reasoning import reasoning_budget

_LOGPROBS = "message.output_text.logprobs"


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The value of `text.format`; a schema is enforced whether it is `strict` or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, object] | bool | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, omit_defaults=True):
    """The value of `text`: the format of the answer and how long it is."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct):
    """The value of `reasoning`; `summary` has no effect, as the reasoning itself is returned."""

    effort: str | None = None
    max_tokens: int | None = None
    """The budget of the reasoning; OpenRouter's."""
    summary: str | None = None
    mode: str | None = None


class ResponsesBody(parameters.CommonFields, kw_only=True):
    """The body of a request for a response."""

    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, object] | None = None


class _PreviousOfBody(msgspec.Struct):
    previous_response_id: str | None = None


_PREVIOUS = b"previous_response_id"
_decoder = msgspec.json.Decoder(ResponsesBody)
_decode_previous = msgspec.json.Decoder(_PreviousOfBody).decode
_decode_items = msgspec.json.Decoder(list[InputItem]).decode
FIELDS = field_table("openai-responses", ResponsesBody)


@dataclass(frozen=True, slots=True)
class OpenAIResponses:
    """The dialect of OpenAI's Responses API."""

    store: stored.ResponseStore | None = None
    """The stored responses; None: `store` has no effect, and `previous_response_id` is refused."""

    name = "openai-responses"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _decoder)
        ignored = FIELDS.check(body)
        if fields.store and self.store is None:
            ignored = (*ignored, "store")
        _check_settings(fields)
        context, adapter = parameters.model_named(fields.model, context)
        # A stored conversation comes before the input of the request.
        before = self._before(fields, context)
        earlier = _decode_items(before)
        tools = read_tools(fields.tools or ())
        ignored = (*ignored, *tools.without_effect)
        choice, is_parallel = read_choice(fields.tool_choice), fields.parallel_tool_calls is not False
        plan = plan_tools(tools.functions, choice, parallel=is_parallel)
        sampling = _sampling(fields, context, plan)
        known = context.model.answer_format
        reasoning = fields.reasoning or Reasoning()
        parameters.check_range("reasoning.max_tokens", reasoning.max_tokens, low=0)
        options = ResponseOptions(
            request_id=context.request_id,
            created_s=context.created_s,
            model=context.model.name,
            plan=AnswerPlan(tools=plan, format=known),
            is_stream=parameters.is_stream(fields),
            num_top_logprobs=sampling.logprobs,
            with_special=not sampling.skip_special_tokens,
            echoed=_echoed(fields, body, sampling, is_stored=self._is_stored(fields)),
            origins=tools.origins,
            keep=self._keep(fields, body, before, context),
        )
        chat = ChatBody(
            messages=chat_messages(fields.instructions, fields.input, earlier),
            tools=list(tools.functions),
            reasoning_effort=reasoning.effort,
            chat_template_kwargs=fields.chat_template_kwargs,
        )
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=chat_prompt(chat, plan, known),
            sampling=sampling,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
            cache_salt=fields.cache_salt or "",
            adapter=adapter,
            max_reasoning_tokens=reasoning_budget(context.model, tokens=reasoning.max_tokens, effort=reasoning.effort),
            separates_reasoning=known is not None,
        )
        reply = ResponseReply(options)
        return ParsedRequest(requests=(request,), stream=options.is_stream, reply=reply, ignored=ignored)

    def parse_count(self, body: bytes, context: RequestContext) -> ChatPrompt:
        """
        Return the prompt of a body of `/v1/responses/input_tokens`, which may have every field of `/v1/responses`.

        Raises:
            InvalidRequest, ModelNotFound: as `parse`.
        """
        prompt = self.parse(body, context).requests[0].prompt
        assert isinstance(prompt, ChatPrompt), "`parse` makes no other prompts"
        return prompt

    render_error = staticmethod(partial(render_error, prompt="input"))

    def num_stored_bytes(self, body: bytes, now_s: float) -> int:
        """Return the size of the stored conversation that a short body continues, else 0: a long one is not decoded."""
        if self.store is None or len(body) > INLINE_BYTES or _PREVIOUS not in body:
            return 0
        try:
            response_id = _decode_previous(body).previous_response_id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return 0
        entry = None if response_id is None else self.store.get(stored.ResponseKey("", response_id), now_s=now_s)
        return 0 if entry is None else entry.num_bytes

    def _before(self, fields: ResponsesBody, context: RequestContext) -> bytes:
        response_id = fields.previous_response_id
        if response_id is None:
            return stored.NO_ITEMS
        if self.store is None:
            text = (
                "'previous_response_id' is not supported: this server does not store responses. "
                "Send all items of the conversation as 'input'."
            )
            raise InvalidRequest(text, param="previous_response_id")
        key = stored.ResponseKey("", response_id)
        conversation = stored.previous_response(self.store, key, now_s=context.created_s).conversation()
        check_json_size(conversation, what="The conversation that 'previous_response_id' continues")
        return conversation

    def _is_stored(self, fields: ResponsesBody) -> bool:
        return self.store is not None and fields.store is not False

    def _keep(
        self, fields: ResponsesBody, body: bytes, before: bytes, context: RequestContext
    ) -> Callable[[bytes], None] | None:
        """Return the function that stores the response; None if it is not stored."""
        store = self.store
        if store is None or not self._is_stored(fields):
            return None
        items = stored.joined((before, stored_items(bytes(raw_fields(body)["input"]), context.request_id)))

        def keep(response: bytes) -> None:
            entry = stored.StoredResponse(response=response, items=items, created_s=context.created_s)
            store.add(stored.ResponseKey("", f"resp_{context.request_id}"), entry)

        return keep


def _check_settings(fields: ResponsesBody) -> None:
    """Refuse values of nested fields that are not applied."""
    if fields.text is not None and fields.text.verbosity not in {None, "medium"}:
        text = "'text.verbosity' is not supported: models here have no verbosity setting. Ask for it in the prompt."
        raise InvalidRequest(text, param="text.verbosity")
    if fields.reasoning is not None and fields.reasoning.mode not in {None, "standard"}:
        text = "'reasoning.mode' is not supported: there is one mode of reasoning. Leave it out."
        raise InvalidRequest(text, param="reasoning.mode")


def _sampling(fields: ResponsesBody, context: RequestContext, plan: ToolPlan) -> SamplingParams:
    parameters.check_range("max_output_tokens", fields.max_output_tokens, low=1)
    parameters.check_range("top_logprobs", fields.top_logprobs, low=0, high=context.limits.max_top_n_tokens)
    sampling = parameters.sampling_params(fields, context, max_new_tokens=fields.max_output_tokens)
    form, grammar = None if fields.text is None else fields.text.format, None
    if form is not None and form.type == "json_object":
        grammar = Grammar("json_object", param="text.format")
    elif form is not None and form.type == "json_schema":
        if form.schema is None:
            raise missing("text.format.schema")
        grammar = read_schema(form.schema, param="text.format.schema")
    for other in (sampling.grammar, plan.grammar):
        if grammar is not None and other is not None:
            raise refuse_two(grammar.param, "tool_choice" if other is plan.grammar else other.param)
        grammar = grammar or other
    has_logprobs = bool(fields.top_logprobs) or _LOGPROBS in (fields.include or ())
    return replace(sampling, grammar=grammar, logprobs=(fields.top_logprobs or 0) if has_logprobs else None)


def _echoed(fields: ResponsesBody, body: bytes, sampling: SamplingParams, *, is_stored: bool) -> dict[str, object]:
    text = fields.text or TextConfig()
    return {
        "background": False,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": None if fields.reasoning is None else fields.reasoning.effort, "summary": None},
        "safety_identifier": fields.safety_identifier,
        "store": is_stored,
        "temperature": sampling.temperature,
        "text": {"format": msgspec.to_builtins(text.format or TextFormat(type="text"))},
        "tool_choice": msgspec.to_builtins(fields.tool_choice or "auto"),
        "tools": raw_fields(body)["tools"] if fields.tools else [],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": fields.user,
    }
