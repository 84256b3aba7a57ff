"""
Prompts and pooled inputs as tokens: size checks, chat template, tokenizer, truncation.

The event loop renders and tokenises what takes milliseconds; worker threads do the rest.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from headrace.core.errors import InvalidRequest, PromptTooLong
from headrace.core.generation import (
    ChatPrompt,
    GenerationRequest,
    InfillPrompt,
    PoolingInfo,
    PoolingParams,
    Prompt,
    TextSpan,
)
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.service.turns import end_of_last_user_message
from headrace.inference.engine.service.validation import check_token_ids
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.infill import find_infill, infill_ids
from headrace.inference.models.pooling import Pooler
from headrace.inference.models.render_limits import FULL_LIMITS, INLINE_LIMITS, RenderingTooLong, RenderLimits
from headrace.inference.models.tokenizer import Tokenizer

INLINE_CHARS: Final = 8192
"""Longer prompts are rendered and tokenised on a worker thread."""
_MAX_CHARS_A_TOKEN: Final = 64
"""
Maximum characters per token of the context. Longer texts are refused without tokenising them, which takes 150 ms and
330 MB per megabyte and holds the GIL for much of that.
"""

Side = Literal["left", "right"]
Ids = TypeVar("Ids", list[int], tuple[int, ...])


class InputTokens(NamedTuple):
    """The tokens of a prompt or input."""

    ids: list[int] | tuple[int, ...]
    second_start: int = -1
    """Position of the first token of type 1, for networks with token types; -1: all are of type 0."""
    opening: str = ""
    """The end of a chat's prompt that the answer continues, see `AnswerFormat.opening`."""
    num_turn_tokens: int = 0
    """Tokens of a chat's prompt up to the end of the last user message; 0: unknown."""
    end_ids: frozenset[int] = frozenset()
    """Tokens that end the answer to this prompt, beside those of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParts:
    """The model's tokenizer, chat template, end tokens and pooling."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: frozenset[int]
    pooler: Pooler = field(default_factory=Pooler)


