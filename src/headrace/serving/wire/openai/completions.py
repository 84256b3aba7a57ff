"""`POST /v1/completions`: the body, its conversion to generation requests, and their answers, whole and streamed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, GenerationRequest, InfillPrompt, SamplingParams, Token
from headrace.serving.wire.answers import Answer, usage_of
from headrace.serving.wire.dialect import MAX_CHOICES, ParsedRequest, RequestContext
from headrace.serving.wire.fields import field_table
from headrace.serving.wire.framing import decode_body, invalid, refusing_deep_nesting, to_json
from headrace.serving.wire.openai import envelope as openai
from headrace.serving.wire.openai import parameters

DEFAULT_MAX_TOKENS = 16
"""Source: OpenAI API reference, create completion."""

Prompt = str | tuple[int, ...]


class CompletionsBody(parameters.CommonFields, kw_only=True):
    """The body of a completion request."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    """The text after the answer, which then fills the gap between prompt and suffix."""
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


_decoder = msgspec.json.Decoder(CompletionsBody)
FIELDS = field_table("openai-completions", CompletionsBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICompletions:
    """The dialect of OpenAI's completions."""

    framing: parameters.Framing = "sse"

    name = "openai-completions"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _decoder)
        context, adapter = parameters.model_named(fields.model, context)
        ignored = FIELDS.check(body)
        envelope = openai.Envelope.of(fields, context, "cmpl", self.framing)
        no_text, no_ids = "empty string. Expected at least one character", "empty array. Expected at least one token id"
        if fields.suffix and fields.prompt == "":
            prompts: list[Prompt] = [""]  # a gap at the beginning of a file
        else:
            prompts = parameters.read_texts("prompt", fields.prompt, context, no_text=no_text, no_ids=no_ids)
        if fields.suffix:
            _check_infill(fields, prompts)
        sampling = _sampling(fields, context, stream=envelope.stream, prompts=prompts)
        options = CompletionsOptions(
            envelope=envelope,
            num_choices=sampling.n,
            num_top_logprobs=fields.logprobs,
            echoes=tuple(prompts) if fields.echo else None,
            with_special=not sampling.skip_special_tokens,
            **parameters.token_options(fields),
        )
        return ParsedRequest(
            requests=tuple(
                GenerationRequest(
                    request_id=context.request_id if len(prompts) == 1 else f"{context.request_id}-{number}",
                    prompt=InfillPrompt(prefix=str(prompt), suffix=fields.suffix) if fields.suffix else prompt,
                    sampling=sampling,
                    truncate_prompt_tokens=fields.truncate_prompt_tokens,
                    cache_salt=fields.cache_salt or "",
                    adapter=adapter,
                )
                for number, prompt in enumerate(prompts)
            ),
            stream=envelope.stream,
            reply=CompletionsReply(options),
            ignored=ignored,
        )

    render_error = staticmethod(partial(openai.render_error, prompt="prompt"))


def _check_infill(fields: CompletionsBody, prompts: Sequence[Prompt]) -> None:
    """Refuse what has no meaning for a prompt with a suffix."""
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise invalid("suffix", "it cannot be combined with a prompt of token ids. Send the prompt as text")
    if fields.truncate_prompt_tokens is not None:
        raise invalid("truncate_prompt_tokens", "it cannot be combined with 'suffix'. Send less text")
    if fields.echo and fields.logprobs is not None:
        raise invalid("logprobs", "it cannot be combined with 'echo' and 'suffix'. Leave one of them out")


def _sampling(
    fields: CompletionsBody, context: RequestContext, *, stream: bool, prompts: list[Prompt]
) -> SamplingParams:
    parameters.check_range("max_tokens", fields.max_tokens, low=0)
    parameters.check_range("logprobs", fields.logprobs, low=0, high=context.limits.max_top_n_tokens)
    max_new_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    sampling = parameters.sampling_params(fields, context, max_new_tokens=max_new_tokens)
    parameters.check_range("best_of", fields.best_of, low=sampling.n, high=context.limits.max_best_of)
    if stream and fields.best_of is not None and fields.best_of > sampling.n:
        raise invalid("best_of", "it cannot be combined with 'stream'")
    candidates = max(sampling.n, fields.best_of or 1)
    if len(prompts) * candidates > MAX_CHOICES:
        text = f"{len(prompts)} prompts with {candidates} answers each are {len(prompts) * candidates} answers"
        raise InvalidRequest(f"{text}; expected at most {MAX_CHOICES}.", param="prompt")
    needs_prompt = fields.echo and (fields.logprobs is not None or not all(isinstance(item, str) for item in prompts))
    return replace(
        sampling,
        best_of=fields.best_of,
        logprobs=fields.logprobs,
        prompt_logprobs=max(fields.logprobs or 0, fields.prompt_logprobs or 0)
        if needs_prompt
        else fields.prompt_logprobs,
    )


KIND = "text_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsOptions(openai.EnvelopeOptions):
    """Options of a completion request for the format of the answer."""

    num_choices: int
    """Choices per prompt."""
    echoes: tuple[str | tuple[int, ...], ...] | None
    """The prompts, if they precede the answers."""


