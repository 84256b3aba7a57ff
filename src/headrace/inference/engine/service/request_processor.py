"""
Conversion of a request to choices that the engine can run: checks, tokens, grammar, seeds.

Runs on the event loop; long prompts and grammars are processed on other threads.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from unicodedata import normalize

import numpy as np

from headrace.core.answer_format.call_forms import CALL_MARKERS
from headrace.core.answer_format.parser import make_parser
from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, ModelInfo, PoolingMethod, SamplingParams
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.blocks import root_hash
from headrace.inference.engine.core.choice import Choice, prompt_token
from headrace.inference.engine.core.pooling import SequencePool
from headrace.inference.engine.core.repetition import RepetitionDetector
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.core.step_input import make_extras
from headrace.inference.engine.service.adapters import LoadedAdapter
from headrace.inference.engine.service.prompt_tokens import InputTokens, PromptEncoder, TextParts
from headrace.inference.engine.service.validation import check_lengths, check_pooling, check_sampling, check_token_ids
from headrace.inference.engine.structured_output.compiler import GrammarCompiler
from headrace.inference.engine.structured_output.constraint import Constraint, ReasoningBudget, TokenRules
from headrace.inference.engine.structured_output.state import DelayedGrammar, GrammarState
from headrace.inference.engine.text.answer import AnswerText
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.models.tokenizer import Tokenizer

_ROUTES = {"embeddings": "/v1/embeddings or /embed", "scores": "/rerank, /score or /predict"}
_SEED_BITS = 53
"""Bits of random seeds: JSON readers that use doubles keep them exact."""


class RequestProcessor:
    """Validates, tokenises and compiles requests; one per engine."""

    def __init__(
        self,
        parts: TextParts,
        table: TokenTable,
        limits: EngineLimits,
        info: ModelInfo,
        *,
        vocab_size: int,
        delays_grammars: bool,
    ) -> None:
        """Create a processor; with `delays_grammars`, a grammar may begin in the middle of an answer."""
        self._parts = parts
        self._table = table
        self._limits = limits
        self._info = info
        self._vocab_size = vocab_size
        self._num_mask_words = -(-vocab_size // 32)
        self._delays_grammars = delays_grammars
        self.prompts = PromptEncoder(
            parts, limits, vocab_size=vocab_size, pooling=info.pooling, finds_turns=info.has_states
        )
        self.grammars = GrammarCompiler(
            parts.tokenizer, vocab_size=vocab_size, timeout_s=limits.request.grammar_timeout_s
        )
        self._arrival_ids = count()
        self._format = self.prompts.answer_format
        separators = {} if self._format is None else _token_ids(self._format.markers, parts.tokenizer)
        self._separator_ids = frozenset(separators.values()) & table.special_ids
        self._call_ids = frozenset(_token_ids(CALL_MARKERS, parts.tokenizer).values()) & table.special_ids
        self._reasoning_id = None if self._format is None else separators.get(self._format.start)

    def check(self, request: GenerationRequest) -> None:
        """Raise `InvalidRequest` if a parameter is out of range, or the model does not support the request."""
        if request.pooling is not None:
            check_pooling(request.pooling, self._info.pooling)
        elif not self._info.generates:
            kind = "scores" if self._info.pooling is not None and self._info.pooling.labels else "embeddings"
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
        Return one `Choice` per candidate answer of a request that was checked.

        Raises:
            InvalidRequest: The prompt or the grammar is not valid, or there is no chat template.
            PromptTooLong, ContextTooLong: The prompt is too long, alone or with the answer.
        """
        prompt = await self.prompts.encode(request)
        max_total_tokens = len(prompt.ids)
        if request.pooling is None:
            max_total_tokens = check_lengths(len(prompt.ids), request.sampling, self._limits)
        if isinstance(prompt.ids, tuple):  # after the length check: there may be millions
            check_token_ids(prompt.ids, vocab_size=self._vocab_size)
        grammar = await self._constraint(request, prompt.opening)
        has_rules = self._delays_grammars and (request.sampling.allowed_token_ids or request.sampling.bad_words)
        rules = await asyncio.to_thread(self._token_rules, request.sampling, grammar) if has_rules else grammar
        constraint = self._with_budget(request, prompt.opening, rules)
        return list(self._choices(request, owner, prompt, max_total_tokens, constraint, adapter, now_s))

    async def _constraint(self, request: GenerationRequest, end_of_prompt: str) -> GrammarState | DelayedGrammar | None:
        """Return the grammar of a request, which begins after the reasoning if the request separates it."""
        grammar = request.sampling.grammar
        if grammar is None:
            return None
        state = await self.grammars.compile(grammar)
        if self._format is None or not request.separates_reasoning or not self._delays_grammars:
            return state
        arguments = grammar.arguments if self._format.has_channels else ()
        return DelayedGrammar(
            grammar=state,
            parser=make_parser(self._format, end_of_prompt),
            text_of=self._table.text,
            start_id=self._reasoning_id,
            end_ids=self._parts.eos_token_ids,
            arguments={name: await self.grammars.compile(inner) for name, inner in arguments},
        )

    def _token_rules(self, params: SamplingParams, grammar: GrammarState | DelayedGrammar | None) -> TokenRules:
        """Return the constraint with the tokens that the request allows and forbids; vLLM applies its own."""
        texts = {f"{space}{word.lstrip()}" for word in params.bad_words for space in ("", " ")}
        spelled = {text: tuple(self._parts.tokenizer.encode_inside(text)) for text in texts}
        bad: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for text, ids in spelled.items():
            # A vocabulary may lack characters of a word: what is left of it, such as the space, is no bad word.
            if self._spells(ids, text):
                bad[ids[:-1]].append(ids[-1])
        is_allowed = np.full(32 * self._num_mask_words, not params.allowed_token_ids)
        is_allowed[list(params.allowed_token_ids)] = True
        is_allowed[bad.pop((), [])] = False
        allowed = np.packbits(is_allowed, bitorder="little").view(np.uint32)
        return TokenRules(allowed=allowed, bad=dict(bad), grammar=grammar)

    def _spells(self, ids: Iterable[int], text: str) -> bool:
        """Return whether tokens are the whole text, apart from white space around it and its Unicode form."""
        spelled = b"".join(self._table.entry(token_id)[0] for token_id in ids).decode(errors="replace")
        return normalize("NFKC", spelled).strip() == normalize("NFKC", text).strip()

    def _with_budget(
        self,
        request: GenerationRequest,
        end_of_prompt: str,
        grammar: GrammarState | DelayedGrammar | TokenRules | None,
    ) -> Constraint | None:
        """Return the constraint of an answer with the budget of its reasoning, if the request has one."""
        if request.max_reasoning_tokens is None or self._format is None or not request.separates_reasoning:
            return grammar
        if not self._delays_grammars:
            raise InvalidRequest(
                f"The backend {self._info.backend} cannot end the reasoning at a budget. Leave it out, or limit the "
                "tokens of the whole answer.",
                param="thinking_token_budget",
            )
        endings = self._format.endings(self._limits.request.reasoning_end_message)
        return ReasoningBudget(
            tokens_left=request.max_reasoning_tokens,
            parser=make_parser(self._format, end_of_prompt),
            text_of=self._table.text,
            endings=tuple(tuple(self._parts.tokenizer.encode_inside(text)) for text in endings),
            num_words=self._num_mask_words,
            grammar=grammar,
        )

    def _choices(
        self,
        request: GenerationRequest,
        owner: object,
        prompt: InputTokens,
        max_total_tokens: int,
        constraint: Constraint | None,
        adapter: LoadedAdapter | None,
        now_s: float,
    ) -> Iterator[Choice]:
        """Yield the choices, each with its own tokens, seed and grammar state."""
        params = _rankable(request.sampling)
        request_seed = params.seed if params.seed is not None else secrets.randbits(_SEED_BITS)
        own_ends, root = self._parts.eos_token_ids | prompt.end_ids, self._root(request, adapter)
        end_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else own_ends)
        tokens = np.empty(max_total_tokens, np.int32)
        tokens[: len(prompt.ids)] = prompt.ids
        # With a grammar from the first token on, the answer does not continue the reasoning that the prompt began.
        continues = request.separates_reasoning and (self._delays_grammars or params.grammar is None)
        extras = make_extras(params, end_ids, constraint)
        for index in range(params.best_of or params.n):
            seed = _choice_seed(request_seed, index)
            if extras is not None and constraint is not None and index > 0:
                extras = replace(extras, grammar=constraint.fork())
            scores_prompt = params.prompt_logprobs is not None and index == 0
            sequence = Sequence(
                arrival_id=next(self._arrival_ids),
                is_background=request.is_background,
                arrived_s=now_s,
                tokens=tokens if index == 0 else tokens.copy(),
                num_tokens=len(prompt.ids),
                num_prompt_tokens=len(prompt.ids),
                max_total_tokens=max_total_tokens,
                params=params,
                root_hash=root,
                seed=seed,
                adapter_slot=-1 if adapter is None else adapter.slot,
                second_start=prompt.second_start,
                num_turn_tokens=prompt.num_turn_tokens,
                scores_prompt=scores_prompt,
                can_draft=constraint is None,  # the mask of a row depends on the tokens before it
                pool=self._pool(request, len(prompt.ids)),
                shares_blocks=self._shares_blocks(request),
                session=request.session if self._limits.enable_prefix_caching else None,
            )
            yield Choice(
                request_id=request.request_id,
                index=index,
                owner=owner,
                sequence=sequence,
                text=AnswerText(self._table, params, shown_ids=self._shown_ids(request)),
                end_ids=end_ids,
                extras=extras,
                repetition=RepetitionDetector(params.repetition_detection) if params.repetition_detection else None,
                pooler=self._parts.pooler,
                pooling=request.pooling,
                reported_seed=seed if params.temperature > 0 else None,
                opening=prompt.opening if continues else "",
                prompt=[prompt_token(self._table, int(tokens[0]))] if scores_prompt else [],
            )

    def _pool(self, request: GenerationRequest, num_tokens: int) -> SequencePool | None:
        """Return where the hidden states of a request for vectors or scores are collected."""
        if request.pooling is None:
            return None
        method: PoolingMethod = "all" if request.pooling.task == "embed_tokens" else self._parts.pooler.method
        return SequencePool(method, num_tokens)

    def _shares_blocks(self, request: GenerationRequest) -> bool:
        """Return whether the prefix cache serves a request: texts are embedded once, but documents share a query."""
        pooling = request.pooling
        return pooling is None or (pooling.task == "score" and self._parts.pooler.method == "last")

    def _shown_ids(self, request: GenerationRequest) -> frozenset[int]:
        """Return the special tokens that the caller needs in the text."""
        has_tools = isinstance(request.prompt, ChatPrompt) and bool(request.prompt.tools)
        calls = self._call_ids if has_tools else frozenset()
        return calls | self._separator_ids if request.separates_reasoning else calls

    def _root(self, request: GenerationRequest, adapter: LoadedAdapter | None) -> bytes:
        """Return the root hash; without prefix caching the choices of a request still share blocks with each other."""
        if self._limits.enable_prefix_caching:
            prefix = "" if adapter is None else f"adapter:{adapter.identity}:"  # by content: names are reused
            return root_hash(f"{prefix}salt:{request.cache_salt}")
        return root_hash(f"request:{secrets.token_hex(16)}")


def _token_ids(markers: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    return {marker: token_id for marker in markers if (token_id := tokenizer.token_id(marker)) is not None}


def _rankable(params: SamplingParams) -> SamplingParams:
    """Return the parameters with logprobs if there are more candidates than choices, which are ranked by them."""
    has_candidates = params.best_of is not None and params.best_of > params.n
    return replace(params, logprobs=0) if has_candidates and params.logprobs is None else params


def _choice_seed(seed: int, index: int) -> int:
    """Return the seed of a choice: the request's own for the first, others derived from it (SplitMix64)."""
    if index == 0:
        return seed
    bits = (seed + index * 0x9E3779B97F4A7C15) & (2**64 - 1)
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (bits ^ (bits >> 31)) >> (64 - _SEED_BITS)
