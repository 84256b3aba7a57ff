"""A running server as a `Source`, through OpenAI's streaming API."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from typing import Any

import msgspec

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.errors import Busy, EngineFailed, InvalidRequest, Unavailable, UserError
from headrace.core.generation import (
    ChatPrompt,
    Chunk,
    Finish,
    FinishReason,
    GenerationRequest,
    Grammar,
    InfillPrompt,
    ModelInfo,
    SamplingParams,
)
from headrace.core.sampling_defaults import RecommendedSampling
from headrace.tools.bench.client import judge_status
from headrace.tools.bench.dialects import Unreadable, error_text
from headrace.tools.bench.http1 import CertificateRefused, ConnectionFailed, Exchange, HttpClient, Truncated

_REASONS = {"stop": FinishReason.EOS, "length": FinishReason.LENGTH, "repetition": FinishReason.REPETITION}
_REPEATED = "repetition_detected"
"""`stop_reason` of an answer that repeated itself, of Headrace and vLLM."""
_EXTENDED = frozenset({"headrace", "vllm"})
"""`owned_by` of models whose server has vLLM's fields."""
_MAX_WAITING_CHUNKS = 64
_RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "include_stop": "include_stop_str_in_output",
}
"""Names of sampling parameters in OpenAI's API and its common extensions, where they differ."""
_SENT = (
    *("max_new_tokens", "min_new_tokens", "include_stop", "top_k", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids"),
    *("ignore_eos", "skip_special_tokens"),
)


class _ContextExceeded(InvalidRequest):
    """Prompt and answer do not fit into the server's context."""


class RemoteSource:
    """A `Source` over any server with `/v1/models`, `/v1/chat/completions` and `/v1/completions`."""

    def __init__(
        self, url: str, *, model: str | None = None, api_key: str | None = None, ca_bundle: str | None = None
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url
        self._http = HttpClient(url, headers=headers, ca_bundle=ca_bundle)
        self._wanted = model
        self._is_extended = False
        self.info = ModelInfo(
            name=model or "",
            revision=None,
            family="",
            dtype="",
            kv_dtype="",
            device=url,
            max_model_len=0,
            max_prompt_tokens=0,
            max_num_seqs=0,
            vocab_size=0,
            num_parameters=0,
            has_chat_template=True,
            answer_format=REASONING_TAGS,
            created_s=int(time.time()),
        )
        """The model's facts as far as the server reports them at `start`."""

    async def start(self) -> None:
        """
        Query the served models and select the first, unless one was named.

        Raises:
            Unavailable: no server answers, or its certificate is not accepted.
            UserError: the server requires a key, or has no such model.
        """
        try:
            exchange = await self._http.fetch("GET", "/v1/models")
        except CertificateRefused as error:
            raise Unavailable(str(error)) from error
        except (ConnectionFailed, Truncated, TimeoutError) as error:
            raise Unavailable(f"No server answers: {error}. Is it running, and is the URL right?") from error
        if exchange.status != 200:
            raise UserError(f"{self._url}/v1/models: {judge_status(exchange.status, exchange.content())[1]}")
        rows = json.loads(exchange.content()).get("data", [])
        names = [row["id"] for row in rows]
        if not names and self._wanted is None:
            raise UserError(
                f"{self._url} lists no model. On a platform, `headrace deploy smollm2` creates an endpoint."
            )
        if self._wanted is not None and self._wanted not in names:
            raise UserError(f"The server has no model '{self._wanted}'; it serves {', '.join(names) or 'none'}.")
        row = next(row for row in rows if self._wanted in {None, row["id"]})
        self._is_extended = row.get("owned_by") in _EXTENDED
        self.info = replace(
            self.info,
            name=row["id"],
            max_model_len=row.get("max_model_len", 0),
            has_chat_template=row.get("has_chat_template", True),
            recommended=await self._recommended_sampling(),
        )

    async def _recommended_sampling(self) -> RecommendedSampling:
        """Return what a model server of Headrace recommends in `/info`, which others lack."""
        try:
            exchange = await self._http.fetch("GET", "/info")
            given = json.loads(exchange.content())["headrace"]["recommended_sampling"]
            return msgspec.convert(given, RecommendedSampling)
        except (ConnectionFailed, Truncated, TimeoutError, ValueError, LookupError, TypeError):
            return RecommendedSampling()

    async def close(self, *, deadline_s: float) -> None:  # noqa: ARG002 - closing takes no time here
        await self._http.close()

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """
        Stream the answer. Closing the iterator closes the connection, which stops the server's work.

        Raises:
            InvalidRequest: the server refuses the request; the error has its message.
            Busy: its queue is full.
            Unavailable: no server answers.
            EngineFailed: the response stream broke.
        """
        return self._answer(request) if request.sampling.n == 1 else self._answers(request)

    async def _answers(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream several answers, one request for each: a stream reports the tokens of its choices as one number."""
        queue: asyncio.Queue[Chunk | Exception] = asyncio.Queue(_MAX_WAITING_CHUNKS)

        async def read(index: int) -> None:
            sampling = request.sampling
            seed = None if sampling.seed is None else sampling.seed + index  # each answer has the next one
            single = replace(request, sampling=replace(sampling, n=1, seed=seed))
            try:
                async with aclosing(self._answer(single)) as chunks:
                    async for chunk in chunks:
                        await queue.put(replace(chunk, index=index))
            except Exception as error:  # noqa: BLE001 - an edge: whatever a stream raises is raised to the caller
                await queue.put(error)

        num_left = request.sampling.n
        tasks = [asyncio.create_task(read(index)) for index in range(num_left)]
        try:
            while num_left:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                num_left -= item.finish is not None
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        path, body = request_parts(request, self.info.name, is_extended=self._is_extended)
        bodies = [body]
        if "messages" in body and "max_tokens" in body:
            # For a maximum above what the context has left, which is the default of a chat.
            bodies.append({name: value for name, value in body.items() if name != "max_tokens"})
        for attempt in bodies:
            try:
                async with aclosing(self._stream(path, attempt)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except _ContextExceeded:
                if attempt is bodies[-1]:
                    raise
            else:
                return

    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        try:
            exchange = await self._http.open("POST", path, json.dumps(body).encode())
            try:
                await exchange.started()
                await _check_status(exchange)
                async with aclosing(_chunks(exchange)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                exchange.close()
        except ConnectionFailed as error:
            raise Unavailable(f"The server does not respond: {error}.") from error
        except (Truncated, Unreadable) as error:
            raise EngineFailed(f"The response stream broke: {error}.") from error


async def _check_status(exchange: Exchange) -> None:
    if exchange.status == 200:
        return
    await exchange.finished()
    _, message = judge_status(exchange.status, exchange.content())
    if exchange.status == 429:
        retry_after_s = 1.0
        with suppress(ValueError):  # an HTTP date, which no model server sends
            retry_after_s = max(0.0, float(exchange.headers.get("retry-after", "1")))
        raise Busy(message, retry_after_s=retry_after_s)
    if exchange.status >= 500:
        raise Unavailable(message)
    raise (_ContextExceeded if b'"context_length_exceeded"' in exchange.content() else InvalidRequest)(message)


class _Tags:
    """Puts the reasoning, a field of its own in the server's answer, between tags again."""

    def __init__(self) -> None:
        self._is_reasoning = False

    def text_of(self, delta: dict[str, Any]) -> str:
        """Return the text of a delta, with the tags that it opens and closes."""
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        content = delta.get("content") or ""
        opens, closes = bool(reasoning) and not self._is_reasoning, bool(content) and (self._is_reasoning or reasoning)
        self._is_reasoning = (self._is_reasoning or bool(reasoning)) and not closes
        before, after = REASONING_TAGS.start if opens else "", REASONING_TAGS.end if closes else ""
        return f"{before}{reasoning}{after}{content}"


async def _chunks(exchange: Exchange) -> AsyncGenerator[Chunk, None]:
    reason, tags = FinishReason.EOS, _Tags()
    usage: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0}
    async for line in _lines(exchange):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        value = _decoded(data)
        if value.get("error"):
            raise EngineFailed(error_text(value))
        usage = value.get("usage") or usage
        for choice in value.get("choices", ()):
            reason = _REASONS.get(choice.get("finish_reason") or "", reason)
            if choice.get("stop_reason") == _REPEATED:
                reason = FinishReason.REPETITION
            text = tags.text_of(choice["delta"]) if "delta" in choice else choice.get("text")
            if text:
                yield Chunk(text=text)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
    yield Chunk(finish=Finish(reason=reason, prompt_tokens=prompt, output_tokens=output, cached_tokens=cached))


async def _lines(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    pending = b""
    async with aclosing(exchange.body()) as pieces:
        async for piece in pieces:
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                yield line.strip()
    yield pending.strip()


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Unreadable(f"a line of the stream is not a JSON object: {data[:80]!r}")
    return value


def request_parts(request: GenerationRequest, model: str, *, is_extended: bool = True) -> tuple[str, dict[str, Any]]:
    """
    Return path and body with only the values that differ from defaults, so that other servers accept it.

    A server that `is_extended` has vLLM's fields for constraints and repetition; others ignore or refuse them.

    Raises:
        InvalidRequest: an option cannot be sent to this server, or its answer is not read.
    """
    sampling = request.sampling
    for name in ("best_of", "logprobs", "prompt_logprobs"):
        if getattr(sampling, name) is not None:
            raise InvalidRequest(
                f"`{name}` is {getattr(sampling, name)}; expected it unset for a server (--url). "
                "Load the model in this process instead."
            )
    unset = asdict(SamplingParams())
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        **{_RENAMED.get(name, name): value for name in _SENT if (value := getattr(sampling, name)) != unset[name]},
        **_constraint(sampling.grammar, is_extended=is_extended),
    }
    if sampling.repetition_detection is not None and is_extended:
        body["repetition_detection"] = asdict(sampling.repetition_detection)
    if isinstance(request.prompt, ChatPrompt):
        return "/v1/chat/completions", {**body, "messages": list(request.prompt.messages)}
    if isinstance(request.prompt, InfillPrompt):
        return "/v1/completions", {**body, "prompt": request.prompt.prefix, "suffix": request.prompt.suffix}
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    return "/v1/completions", {**body, "prompt": prompt}


def _constraint(grammar: Grammar | None, *, is_extended: bool) -> dict[str, Any]:
    """Return the field for a constraint: OpenAI's for JSON, vLLM's for the others."""
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind == "json_schema":
        try:
            schema = {"name": "answer", "schema": json.loads(grammar.text)}
        except ValueError as error:
            raise InvalidRequest(f"--json-schema is not JSON: {error}.") from error
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if not is_extended:
        raise InvalidRequest(
            f"The server at --url is neither Headrace nor vLLM, which have a field for `{grammar.kind}`. "
            "Use --json-schema, or load the model in this process."
        )
    return {"structured_outputs": {"regex" if grammar.kind == "regex" else "grammar": grammar.text}}
