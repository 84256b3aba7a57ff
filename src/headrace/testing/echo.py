"""
A backend without a model: it answers with the words of the prompt.

It implements the whole `Backend` contract (limits, stop strings, logprobs, choices, seeds, cancellation, shutdown), is
deterministic, and can be scripted to be slow or to fail. Constrained output and sampling parameters are ignored.
`headrace.testing.server` serves it over HTTP.
"""

import asyncio
import json
import math
import re
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.engine_stats import EngineStats
from headrace.core.errors import ContextTooLong, HeadraceError, InvalidRequest, NotFound, PromptTooLong, Unavailable
from headrace.core.generation import (
    AdapterInfo,
    ChatPrompt,
    Chunk,
    Finish,
    FinishReason,
    GenerationRequest,
    InfillPrompt,
    ModelInfo,
    Prompt,
    SamplingParams,
    TextSpan,
    Token,
    TokenLogprob,
)
from headrace.core.sampling_defaults import RecommendedSampling
from headrace.inference.engine.backend import Drain, Take, relay_chunks
from headrace.testing.answers import Answer
from headrace.testing.echo_pooling import pooled_chunk, pooling_info

VOCAB_SIZE = 50_000
EOS_ID = 2
EOS_TEXT = "</s>"
FALLBACK_WORDS = ("Hello", " from", " the", " echo", ".")
"""The answer to a prompt without words (token ids or an empty text)."""

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}\nassistant:{% endif %}"
)
"""The chat template, as `/tokenizer_info` shows it."""

_PIECE = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoScript:
    """The behaviour of an `EchoBackend`; replace `EchoBackend.script` between requests."""

    delay_s: float = 0.0
    """Delay before each token; 0 only yields to the event loop."""
    refusal: HeadraceError | None = None
    """Raised instead of the first chunk."""
    fail_after_tokens: int | None = None
    """End with an ERROR chunk after this many tokens."""
    answer: Callable[[Prompt], str | Answer] | None = None
    """Returns an answer (`in_turns` makes such a function); None: it repeats the words of the prompt."""
    start_failure: HeadraceError | None = None
    """Raised by `start`."""
    start_delay_s: float = 0.0
    """Duration of `start`."""