class PromptEncoder:
    """Turns the prompts of requests into tokens; one per engine."""

    def __init__(
        self,
        parts: TextParts,
        limits: EngineLimits,
        *,
        vocab_size: int,
        pooling: PoolingInfo | None,
        finds_turns: bool = False,
    ) -> None:
        """Create an encoder; with `finds_turns`, it finds the end of a chat's last user message."""
        self._tokenizer = parts.tokenizer
        self._chat_template = parts.chat_template
        self._infill = find_infill(parts.tokenizer)
        self._pooler = parts.pooler
        self._limits = limits
        self._vocab_size = vocab_size
        self._pooling = pooling
        self._finds_turns = finds_turns
        self.answer_format = None if parts.chat_template is None else parts.chat_template.answer_format
        """The separators of reasoning in the model's answers, if it has any."""
        self._max_characters = _MAX_CHARS_A_TOKEN * limits.max_model_len

    @property
    def tokenizer_config(self) -> Mapping[str, object]:
        templates = {} if self._chat_template is None else self._chat_template.templates
        config = self._tokenizer.to_config(max_tokens=self._limits.max_model_len)
        return {**config, "chat_template": templates.get("default")}

    def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool | None = None
    ) -> tuple[str, tuple[TextSpan, ...]]:
        text = self._text(prompt, FULL_LIMITS)
        self._check_size(len(text))
        adds = isinstance(prompt, str) if add_special_tokens is None else add_special_tokens
        return text, tuple(self._tokenizer.encode_spans(text, add_special_tokens=adds))

    def detokenize(self, token_ids: tuple[int, ...]) -> str:
        most = self._limits.max_model_len
        if len(token_ids) > most:
            text = f"`tokens` has {len(token_ids)} ids; expected at most {most}, the model's context."
            raise InvalidRequest(f"{text} Send them in parts.", param="tokens")
        if token_ids:
            check_token_ids(token_ids, vocab_size=self._vocab_size, param="tokens")
        return self._tokenizer.decode_whole(token_ids)

    async def encode(self, request: GenerationRequest) -> InputTokens:
        """
        Return the tokens of a prompt, truncated if the request allows it. Ids of the client are not checked.

        Raises:
            InvalidRequest: The prompt is empty or has far too many characters, or there is no chat template.
            PromptTooLong: A pooled input is too long, or a text certainly is.
        """
        prompt, most = request.prompt, request.truncate_prompt_tokens
        if request.pooling is not None:
            return await self._pooled_tokens(prompt, request.pooling)
        if isinstance(prompt, tuple):
            tokens = InputTokens(prompt)
        else:
            encode = partial(self._encode, prompt, can_be_cut=most is not None)
            tokens = await encode_prompt(encode, self._tokenizer, _num_characters(prompt))
        if most is None:
            return tokens
        if most < 1:
            raise InvalidRequest(
                f"`truncate_prompt_tokens` is {most}; expected 1 or more.", param="truncate_prompt_tokens"
            )
        num_cut = max(0, len(tokens.ids) - most)
        return tokens._replace(ids=tokens.ids[-most:], num_turn_tokens=max(0, tokens.num_turn_tokens - num_cut))

    async def _pooled_tokens(self, prompt: Prompt, params: PoolingParams) -> InputTokens:
        assert self._pooling is not None
        assert not isinstance(prompt, InfillPrompt), "inputs to pool have no gap"
        most = min(params.max_tokens or self._pooling.max_tokens, self._pooling.max_tokens)
        if isinstance(prompt, tuple):
            tokens = InputTokens(cut(prompt, most, params.truncate))
        else:
            num_characters = _num_characters(prompt) + len(params.document or "")
            tokens = await encode_prompt(
                partial(self._encode_pooled, prompt, params, most), self._tokenizer, num_characters
            )
        if not tokens.ids:
            raise InvalidRequest("The input is empty; expected at least one token.", param="input")
        if len(tokens.ids) > most:
            raise PromptTooLong(prompt_tokens=len(tokens.ids), max_prompt_tokens=most)
        return tokens

    def _encode_pooled(
        self, prompt: str | ChatPrompt, params: PoolingParams, most: int, limits: RenderLimits
    ) -> InputTokens:
        self._check_size(_num_characters(prompt) + len(params.document or ""))
        if isinstance(prompt, ChatPrompt):
            ids = self._tokenizer.encode(self._text(prompt, limits), add_special_tokens=False)
            return InputTokens(cut(ids, most, params.truncate))
        if len(prompt) > INLINE_CHARS and params.truncate is None:
            self._refuse_huge(prompt)
        template = "" if params.document is None else self._pooler.pair_template
        tokens = encode_input(self._tokenizer, prompt, params.document, template, most=most, side=params.truncate)
        return tokens if self._pooler.has_token_types else InputTokens(tokens.ids)

    def _encode(
        self, prompt: str | ChatPrompt | InfillPrompt, limits: RenderLimits, *, can_be_cut: bool
    ) -> InputTokens:
        if isinstance(prompt, InfillPrompt):
            return self._encode_infill(prompt)
        text = self._text(prompt, limits)
        if len(text) > INLINE_CHARS and not can_be_cut:
            self._refuse_huge(text)
        self._check_size(len(text))
        ids = self._tokenizer.encode(text, add_special_tokens=isinstance(prompt, str))
        if not ids:
            if self._tokenizer.bos_token_id is None:
                raise InvalidRequest("The prompt is empty; expected at least one token.", param="prompt")
            ids = [self._tokenizer.bos_token_id]
        if isinstance(prompt, str):
            return InputTokens(ids)
        opening = "" if self.answer_format is None else self.answer_format.opening(text)
        return InputTokens(ids, opening=opening, num_turn_tokens=self._turn_tokens(prompt, text, len(ids)))

    def _encode_infill(self, prompt: InfillPrompt) -> InputTokens:
        if self._infill is None:
            raise InvalidRequest(
                "This model has no tokens for fill-in-the-middle. Leave the suffix out, or serve a model that was "
                "trained for it, such as Qwen2.5-Coder or StarCoder2.",
                param="suffix",
            )
        self._check_size(_num_characters(prompt))
        for text in (prompt.prefix, prompt.suffix):
            if len(text) > INLINE_CHARS:
                self._refuse_huge(text)
        ids = infill_ids(self._tokenizer, self._infill, prompt, most=self._limits.max_prompt_tokens)
        return InputTokens(ids, end_ids=self._infill.end_ids)

    def _turn_tokens(self, prompt: ChatPrompt, text: str, num_tokens: int) -> int:
        """Return the tokens up to the end of the last user message: all but those of the text after it."""
        end = end_of_last_user_message(prompt.messages, text) if self._finds_turns else -1
        return 0 if end < 0 else num_tokens - len(self._tokenizer.encode(text[end:], add_special_tokens=False))

    def _text(self, prompt: str | ChatPrompt, limits: RenderLimits) -> str:
        """Return a text as it is, and a chat as its template renders it."""
        if isinstance(prompt, str):
            return prompt
        self._check_size(_num_characters(prompt))
        if self._chat_template is None:
            raise InvalidRequest(
                "This model has no chat template. Send plain text, or start the server with --chat-template.",
                param="messages",
            )
        return self._chat_template.render(prompt, limits=limits)

    def _refuse_huge(self, text: str) -> None:
        """Refuse a text that cannot fit, without tokenising it."""
        most = self._limits.max_prompt_tokens
        least = self._tokenizer.min_tokens(text[: 4 * self._max_characters])
        if least > most:
            raise PromptTooLong(prompt_tokens=least, max_prompt_tokens=most, is_exact=False)

    def _check_size(self, num_characters: int) -> None:
        """Refuse a text that would take too long to tokenise."""
        if num_characters > self._max_characters:
            raise InvalidRequest(
                f"The text has {num_characters} characters; expected at most {self._max_characters}, "
                f"{_MAX_CHARS_A_TOKEN} for each token of the model's context. Send it in parts.",
                param="prompt",
            )