@dataclass(frozen=True, slots=True)
class CompletionsReply(openai.EnvelopeReply):
    """Renders the answer to a completion."""

    options: CompletionsOptions

    def stream(self) -> "CompletionsStream":
        return CompletionsStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the whole body: the choices of the first prompt, then those of the second, and so on."""
        choices = []
        for number, answer in enumerate(answers):
            for choice in answer.choices:
                writer = ChoiceWriter(self.options, number, answer.prompt)
                text, logprobs = writer.piece(choice.text, choice.tokens)
                index = number * self.options.num_choices + choice.index
                end = openai.finish_fields(choice.finish, openai.finish_reason(choice.finish))
                more: dict[str, object] = {}
                if self.options.returns_ids:
                    more = {"token_ids": openai.token_ids(choice.tokens), "prompt_token_ids": choice.prompt_ids}
                if self.options.shows_prompt:
                    more["prompt_logprobs"] = openai.prompt_logprobs(answer.prompt or ())
                choices.append({"index": index, "text": text, "logprobs": logprobs, **end, **more})
        return self.options.envelope.body(KIND, choices, usage_of(answers))


class ChoiceWriter:
    """Returns the text and logprobs of one choice incrementally; the first part has the echoed prompt."""

    def __init__(self, options: CompletionsOptions, number: int, prompt: tuple[Token, ...] | None) -> None:
        self._options = options
        self._echo = None if options.echoes is None else options.echoes[number]
        self._prompt = prompt or ()
        self._offset = 0
        self.ids: list[int] = []
        """Token ids that have not been sent yet."""
        self.prompt_ids: tuple[int, ...] | None = None
        """The ids of the prompt until they are sent."""

    def piece(self, text: str, tokens: Sequence[Token]) -> tuple[str, dict[str, object] | None]:
        """Return the text and the logprobs object to send for a part of the answer."""
        if self._echo is not None:
            echo, self._echo = self._echo, None
            prompt = openai.visible(self._prompt, with_special=self._options.with_special)
            text = (echo if isinstance(echo, str) else "".join(token.text for token in prompt)) + text
            tokens = (*self._prompt, *openai.visible(tokens, with_special=self._options.with_special))
        else:
            tokens = openai.visible(tokens, with_special=self._options.with_special)
        if self._options.num_top_logprobs is None:
            return text, None
        logprobs, self._offset = openai.completion_logprobs(tokens, self._options, offset=self._offset)
        return text, logprobs


@dataclass(slots=True)
class _Prompt:
    """A prompt of a streamed request; its tokens arrive with choice 0, and the other choices wait for them."""

    tokens: tuple[Token, ...] | None = None
    writers: dict[int, ChoiceWriter] = field(default_factory=dict)
    waiting: list[Chunk] = field(default_factory=list)


class CompletionsStream(openai.EnvelopeStream):
    """Renders an object per chunk."""

    def __init__(self, options: CompletionsOptions) -> None:
        super().__init__(options.envelope, KIND)
        self._options = options
        self._prompts: dict[int, _Prompt] = {}

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        prompt = self._prompts.setdefault(request, _Prompt())
        if chunk.prompt is not None:
            prompt.tokens = chunk.prompt
        echoes = self._options.echoes
        if prompt.tokens is None and echoes is not None:
            needs_tokens = self._options.num_top_logprobs is not None or not isinstance(echoes[request], str)
            if needs_tokens:
                prompt.waiting.append(chunk)
                return ()
        chunks = [*prompt.waiting, chunk]
        prompt.waiting.clear()
        return [event for item in chunks for event in self._events(item, request, prompt)]

    def _events(self, chunk: Chunk, request: int, prompt: _Prompt) -> Sequence[bytes]:
        writer = prompt.writers.get(chunk.index)
        if writer is None:
            writer = prompt.writers[chunk.index] = ChoiceWriter(self._options, request, prompt.tokens)
        text, logprobs = writer.piece(chunk.text, chunk.tokens)
        writer.ids.extend(openai.token_ids(chunk.tokens))
        writer.prompt_ids = chunk.prompt_ids or writer.prompt_ids
        if chunk.finish is not None:
            self._meter.add(request, chunk.finish)
        elif not text and logprobs is None:
            return ()
        index, end = request * self._options.num_choices + chunk.index, openai.UNFINISHED
        if chunk.finish is not None:
            end = openai.streamed_finish(chunk.finish, openai.finish_reason(chunk.finish))
        if self._options.returns_ids:
            end += b',"token_ids":%b' % to_json(writer.ids)
            if writer.prompt_ids is not None:
                end += b',"prompt_token_ids":%b' % to_json(writer.prompt_ids)
            writer.ids, writer.prompt_ids = [], None
        choice = b'{"index":%d,"text":%b,"logprobs":%b,%b}' % (
            index,
            to_json(text),
            b"null" if logprobs is None else to_json(logprobs),
            end,
        )
        return [self._framed(choice)]
