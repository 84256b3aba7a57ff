"""
`POST /infill` of llama-server, which editors (llama.vim, llama.vscode) call for fill-in-the-middle.

Source: llama.cpp `tools/server/README.md` (POST /infill, POST /completion) and `tools/server/server-task.cpp`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.core.errors import HeadraceError
from headrace.core.generation import Chunk, Finish, FinishReason, GenerationRequest, InfillPrompt, SamplingParams
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import ClosingStream, ParsedRequest, ReplyHead, RequestContext, Timings
from headrace.serving.wire.fields import LARGEST_SEED, clamp_count, effective_temperature, field_table
from headrace.serving.wire.framing import SSE_KEEP_ALIVE, decode_body, refusing_deep_nesting, sse_event, to_json
from headrace.serving.wire.openai.envelope import error_body, render_error
from headrace.serving.wire.openai.parameters import check_range, read_stop


class ExtraFile(msgspec.Struct):
    """A piece of another file."""

    text: str
    filename: str = "tmp"


class InfillBody(msgspec.Struct, kw_only=True):
    """The body; null is the same as an absent field, and defaults are llama-server's."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None
    prompt: str | None = None
    """More text before the gap."""
    n_predict: int | None = None
    """Most tokens of the answer; 0 only computes the prompt, below 0 there is no limit."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    response_fields: list[str] | None = None
    """The fields to return, each with its path, such as `timings/prompt_n`, as its name; none: all."""


FIELDS = field_table("infill", InfillBody)
_decoder = msgspec.json.Decoder(InfillBody)


@dataclass(frozen=True, slots=True)
class Infill:
    """The dialect of llama-server's `POST /infill`."""

    name = "infill"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        fields = decode_body(body, _decoder)
        ignored = FIELDS.check(body)
        prompt = InfillPrompt(
            prefix=fields.input_prefix + (fields.prompt or ""),
            suffix=fields.input_suffix,
            files=tuple((file.filename, file.text) for file in fields.input_extra or ()),
        )
        request = GenerationRequest(request_id=context.request_id, prompt=prompt, sampling=_sampling(fields, context))
        options = InfillOptions(
            model=context.model.name,
            is_stream=bool(fields.stream),
            timings=context.timings,
            fields=tuple(fields.response_fields or ()),
        )
        return ParsedRequest(requests=(request,), stream=options.is_stream, reply=InfillReply(options), ignored=ignored)

    render_error = staticmethod(partial(render_error, prompt="prompt"))


def _sampling(fields: InfillBody, context: RequestContext) -> SamplingParams:
    check_range("temperature", fields.temperature, low=0)
    check_range("top_p", fields.top_p, low=0, high=1)
    check_range("min_p", fields.min_p, low=0, high=1)
    check_range("typical_p", fields.typical_p, above=0, high=1)
    check_range("repeat_penalty", fields.repeat_penalty, above=0)
    check_range("presence_penalty", fields.presence_penalty, low=-2, high=2)
    check_range("frequency_penalty", fields.frequency_penalty, low=-2, high=2)
    n_predict = -1 if fields.n_predict is None else fields.n_predict
    top_p = 0.95 if fields.top_p is None else fields.top_p
    temperature = 0.8 if fields.temperature is None else fields.temperature
    return SamplingParams(
        max_new_tokens=None if n_predict < 0 else n_predict,
        temperature=effective_temperature(temperature) if top_p > 0.0 else 0.0,
        top_k=clamp_count(max(0, 40 if fields.top_k is None else fields.top_k)),
        top_p=top_p if top_p > 0.0 else 1.0,
        min_p=0.05 if fields.min_p is None else fields.min_p,
        typical_p=1.0 if fields.typical_p is None else fields.typical_p,
        repetition_penalty=1.0 if fields.repeat_penalty is None else fields.repeat_penalty,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        seed=None if fields.seed is None or fields.seed < 0 else fields.seed & LARGEST_SEED,
        stop=read_stop(fields.stop, context),
        ignore_eos=bool(fields.ignore_eos),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillOptions:
    """Options of a request for the format of its answer."""

    model: str
    is_stream: bool
    timings: Callable[[], Timings]
    fields: tuple[str, ...]

    def end(self, text: str, finish: Finish, *, whole: str) -> bytes:
        """Render the last object: `text` is what it adds to the answer, `whole` all of it."""
        stops = {FinishReason.LENGTH: "limit", FinishReason.STOP: "word"}
        found = {
            "index": 0,
            "content": text,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self.model,
            "tokens_predicted": finish.output_tokens,
            "tokens_evaluated": finish.prompt_tokens,
            "has_new_line": "\n" in whole,
            "truncated": False,
            "stop_type": stops.get(finish.reason, "eos"),
            "stopping_word": finish.stop if isinstance(finish.stop, str) else "",
            "tokens_cached": finish.cached_tokens,
            "timings": _timings(self.timings(), finish),
        }
        return to_json(dict(_selected(found, self.fields)) if self.fields else found)


def _timings(timings: Timings, finish: Finish) -> dict[str, object]:
    prompt_s, answer_s = timings.first_chunk_s - timings.validation_s, timings.total_s - timings.first_chunk_s
    computed = finish.prompt_tokens - finish.cached_tokens
    return {
        "cache_n": finish.cached_tokens,
        **_rate("prompt", computed, max(0.0, prompt_s)),
        **_rate("predicted", finish.output_tokens, max(0.0, answer_s)),
    }


def _rate(name: str, num_tokens: int, seconds: float) -> dict[str, object]:
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / max(1, num_tokens),
        f"{name}_per_second": num_tokens / seconds if seconds else 0.0,
    }


def _selected(found: Mapping[str, object], paths: Sequence[str]) -> Iterator[tuple[str, object]]:
    for path in paths:
        value: object = found
        for key in path.split("/"):
            if not isinstance(value, Mapping) or key not in value:
                break
            value = value[key]
        else:
            yield path, value


@dataclass(frozen=True, slots=True)
class InfillReply(ReplyHead):
    """Renders the answer: one object, or events with objects."""

    options: InfillOptions

    def stream(self) -> "InfillStream":
        return InfillStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        choice = answer.choices[0]
        return self.options.end(choice.text, choice.finish, whole=choice.text)


class InfillStream(ClosingStream):
    """Renders an event for each piece of text, and the last one with the counts."""

    keep_alive = SSE_KEEP_ALIVE

    def __init__(self, options: InfillOptions) -> None:
        super().__init__()
        self._options = options
        self._texts: list[str] = []

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        del request
        self._texts.append(chunk.text)
        if chunk.finish is not None:
            self._is_closed = True
            return [sse_event(self._options.end(chunk.text, chunk.finish, whole="".join(self._texts)))]
        if not chunk.text:
            return ()
        return [sse_event(to_json({"index": 0, "content": chunk.text, "tokens": [], "stop": False, "id_slot": 0}))]

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        return [sse_event(error_body(error))]
