"""
Conversion of a request to choices that the engine can run: checks, chat template, tokens, grammar, seeds.

Runs on the event loop; long prompts and grammars are processed on other threads.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import msgspec
import numpy as np

from headrace.core.errors import InvalidRequest, PromptTooLong
from headrace.core.generation import (
    ChatPrompt,
    GenerationRequest,
    PoolingInfo,
    PoolingParams,
    SamplingParams,
    TextSpan,
)
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.blocks import root_hash
from headrace.inference.engine.core.choice import Choice, prompt_token
from headrace.inference.engine.core.pooling import SequencePool
from headrace.inference.engine.core.repetition import RepetitionDetector
from headrace.inference.engine.core.row_extras import make_extras
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.service.adapters import LoadedAdapter
from headrace.inference.engine.service.answer_start import AnswerStart
from headrace.inference.engine.service.encoding_threads import INLINE_CHARS, encode_prompt
from headrace.inference.engine.service.pooled_inputs import InputTokens, cut, encode_input
from headrace.inference.engine.service.validation import check_lengths, check_pooling, check_sampling, check_token_ids
from headrace.inference.engine.structured_output.compiler import GrammarCompiler
from headrace.inference.engine.structured_output.state import Constraint
from headrace.inference.engine.text.answer import AnswerText
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.pooling import Pooler
from headrace.inference.models.render_limits import FULL_LIMITS, RenderLimits
from headrace.inference.models.tokenizer import Tokenizer

_MAX_CHARS_A_TOKEN = 64
"""
Maximum characters per token of the context. Longer texts are refused without tokenising them, which takes 150 ms and
330 MB per megabyte and holds the GIL for much of that.
"""
_ROUTES = {"embeddings": "/v1/embeddings or /embed", "scores": "/rerank, /score or /predict"}
_SEED_BITS = 53
"""Bits of random seeds: JSON readers that use doubles keep them exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParts:
    """The model's tokenizer, chat template, end tokens and pooling."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: frozenset[int]
    pooler: Pooler = field(default_factory=Pooler)


class RequestProcessor:
    """Validates, tokenises and compiles requests; one per engine."""

    def __init__(
        self,
        parts: TextParts,
        table: TokenTable,
        limits: EngineLimits,
        *,
        vocab_size: int,
        generates: bool = True,
        pooling: PoolingInfo | None = None,
        delays_grammars: bool = True,
    ) -> None:
        self._tokenizer = parts.tokenizer
        self._chat_template = parts.chat_template
        self._eos_token_ids = parts.eos_token_ids
        self._table = table
        self._limits = limits
        self._vocab_size = vocab_size
        self._grammars = GrammarCompiler(
            parts.tokenizer, vocab_size=vocab_size, timeout_s=limits.request.grammar_timeout_s
        )
        self._arrival_ids = count()
        self._generates = generates
        self._pooler = parts.pooler
        self._pooling = pooling
        self._answers = AnswerStart(
            self._chat_template.answer_format if self._chat_template is not None else None,
            table,
            parts.tokenizer,
            self._eos_token_ids,
            self._grammars,
            delays_grammars=delays_grammars,
        )

    def check(self, request: GenerationRequest) -> None:
        """Raise `InvalidRequest` if a parameter is out of range, or the model does not support the request."""
        if request.pooling is not None:
            check_pooling(request.pooling, self._pooling)
        elif not self._generates:
            kind = "scores" if self._pooling is not None and self._pooling.labels else "embeddings"
            raise InvalidRequest(
                f"This server computes {kind} and generates no text. Use {_ROUTES[kind]}, or serve a model for "
                "generation with --task generate."
            )
        else:
            check_sampling(request.sampling, self._limits, vocab_size=self._vocab_size)

    async def prepare(
        self, request: GenerationRequest, owner: object, *, now_s: float, adapter: LoadedAdapter | None = None
    ) -> list[Choice]:
        """
        Return one `Choice` per candidate answer.

        Raises:
            InvalidRequest: A value is out of range, the grammar is not valid or there is no chat template.
            PromptTooLong, ContextTooLong: The prompt is too long, alone or with the answer.
        """
        self.check(request)
        token_ids, second_start, opening = await self._prompt_tokens(request)
        params = request.sampling
        if request.pooling is None:
            max_total_tokens = check_lengths(len(token_ids), params, self._limits)
        else:
            max_total_tokens = self._pooled_length(len(token_ids))
        if isinstance(token_ids, tuple):  # after the length check: there may be millions
            check_token_ids(token_ids, vocab_size=self._vocab_size)
        constraint = await self._answers.constraint(request, opening)
        tokens = np.empty(max_total_tokens, np.int32)
        tokens[: len(token_ids)] = token_ids
        make = _ChoiceMaker(
            self._table,
            self._eos_token_ids,
            request,
            owner,
            tokens,
            len(token_ids),
            self._root(request, adapter),
            now_s,
            self._pooler,
            -1 if adapter is None else adapter.slot,
            second_start,
            self._answers.opening(request, opening),
            self._answers.shown_ids(request),
        )
        return list(make.choices(self._arrival_ids, constraint))

    @property
    def tokenizer_config(self) -> Mapping[str, object]:
        """The tokenizer's settings; see `Backend.tokenizer_config`."""
        templates = {} if self._chat_template is None else self._chat_template.templates
        config = self._tokenizer.to_config(max_tokens=self._limits.max_model_len)
        return {**config, "chat_template": templates.get("default")}

    def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool | None = None
    ) -> tuple[str, tuple[TextSpan, ...]]:
        """Return the text after the chat template and its tokens; see `Backend.tokenize`."""
        self._check_size(_num_characters(prompt))
        is_chat = isinstance(prompt, ChatPrompt)
        text = self._render(prompt, FULL_LIMITS) if isinstance(prompt, ChatPrompt) else prompt
        self._check_size(len(text))
        adds = not is_chat if add_special_tokens is None else add_special_tokens
        return text, tuple(self._tokenizer.encode_spans(text, add_special_tokens=adds))

    def detokenize(self, token_ids: tuple[int, ...]) -> str:
        """Return the text of tokens; see `Backend.detokenize`."""
        most = self._limits.max_model_len
        if len(token_ids) > most:
            text = f"`tokens` has {len(token_ids)} ids; expected at most {most}, the model's context."
            raise InvalidRequest(f"{text} Send them in parts.", param="tokens")
        if token_ids:
            check_token_ids(token_ids, vocab_size=self._vocab_size, param="tokens")
        return self._tokenizer.decode_whole(token_ids)

    async def build_grammar_vocabulary(self) -> None:
        """Build the vocabulary for grammars; see `GrammarCompiler.build_vocabulary`."""
        await self._grammars.build_vocabulary()

    def close(self) -> None:
        """Stop the grammar threads."""
        self._grammars.close()

    def _pooled_length(self, num_tokens: int) -> int:
        """Return the length of a pooled input; raise `PromptTooLong` if it is too long."""
        assert self._pooling is not None
        if num_tokens > self._pooling.max_tokens:
            raise PromptTooLong(prompt_tokens=num_tokens, max_prompt_tokens=self._pooling.max_tokens)
        return num_tokens

    async def _prompt_tokens(self, request: GenerationRequest) -> InputTokens:
        if request.pooling is not None:
            return await self._pooled_tokens(request.prompt, request.pooling)
        prompt = request.prompt
        can_be_cut = request.truncate_prompt_tokens is not None
        if isinstance(prompt, tuple):
            tokens = InputTokens(prompt)
        else:
            tokens = await encode_prompt(partial(self._encode, prompt, can_be_cut=can_be_cut), _num_characters(prompt))
        if request.truncate_prompt_tokens is not None:
            if request.truncate_prompt_tokens < 1:
                raise InvalidRequest(
                    f"`truncate_prompt_tokens` is {request.truncate_prompt_tokens}; expected 1 or more.",
                    param="truncate_prompt_tokens",
                )
            return tokens._replace(ids=tokens.ids[-request.truncate_prompt_tokens :])
        return tokens

    async def _pooled_tokens(self, prompt: str | tuple[int, ...] | ChatPrompt, params: PoolingParams) -> InputTokens:
        """Return the tokens of a pooled input, truncated if the request allows it."""
        assert self._pooling is not None
        most = min(params.max_tokens or self._pooling.max_tokens, self._pooling.max_tokens)
        if isinstance(prompt, tuple):
            tokens = InputTokens(cut(prompt, most, params.truncate))
        else:
            num_characters = _num_characters(prompt) + len(params.document or "")
            tokens = await encode_prompt(partial(self._encode_pooled, prompt, params, most), num_characters)
        if not tokens.ids:
            raise InvalidRequest("The input is empty; expected at least one token.", param="input")
        if len(tokens.ids) > most:
            raise PromptTooLong(prompt_tokens=len(tokens.ids), max_prompt_tokens=most)
        return tokens

    def _encode_pooled(
        self, prompt: str | ChatPrompt, params: PoolingParams, most: int, *, limits: RenderLimits
    ) -> InputTokens:
        self._check_size(_num_characters(prompt) + len(params.document or ""))
        if isinstance(prompt, ChatPrompt):
            ids = self._tokenizer.encode(self._render(prompt, limits), add_special_tokens=False)
            return InputTokens(cut(ids, most, params.truncate))
        if len(prompt) > INLINE_CHARS and params.truncate is None:
            self._refuse_huge(prompt)
        template = "" if params.document is None else self._pooler.pair_template
        tokens = encode_input(self._tokenizer, prompt, params.document, template, most=most, side=params.truncate)
        return tokens if self._pooler.has_token_types else InputTokens(tokens.ids)

    def _encode(self, prompt: str | ChatPrompt, *, can_be_cut: bool, limits: RenderLimits) -> InputTokens:
        is_chat = isinstance(prompt, ChatPrompt)
        if isinstance(prompt, ChatPrompt):
            self._check_size(_num_characters(prompt))
            text = self._render(prompt, limits)
        else:
            text = prompt
        if len(text) > INLINE_CHARS and not can_be_cut:
            self._refuse_huge(text)
        self._check_size(len(text))
        ids = self._tokenizer.encode(text, add_special_tokens=not is_chat)
        if not ids:
            if self._tokenizer.bos_token_id is None:
                raise InvalidRequest("The prompt is empty; expected at least one token.", param="prompt")
            ids = [self._tokenizer.bos_token_id]
        return InputTokens(ids, opening=self._answers.end_of(text) if is_chat else "")

    def _refuse_huge(self, text: str) -> None:
        """Refuse a text that cannot fit, without tokenising it."""
        most = self._limits.max_prompt_tokens
        least = self._tokenizer.min_tokens(text[: 4 * self._max_characters])
        if least > most:
            raise PromptTooLong(prompt_tokens=least, max_prompt_tokens=most, is_exact=False)

    @property
    def _max_characters(self) -> int:
        return _MAX_CHARS_A_TOKEN * self._limits.max_model_len

    def _check_size(self, num_characters: int) -> None:
        """Refuse a text that would take too long to tokenise."""
        most = self._max_characters
        if num_characters > most:
            raise InvalidRequest(
                f"The text has {num_characters} characters; expected at most {most}, {_MAX_CHARS_A_TOKEN} for each "
                "token of the model's context. Send it in parts.",
                param="prompt",
            )

    def _render(self, prompt: ChatPrompt, limits: RenderLimits) -> str:
        if self._chat_template is None:
            raise InvalidRequest(
                "This model has no chat template. Send plain text, or start the server with --chat-template.",
                param="messages",
            )
        return self._chat_template.render(prompt, limits=limits)

    def _root(self, request: GenerationRequest, adapter: LoadedAdapter | None) -> bytes:
        """Return the root hash; without prefix caching the choices of a request still share blocks with each other."""
        if self._limits.enable_prefix_caching:
            prefix = "" if adapter is None else f"adapter:{adapter.identity}:"  # by content: names are reused
            return root_hash(f"{prefix}salt:{request.cache_salt}")
        return root_hash(f"request:{secrets.token_hex(16)}")


