"""`POST /v1/completions`: the body and its conversion to generation requests."""

from dataclasses import dataclass, replace

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import GenerationRequest, SamplingParams
from headrace.wire.dialect import MAX_CHOICES, ErrorReply, ParsedRequest, RequestContext
from headrace.wire.fields import FieldTable, struct_fields
from headrace.wire.framing import decode_body, refusing_deep_nesting
from headrace.wire.openai.completions_reply import CompletionsOptions, CompletionsReply
from headrace.wire.openai.envelope import Envelope
from headrace.wire.openai.errors import render_error
from headrace.wire.openai.fields import COMPLETIONS_REFUSED, NO_EFFECT
from headrace.wire.openai.parameters import (
    CommonFields,
    Framing,
    check_range,
    include_usage,
    is_stream,
    sampling_params,
    served_model,
)

DEFAULT_MAX_TOKENS = 16
"""Source: OpenAI API reference, create completion."""

Prompt = str | tuple[int, ...]


class CompletionsBody(CommonFields, kw_only=True):
    """The body of a completion request."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


_decoder = msgspec.json.Decoder(CompletionsBody)
FIELDS = FieldTable(applied=struct_fields(CompletionsBody), refused=COMPLETIONS_REFUSED, no_effect=NO_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICompletions:
    """The dialect of OpenAI's completions."""

    framing: Framing = "sse"

    @property
    def name(self) -> str:
        """The dialect's name in the settings and the log."""
        return "openai-completions"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a completions body.

        Raises:
            InvalidRequest: with OpenAI's error text.
            ModelNotFound: the request names another model.
        """
        fields = decode_body(body, _decoder)
        context, adapter = served_model(fields, context)
        ignored = FIELDS.check(body)
        stream = is_stream(fields)
        prompts = _prompts(fields.prompt, context)
        sampling = _sampling(fields, context, stream=stream, prompts=prompts)
        envelope = Envelope(
            id=f"cmpl-{context.request_id}",
            created_s=context.created_s,
            model=context.model,
            framing=self.framing,
            stream=stream,
            include_usage=include_usage(fields),
        )
        options = CompletionsOptions(
            envelope=envelope,
            num_choices=sampling.n,
            num_top_logprobs=fields.logprobs,
            echoes=tuple(prompts) if fields.echo else None,
            with_special=not sampling.skip_special_tokens,
        )
        return ParsedRequest(
            requests=tuple(
                GenerationRequest(
                    request_id=context.request_id if len(prompts) == 1 else f"{context.request_id}-{number}",
                    prompt=prompt,
                    sampling=sampling,
                    truncate_prompt_tokens=fields.truncate_prompt_tokens,
                    cache_salt=fields.cache_salt or "",
                    adapter=adapter,
                )
                for number, prompt in enumerate(prompts)
            ),
            stream=stream,
            reply=CompletionsReply(options),
            ignored=ignored,
        )

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"error": {...}}`."""
        return render_error(error, prompt="prompt")


def _sampling(
    fields: CompletionsBody, context: RequestContext, *, stream: bool, prompts: list[Prompt]
) -> SamplingParams:
    check_range("max_tokens", fields.max_tokens, low=0)
    check_range("logprobs", fields.logprobs, low=0, high=context.limits.max_top_n_tokens)
    max_new_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    sampling = sampling_params(fields, context, max_new_tokens=max_new_tokens)
    check_range("best_of", fields.best_of, low=sampling.n, high=context.limits.max_best_of)
    if stream and fields.best_of is not None and fields.best_of > sampling.n:
        raise InvalidRequest("Invalid 'best_of': it cannot be combined with 'stream'.", param="best_of")
    candidates = max(sampling.n, fields.best_of or 1)
    if len(prompts) * candidates > MAX_CHOICES:
        text = f"{len(prompts)} prompts with {candidates} answers each are {len(prompts) * candidates} answers"
        raise InvalidRequest(f"{text}; expected at most {MAX_CHOICES}.", param="prompt")
    needs_prompt = fields.echo and (fields.logprobs is not None or not all(isinstance(item, str) for item in prompts))
    return replace(
        sampling,
        best_of=fields.best_of,
        logprobs=fields.logprobs,
        prompt_logprobs=(fields.logprobs or 0) if needs_prompt else None,
    )


def _prompts(prompt: str | list[str | int | list[int]], context: RequestContext) -> list[Prompt]:
    """Return the prompts of a text, a list of token ids, a list of texts or a list of lists of token ids."""
    if isinstance(prompt, str):
        return [_text(prompt)]
    if not prompt:
        raise InvalidRequest("Invalid 'prompt': empty array. Expected at least one prompt.", param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return [_token_ids(prompt, context)]
    return [_text(item) if isinstance(item, str) else _token_ids(item, context) for item in prompt]


def _text(prompt: str) -> str:
    if not prompt:
        raise InvalidRequest("Invalid 'prompt': empty string. Expected at least one character.", param="prompt")
    return prompt


def _token_ids(prompt: object, context: RequestContext) -> tuple[int, ...]:
    if not isinstance(prompt, list):
        raise InvalidRequest("Invalid 'prompt': texts and token ids cannot be mixed in one array.", param="prompt")
    if not prompt:
        raise InvalidRequest("Invalid 'prompt': empty array. Expected at least one token id.", param="prompt")
    for token_id in prompt:
        check_range("prompt", token_id, low=0, high=context.model.vocab_size - 1)
    return tuple(prompt)