class EchoBackend:
    """A `Backend` that repeats the prompt, one token per word."""

    def __init__(
        self,
        *,
        name: str = "echo",
        max_model_len: int = 2048,
        max_prompt_tokens: int | None = None,
        script: EchoScript | None = None,
        generates: bool = True,
        has_chat_template: bool = True,
        answer_format: AnswerFormat | None = None,
        labels: tuple[str, ...] = (),
    ) -> None:
        self.script = script or EchoScript()
        self.is_healthy = True
        self.requests: list[GenerationRequest] = []
        """All requests, oldest first."""
        self.aborted: list[str] = []
        """Ids of requests that were closed before their end."""
        self._adapters: dict[str, AdapterInfo] = {}
        self._running: set[str] = set()
        self._closing = False
        self._stop_now = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._words = {EOS_ID: EOS_TEXT}
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._info = ModelInfo(
            name=name,
            revision="echo-1",
            family="echo",
            dtype="bf16",
            kv_dtype="bf16",
            device="cpu (echo)",
            max_model_len=max_model_len,
            max_prompt_tokens=max_prompt_tokens if max_prompt_tokens is not None else max_model_len - 1,
            max_num_seqs=64,
            vocab_size=VOCAB_SIZE,
            num_parameters=0,
            has_chat_template=has_chat_template,
            tool_support="generic" if has_chat_template else None,
            answer_format=answer_format,
            created_s=int(time.time()),
            recommended=RecommendedSampling(temperature=0.7, top_k=40),
            max_batch_tokens=512,
            generates=generates,
            pooling=pooling_info(labels, max_tokens=max_model_len),
        )

    @property
    def info(self) -> ModelInfo:
        """The name and limits that are served."""
        return self._info

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The adapters that were loaded."""
        return tuple(self._adapters.values())

    async def load_adapter(self, name: str, path: Path, *, replaces: bool = False) -> AdapterInfo:
        """Remember an adapter, whose answers are those of the model."""
        if name in self._adapters and not replaces:
            raise InvalidRequest(f"The adapter `{name}` has already been loaded.", param="name")
        self._adapters[name] = AdapterInfo(name=name, path=str(path), rank=8, created_s=int(time.time()))
        return self._adapters[name]

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter."""
        if self._adapters.pop(name, None) is None:
            raise NotFound(f"The adapter `{name}` is not loaded.")

    def stats(self) -> EngineStats:
        """Return the current load; every running request holds one block."""
        return EngineStats(
            num_running=len(self._running),
            num_blocks=64,
            num_free_blocks=64 - len(self._running),
            prompt_tokens_total=self._prompt_tokens,
            output_tokens_total=self._output_tokens,
            steps_total=self._output_tokens,
        )

    @property
    def tokenizer_config(self) -> Mapping[str, object]:
        """The end token, and the chat template as Jinja."""
        template = TEMPLATE if self._info.has_chat_template else None
        return {"tokenizer_class": "EchoTokenizer", "eos_token": EOS_TEXT, "chat_template": template}

    def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool | None = None
    ) -> tuple[str, tuple[TextSpan, ...]]:
        """Return the text and one token per word, with the space before it; an end token on request only."""
        text = prompt if isinstance(prompt, str) else _render(prompt)
        words = [(found.group(), found.start(), found.end()) for found in _PIECE.finditer(text)]
        self._words |= {_token_id(word): word for word, _, _ in words}
        spans = [
            TextSpan(id=_token_id(word), text=word, start=start, stop=stop, piece=word) for word, start, stop in words
        ]
        if add_special_tokens:
            spans.append(TextSpan(id=EOS_ID, text="", start=len(text), stop=len(text), piece=EOS_TEXT))
        return text, tuple(spans)

    def detokenize(self, token_ids: tuple[int, ...]) -> str:
        """Return the words of tokens that `tokenize` has returned."""
        unknown = next((index for index in token_ids if index not in self._words), None)
        if unknown is not None:
            raise InvalidRequest(f"tokens is {unknown}; expected ids of known words.", param="tokens")
        return "".join(self._words[index] for index in token_ids)

    async def start(self) -> None:
        """Wait or fail as scripted."""
        await asyncio.sleep(self.script.start_delay_s)
        if self.script.start_failure is not None:
            raise self.script.start_failure

    async def close(self, *, deadline_s: float) -> None:
        """Let running requests finish until the deadline, then abort them."""
        self._closing = True
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            self._stop_now = True
            await self._idle.wait()

    async def relay(self, request: GenerationRequest, take: Take, drain: Drain) -> None:
        """Relay the chunks of `generate`; see `Backend.relay`."""
        await relay_chunks(self.generate(request), take, drain)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Answer with the words of the prompt; see `Backend.generate`."""
        self._check(request)
        self.requests.append(request)
        self._running.add(request.request_id)
        self._idle.clear()
        open_choices = set(range(request.sampling.n))
        try:
            for chunk in self._chunks(request):
                await asyncio.sleep(self.script.delay_s)
                if self._stop_now:
                    break
                self._output_tokens += len(chunk.tokens)
                if chunk.finish is not None:
                    open_choices.discard(chunk.index)
                yield chunk
            for index in sorted(open_choices):
                yield _aborted(index)
        finally:
            if open_choices:
                self.aborted.append(request.request_id)
            self._running.discard(request.request_id)
            if not self._running:
                self._idle.set()

    def _check(self, request: GenerationRequest) -> None:
        if request.pooling is None and not self._info.generates:
            raise InvalidRequest("This echo generates no text.")
        if self._closing:
            raise Unavailable("The server is shutting down.")
        if self.script.refusal is not None:
            raise self.script.refusal
        if request.adapter is not None and request.adapter not in self._adapters:
            raise NotFound(f"The adapter `{request.adapter}` is not loaded.")
        if request.sampling.n < 1:
            raise InvalidRequest(f"n is {request.sampling.n}; expected at least 1.", param="n")
        prompt_tokens = len(self._prompt_pieces(request))
        most = self._info.max_prompt_tokens if request.pooling is None else self._info.max_model_len
        if prompt_tokens > most:
            raise PromptTooLong(prompt_tokens=prompt_tokens, max_prompt_tokens=most)
        max_new_tokens = None if request.sampling.is_cut_at_context else request.sampling.max_new_tokens
        if max_new_tokens is not None and prompt_tokens + max_new_tokens > self._info.max_model_len:
            raise ContextTooLong(
                prompt_tokens=prompt_tokens,
                max_new_tokens=max_new_tokens,
                max_total_tokens=self._info.max_model_len,
            )
        self._prompt_tokens += prompt_tokens

    def _prompt_pieces(self, request: GenerationRequest) -> Sequence[str]:
        if isinstance(request.prompt, tuple):
            pieces: Sequence[str] = [f" {token_id}" for token_id in request.prompt]
        else:
            pieces = _PIECE.findall(request.prompt if isinstance(request.prompt, str) else _render(request.prompt))
        keep = request.truncate_prompt_tokens
        return pieces if keep is None else pieces[-keep:]

    def _chunks(self, request: GenerationRequest) -> Iterator[Chunk]:
        """Yield the chunks of all choices in turns, as in a batch."""
        sampling = request.sampling
        pieces = self._prompt_pieces(request)
        if request.pooling is not None:
            yield pooled_chunk(request.pooling, pieces, self._info.pooling)
            return
        room = min(self._info.max_model_len, sampling.max_total_tokens or self._info.max_model_len) - len(pieces)
        limit = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room)
        script = self.script.answer
        words = _words_of(request.prompt) if script is None else tuple(_PIECE.findall(str(script(request.prompt))))
        prompt, asks_ids = None, sampling.returns_prompt_ids
        if sampling.prompt_logprobs is not None:
            prompt = tuple(_token(piece, sampling.prompt_logprobs) for piece in pieces)
        turns = [
            _choice(index, words[index % len(words) :] + words[: index % len(words)], sampling, len(pieces), limit)
            for index in range(sampling.n)
        ]
        if self.script.fail_after_tokens is not None:
            turns = [_broken(turn, self.script.fail_after_tokens) for turn in turns]
        for position in range(max(map(len, turns))):
            for turn in turns:
                if position < len(turn):
                    ids = tuple(_token(piece, None).id for piece in pieces) if asks_ids and not position else None
                    yield replace(turn[position], prompt=prompt, prompt_ids=ids)
                    prompt = None


def _choice(
    index: int, words: tuple[str, ...], sampling: SamplingParams, prompt_tokens: int, limit: int
) -> list[Chunk]:
    """Return the chunks of one answer: one per word, cut at the first stop string, the last with `finish`."""
    ends_by_itself = len(words) < limit and not sampling.ignore_eos
    pieces = list(words) if ends_by_itself else [words[position % len(words)] for position in range(limit)]
    tokens = [_token(piece, sampling.logprobs) for piece in pieces]
    reason, stop, end = FinishReason.LENGTH, None, len("".join(pieces))
    if ends_by_itself:
        tokens.append(_end_token(sampling))
        reason = FinishReason.EOS
    text = "".join(pieces)
    found = min(((text.find(stop), stop) for stop in sampling.stop if stop in text), default=None)
    if found is not None:
        reason, stop = FinishReason.STOP, found[1]
        end = found[0] + (len(stop) if sampling.include_stop else 0)
    chunks: list[Chunk] = []
    position = 0
    for token in tokens:
        visible = token.text if not token.special else ""
        chunks.append(_chunk(index, token, visible[: max(0, end - position)], sampling))
        position += len(visible)
        if found is not None and position >= found[0] + len(found[1]):
            break
    finish = Finish(
        reason=reason,
        prompt_tokens=prompt_tokens,
        output_tokens=len(chunks),
        seed=None if sampling.temperature == 0.0 else (7 if sampling.seed is None else sampling.seed),
        stop=stop,
    )
    return [*chunks[:-1], replace(chunks[-1], finish=finish)]


def _chunk(index: int, token: Token, text: str, sampling: SamplingParams) -> Chunk:
    if token.special:
        return Chunk(index=index, text="" if sampling.skip_special_tokens else token.text, tokens=(token,))
    return Chunk(index=index, text=text, tokens=(replace(token, text=text),))


def _broken(chunks: list[Chunk], num_tokens: int) -> list[Chunk]:
    """Return the same answer, failing after `num_tokens`."""
    last = chunks[-1].finish
    if len(chunks) <= num_tokens or last is None:
        return chunks
    finish = replace(last, reason=FinishReason.ERROR, output_tokens=num_tokens, message="The echo broke.", stop=None)
    return [*chunks[:num_tokens], Chunk(index=chunks[0].index, finish=finish)]


def _end_token(sampling: SamplingParams) -> Token:
    logprob = -0.01 if sampling.logprobs is not None else None
    return Token(EOS_ID, EOS_TEXT, logprob=logprob, special=True, raw=EOS_TEXT.encode())


def _aborted(index: int) -> Chunk:
    finish = Finish(
        reason=FinishReason.ABORT, prompt_tokens=0, output_tokens=0, message="The server shut down before the end."
    )
    return Chunk(index=index, finish=finish)


def _words_of(prompt: Prompt) -> tuple[str, ...]:
    if isinstance(prompt, tuple):
        return FALLBACK_WORDS
    if isinstance(prompt, InfillPrompt):
        text = prompt.prefix
    else:
        text = prompt if isinstance(prompt, str) else _content(prompt.messages[-1]) if prompt.messages else ""
    return tuple(_PIECE.findall(text)) or FALLBACK_WORDS


def _content(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else json.dumps(content)


def _render(prompt: ChatPrompt | InfillPrompt) -> str:
    if isinstance(prompt, InfillPrompt):
        return prompt.prefix + prompt.suffix
    lines = [f"{message.get('role')}: {_content(message)}" for message in prompt.messages]
    return "\n".join([*lines, "assistant:"] if prompt.add_generation_prompt else lines)


def _token_id(text: str) -> int:
    """Return a stable token id for a word, above the special tokens."""
    return 3 + zlib.crc32(text.encode()) % (VOCAB_SIZE - 3)


def _token(text: str, logprobs: int | None) -> Token:
    token_id = _token_id(text)
    raw = text.encode()
    if logprobs is None:
        return Token(token_id, text, raw=raw)
    logprob = -math.log(1 + token_id % 9)
    others = tuple(
        TokenLogprob(3 + (token_id + rank) % (VOCAB_SIZE - 3), f" other{rank}", logprob - rank)
        for rank in range(1, logprobs)
    )
    top = (TokenLogprob(token_id, text, logprob), *others) if logprobs else ()
    return Token(token_id, text, logprob=logprob, top=top, raw=raw, rank=1)