@dataclass(frozen=True, slots=True)
class _ChoiceMaker:
    """Creates the choices of one request from their common parts."""

    table: TokenTable
    eos_token_ids: frozenset[int]
    request: GenerationRequest
    owner: object
    tokens: np.ndarray[tuple[int], np.dtype[np.int32]]
    num_prompt_tokens: int
    root: bytes
    now_s: float
    pooler: Pooler
    adapter_slot: int
    second_start: int
    opening: str
    shown_ids: frozenset[int]

    def choices(self, arrival_ids: Iterator[int], grammar: Constraint | None) -> Iterator[Choice]:
        """Yield the choices, each with its own tokens, seed and grammar state."""
        params = self.request.sampling
        num_choices = params.best_of or params.n
        if num_choices > params.n and params.logprobs is None:
            params = replace(params, logprobs=0)  # candidates are ranked by their logprobs
        seed = params.seed if params.seed is not None else secrets.randbits(_SEED_BITS)
        for index in range(num_choices):
            state = grammar if index == 0 or grammar is None else grammar.fork()
            yield self._choice(index, params, _choice_seed(seed, index), next(arrival_ids), state)

    def _choice(
        self, index: int, params: SamplingParams, seed: int, arrival_id: int, grammar: Constraint | None
    ) -> Choice:
        end_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            end_ids |= self.eos_token_ids
        scores_prompt = params.prompt_logprobs is not None and index == 0
        pooling = self.request.pooling
        sequence = Sequence(
            arrival_id=arrival_id,
            tokens=self.tokens if index == 0 else self.tokens.copy(),
            num_tokens=self.num_prompt_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            max_total_tokens=len(self.tokens),
            params=params,
            root_hash=self.root,
            seed=seed,
            adapter_slot=self.adapter_slot,
            second_start=self.second_start,
            scores_prompt=scores_prompt,
            can_draft=grammar is None,  # the mask of a row depends on the tokens before it
            pool=self._pool(),
            # Texts are embedded once; the documents of a reranker share their query.
            shares_blocks=pooling is None or (pooling.task == "score" and self.pooler.method == "last"),
        )
        first = [prompt_token(self.table, int(self.tokens[0]), None, ())] if scores_prompt else []
        return Choice(
            request_id=self.request.request_id,
            index=index,
            owner=self.owner,
            sequence=sequence,
            text=AnswerText(self.table, params, shown_ids=self.shown_ids),
            end_ids=end_ids,
            extras=make_extras(params, end_ids=end_ids, grammar=grammar),
            repetition=RepetitionDetector(params.repetition_detection) if params.repetition_detection else None,
            pooler=self.pooler,
            pooling=pooling,
            reported_seed=seed if params.temperature > 0 else None,
            opening=self.opening,
            prompt=first,
            arrived_s=self.now_s,
        )

    def _pool(self) -> SequencePool | None:
        pooling = self.request.pooling
        if pooling is None:
            return None
        return SequencePool("all" if pooling.task == "embed_tokens" else self.pooler.method, self.num_prompt_tokens)


def _num_characters(prompt: str | ChatPrompt) -> int:
    """Return the approximate length of a prompt's text."""
    if isinstance(prompt, str):
        return len(prompt)
    return len(msgspec.json.encode((prompt.messages, prompt.tools, prompt.template_values)))


def _choice_seed(seed: int, index: int) -> int:
    """Return the seed of a choice: the request's own for the first, others derived from it (SplitMix64)."""
    if index == 0:
        return seed
    bits = (seed + index * 0x9E3779B97F4A7C15) & (2**64 - 1)
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (bits ^ (bits >> 31)) >> (64 - _SEED_BITS)
