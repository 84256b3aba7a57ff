"""
Responses in the forms that custom output formatters of DJL Serving get. Pure.

Formatters of LMI 15 and later get the response of vLLM's OpenAI server, also for bodies with `inputs`; whole as an
object, streamed as server-sent events. Those of rolling batches get one token at a time.
Sources: DJL Serving `vllm_async_service.py`, `request_response_utils.py`, `rolling_batch/rolling_batch.py`.
"""

from collections.abc import Iterator
from dataclasses import replace

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, Finish, GenerationRequest, Token
from headrace.serving.wire.answers import finite_logprob
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.framing import field_names, to_json
from headrace.serving.wire.lmi.reply import LmiReply
from headrace.serving.wire.openai.chat import ChatReply
from headrace.serving.wire.openai.completions import CompletionsOptions, CompletionsReply
from headrace.serving.wire.openai.envelope import Envelope

_NO_TOKEN = Token(0, "", None)
"""The last token of a response that ended without one."""


def for_responses(parsed: ParsedRequest, context: RequestContext) -> ParsedRequest:
    """Return a parsed body whose reply has the form of vLLM's server; dialects other than LMI's keep theirs."""
    reply = parsed.reply
    if isinstance(reply, LmiReply):
        return _as_completion(parsed, reply, context)
    if isinstance(reply, ChatReply):
        envelope = replace(reply.options.envelope, framing="sse")
        return replace(parsed, reply=ChatReply(replace(reply.options, envelope=envelope)))
    if isinstance(reply, CompletionsReply):
        envelope = replace(reply.options.envelope, framing="sse")
        return replace(parsed, reply=CompletionsReply(replace(reply.options, envelope=envelope)))
    return parsed


def _as_completion(parsed: ParsedRequest, reply: LmiReply, context: RequestContext) -> ParsedRequest:
    options = reply.options
    shows_tokens = options.stream or options.details
    envelope = Envelope(
        id=f"cmpl-{context.request_id}",
        created_s=context.created_s,
        model=context.model,
        framing="sse",
        stream=options.stream,
        include_usage=options.stream,
    )
    completion = CompletionsOptions(
        envelope=envelope,
        num_choices=parsed.requests[0].sampling.n,
        num_top_logprobs=1 if shows_tokens else None,
        echoes=options.prompts if options.return_full_text else None,
        with_special=options.with_special,
    )
    needs_prompt = shows_tokens and options.return_full_text
    requests = tuple(
        _with_logprobs(request, 1, prompt_logprobs=1 if needs_prompt else None) if shows_tokens else request
        for request in parsed.requests
    )
    return replace(parsed, requests=requests, reply=CompletionsReply(completion))


def for_tokens(parsed: ParsedRequest) -> ParsedRequest:
    """Return a parsed body whose tokens have logprobs. Raises `InvalidRequest`: it asks for more than one sequence."""
    if len(parsed.requests) > 1 or max(parsed.requests[0].sampling.n, parsed.requests[0].sampling.best_of or 1) > 1:
        raise InvalidRequest("The model's output formatter takes one sequence; expected one input and n of 1.")
    return replace(parsed, requests=(_with_logprobs(parsed.requests[0], 0),))


def _with_logprobs(request: GenerationRequest, least: int, *, prompt_logprobs: int | None = None) -> GenerationRequest:
    sampling = request.sampling
    logprobs = max(least, sampling.logprobs or 0)
    needed = sampling.prompt_logprobs if prompt_logprobs is None else prompt_logprobs
    return replace(request, sampling=replace(sampling, logprobs=logprobs, prompt_logprobs=needed))


class TokenSteps:
    """The tokens of one response as a formatter gets them, in JSON; the first one includes the parsed payload."""

    def __init__(self, payload: bytes | None, *, with_special: bool) -> None:
        if payload is not None and not field_names(payload):  # such as TorchServe's, which is the prompt
            payload = to_json({"inputs": payload.decode("utf-8", "replace")})
        self._payload = payload
        self._with_special = with_special
        self._num_tokens = 0

    def chunk(self, chunk: Chunk, *, request: int = 0) -> Iterator[bytes]:
        """Yield one step for each token of a chunk; the last chunk has at least one."""
        assert request == 0, "a formatter takes one sequence"
        tokens = chunk.tokens or ((_NO_TOKEN,) if chunk.finish is not None else ())
        for number, token in enumerate(tokens, start=1):
            yield self._step(token, chunk.finish if number == len(tokens) else None)

    def _step(self, token: Token, finish: Finish | None) -> bytes:
        shown = {
            "id": token.id,
            "text": "" if token.special and not self._with_special else token.text,
            "log_prob": finite_logprob(token.logprob),
            "special_token": token.special or None,
        }
        reason = None if finish is None else finish.reason.value
        step = to_json({"index": self._num_tokens, "token": shown, "finish_reason": reason})
        self._num_tokens += 1
        if self._num_tokens == 1 and self._payload is not None:
            return b'%b,"input":%b}' % (step[:-1], self._payload)
        return step
