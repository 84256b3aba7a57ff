"""Answers to `/v1/completions`, whole and streamed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.generation import Chunk, Finish, Token
from headrace.wire.answers import Answer, usage_of
from headrace.wire.framing import to_json
from headrace.wire.openai.envelope import (
    UNFINISHED,
    EnvelopeOptions,
    EnvelopeReply,
    EnvelopeStream,
    finish_fields,
    finish_reason,
    streamed_finish,
)
from headrace.wire.openai.logprobs import completion_logprobs, visible

KIND = "text_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsOptions(EnvelopeOptions):
    """Options of a completion request for the format of the answer."""

    num_choices: int
    """Choices per prompt."""
    echoes: tuple[str | tuple[int, ...], ...] | None
    """The prompts, if they precede the answers."""


@dataclass(frozen=True, slots=True)
class CompletionsReply(EnvelopeReply):
    """Renders the answer to a completion."""

    options: CompletionsOptions

    def stream(self) -> "CompletionsStream":
        """Return a renderer of one object per chunk."""
        return CompletionsStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the whole body: the choices of the first prompt, then those of the second, and so on."""
        choices = []
        for number, answer in enumerate(answers):
            for choice in answer.choices:
                writer = ChoiceWriter(self.options, number, answer.prompt)
                text, logprobs = writer.piece(choice.text, choice.tokens)
                index = number * self.options.num_choices + choice.index
                end = finish_fields(choice.finish, finish_reason(choice.finish))
                choices.append({"index": index, "text": text, "logprobs": logprobs, **end})
        return self.options.envelope.body(KIND, choices, usage_of(answers))


class ChoiceWriter:
    """Returns the text and logprobs of one choice incrementally; the first part has the echoed prompt."""

    def __init__(self, options: CompletionsOptions, number: int, prompt: tuple[Token, ...] | None) -> None:
        self._options = options
        self._echo = None if options.echoes is None else options.echoes[number]
        self._prompt = prompt or ()
        self._offset = 0

    def piece(self, text: str, tokens: Sequence[Token]) -> tuple[str, dict[str, object] | None]:
        """Return the text and the logprobs object to send for a part of the answer."""
        if self._echo is not None:
            echo, self._echo = self._echo, None
            text = (echo if isinstance(echo, str) else self._prompt_text()) + text
            tokens = (*self._prompt, *visible(tokens, with_special=self._options.with_special))
        else:
            tokens = visible(tokens, with_special=self._options.with_special)
        if self._options.num_top_logprobs is None:
            return text, None
        logprobs, self._offset = completion_logprobs(
            tokens,
            num_top=self._options.num_top_logprobs,
            offset=self._offset,
            with_special=self._options.with_special,
        )
        return text, logprobs

    def _prompt_text(self) -> str:
        return "".join(token.text for token in visible(self._prompt, with_special=self._options.with_special))


@dataclass(slots=True)
class _Prompt:
    """A prompt of a streamed request; its tokens arrive with choice 0, and the other choices wait for them."""

    tokens: tuple[Token, ...] | None = None
    writers: dict[int, ChoiceWriter] = field(default_factory=dict)
    waiting: list[Chunk] = field(default_factory=list)


class CompletionsStream(EnvelopeStream):
    """Renders an object per chunk."""

    def __init__(self, options: CompletionsOptions) -> None:
        super().__init__(options.envelope, KIND)
        self._options = options
        self._prompts: dict[int, _Prompt] = {}

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        prompt = self._prompts.setdefault(request, _Prompt())
        if chunk.prompt is not None:
            prompt.tokens = chunk.prompt
        if prompt.tokens is None and self._needs_prompt(request):
            prompt.waiting.append(chunk)
            return ()
        chunks = [*prompt.waiting, chunk]
        prompt.waiting.clear()
        return [event for item in chunks for event in self._events(item, request, prompt)]

    def _needs_prompt(self, request: int) -> bool:
        echoes = self._options.echoes
        if echoes is None:
            return False
        return self._options.num_top_logprobs is not None or not isinstance(echoes[request], str)

    def _events(self, chunk: Chunk, request: int, prompt: _Prompt) -> Sequence[bytes]:
        writer = prompt.writers.get(chunk.index)
        if writer is None:
            writer = prompt.writers[chunk.index] = ChoiceWriter(self._options, request, prompt.tokens)
        text, logprobs = writer.piece(chunk.text, chunk.tokens)
        if chunk.finish is not None:
            self._meter.add(request, chunk.finish)
        elif not text and logprobs is None:
            return ()
        index = request * self._options.num_choices + chunk.index
        return [self._event(index, text, logprobs, chunk.finish)]

    def _event(self, index: int, text: str, logprobs: dict[str, object] | None, finish: Finish | None) -> bytes:
        choice = b'{"index":%d,"text":%b,"logprobs":%b,%b}' % (
            index,
            to_json(text),
            b"null" if logprobs is None else to_json(logprobs),
            UNFINISHED if finish is None else streamed_finish(finish, finish_reason(finish)),
        )
        return self._framed(choice)