async def encode_prompt(
    encode: Callable[[RenderLimits], InputTokens], tokenizer: Tokenizer, num_characters: int
) -> InputTokens:
    """Render and tokenise a short prompt at once, unless it may take long; a long one on a worker thread."""
    if num_characters <= INLINE_CHARS and not tokenizer.may_backtrack:
        with suppress(RenderingTooLong):
            return encode(INLINE_LIMITS)
    return await asyncio.to_thread(encode, FULL_LIMITS)


def cut(ids: Ids, most: int, side: Side | None) -> Ids:
    """Return at most `most` tokens: the first ones if the right side is cut; all of them if `side` is None."""
    if side is None or len(ids) <= most:
        return ids
    return ids[:most] if side == "right" else ids[len(ids) - most :]


def encode_input(
    tokenizer: Tokenizer, text: str, document: str | None, pair_template: str, *, most: int, side: Side | None
) -> InputTokens:
    """
    Return the tokens of a text or of a query with its document; with `side`, at most `most` of them.

    Special tokens and the query are never cut. A pair is filled into the template of the model, or becomes two
    segments.
    """
    limit = most if side is not None else None
    if document is None or not pair_template:
        return InputTokens(*tokenizer.encode_segments(text, document, most=limit, side=side or "right"))
    before, after = (part.replace("{query}", text) for part in pair_template.split("{document}"))
    ids = tokenizer.encode(f"{before}{document}{after}", add_special_tokens=False)
    if limit is None or len(ids) <= limit:
        return InputTokens(ids)
    head, middle, tail = (tokenizer.encode(part, add_special_tokens=False) for part in (before, document, after))
    return InputTokens([*head, *cut(middle, max(0, limit - len(head) - len(tail)), side), *tail])


def _num_characters(prompt: str | ChatPrompt | InfillPrompt) -> int:
    """Return the approximate length of a prompt's text."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, InfillPrompt):
        return len(prompt.prefix) + len(prompt.suffix) + sum(len(path) + len(text) for path, text in prompt.files)
    return len(msgspec.json.encode((prompt.messages, prompt.tools, prompt.template_values)))
