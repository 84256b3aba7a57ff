"""One choice of a request inside the engine: sequence, text, grammar state and times."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.core.generation import Chunk, Finish, FinishReason, PoolingParams, Token, TokenLogprob
from headrace.inference.engine.core.pooling import pool_result
from headrace.inference.engine.core.repetition import RepetitionDetector
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.core.step_input import RowExtras
from headrace.inference.engine.structured_output.constraint import Constraint
from headrace.inference.engine.text.answer import AnswerText
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.engine.text.stop import StopMatch
from headrace.inference.models.pooling import Pooler

UNDRAWABLE = (
    "No token could be drawn: the model's logits are not numbers, or every token was forbidden. "
    "Check logit_bias and the grammar; if there are none, the model's weights are broken."
)
NOT_FINITE = (
    "The pooled vector has numbers that are not finite: the model's weights are broken, or too large for its format."
)


@dataclass(slots=True, eq=False, kw_only=True)
class Choice:
    """One candidate answer, owned by the engine thread once added; `owner` receives its chunks."""

    request_id: str
    index: int
    owner: object
    sequence: Sequence
    text: AnswerText
    end_ids: frozenset[int]
    """Tokens that end the answer."""
    extras: RowExtras | None = None
    repetition: RepetitionDetector | None = None
    pooler: Pooler | None = None
    pooling: PoolingParams | None = None
    reported_seed: int | None = None
    opening: str = ""
    """The end of the prompt that the answer continues, see `Chunk.opening`."""
    prompt: list[Token] = field(default_factory=list)
    """Prompt tokens scored so far."""
    has_told_prompt_ids: bool = False
    admitted_s: float | None = None
    logprob_sum: float = 0.0
    on_end: Callable[[], None] | None = None
    """Called on the engine thread once no step uses the sequence any more."""

    @property
    def mean_logprob(self) -> float:
        """Mean logprob of the generated tokens, by which `best_of` candidates are ranked."""
        return self.logprob_sum / max(1, self.sequence.num_output_tokens)

    @property
    def grammar_without_logprobs(self) -> Constraint | None:
        """The grammar state, or None if the choice has none or reports logprobs."""
        return None if self.extras is None or self.sequence.params.logprobs is not None else self.extras.grammar

    def forced_token(self) -> int | None:
        """Return the only token that the grammar allows next, unless it ends the answer; else None."""
        grammar = self.grammar_without_logprobs
        token_id = None if grammar is None else grammar.only_token()
        return None if token_id in self.end_ids else token_id

    def take_token(self, token_id: int, logprob: float | None, top: tuple[TokenLogprob, ...]) -> Chunk | None:
        """
        Append a drawn token (negative: none could be drawn); return the text to show, with `finish` at the end.

        The caller removes the sequence from the scheduler after a `finish`.
        """
        if token_id < 0:
            return self.finish(FinishReason.ERROR, message=UNDRAWABLE)
        sequence = self.sequence
        sequence.append(token_id)
        if logprob is not None:
            self.logprob_sum += logprob
        is_repeating = self.repetition is not None and self.repetition.push(sequence.output)
        ended = self._end_of(token_id, logprob, top)
        if ended is not None:
            return ended
        if sequence.num_tokens >= sequence.max_total_tokens:
            return self.finish(FinishReason.LENGTH)
        if is_repeating and sequence.num_output_tokens >= sequence.params.min_new_tokens:
            return self.finish(FinishReason.REPETITION)
        text, tokens = self.text.release()
        if not tokens:
            return None
        return self._chunk(text, tokens)

    def _end_of(self, token_id: int, logprob: float | None, top: tuple[TokenLogprob, ...]) -> Chunk | None:
        """Add the token to the text; return the last chunk if the token itself ends the answer."""
        grammar = None if self.extras is None else self.extras.grammar
        if grammar is not None:
            if token_id not in self.end_ids:
                grammar.accept(token_id)
            if grammar.error is not None:
                self.text.push(token_id, logprob, top)
                # A limit of the parser: the client's error, at its field.
                asked = self.sequence.params.grammar
                message = f"The grammar cannot be enforced any further: {grammar.error.rstrip('.')}. Use a smaller one."
                return self.finish(FinishReason.ERROR, message=message, param=None if asked is None else asked.param)
        if token_id in self.end_ids:
            self.text.push_end(token_id, logprob, top)
            return self.finish(FinishReason.EOS, stop=token_id)
        match = self.text.push(token_id, logprob, top)
        if match is not None:
            return self.finish(FinishReason.STOP, match=match)
        return self.finish(FinishReason.EOS) if grammar is not None and grammar.is_complete else None

    def finish(
        self,
        reason: FinishReason,
        *,
        match: StopMatch | None = None,
        stop: int | None = None,
        message: str | None = None,
        param: str | None = None,
    ) -> Chunk:
        """Return the last chunk, with all text that was held back."""
        text, tokens = self.text.finish(match)
        sequence = self.sequence
        finish = Finish(
            reason=reason,
            prompt_tokens=sequence.num_prompt_tokens,
            output_tokens=sequence.num_output_tokens,
            cached_tokens=sequence.num_cached_tokens,
            seed=self.reported_seed,
            queue_s=self.queue_s,
            stop=match.string if match is not None else stop,
            message=message,
            param=param,
        )
        return self._chunk(text, tokens, finish)

    def finish_prompt(self) -> Chunk:
        """Return the last chunk of a choice that generates nothing, once its prompt is computed."""
        pool = self.sequence.pool
        if pool is None:
            return self.finish(FinishReason.LENGTH)
        assert self.pooler is not None
        assert self.pooling is not None
        pooled = pool_result(pool, self.pooler, self.pooling)
        if pooled is None:
            return self.finish(FinishReason.ERROR, message=NOT_FINITE)
        return replace(self.finish(FinishReason.POOLED), pooled=pooled)

    @property
    def queue_s(self) -> float | None:
        """Time from arrival to the first step; None if it never ran."""
        return None if self.admitted_s is None else self.admitted_s - self.sequence.arrived_s

    def _chunk(self, text: str, tokens: tuple[Token, ...], finish: Finish | None = None) -> Chunk:
        """Return a chunk; the first one also carries the prompt, as requested, and the opening."""
        opening, self.opening = self.opening, ""
        prompt = None
        if self.prompt:
            prompt, self.prompt = tuple(self.prompt), []
        ids, sequence = None, self.sequence
        if sequence.params.returns_prompt_ids and not self.has_told_prompt_ids:
            ids, self.has_told_prompt_ids = tuple(sequence.tokens[: sequence.num_prompt_tokens].tolist()), True
        return Chunk(
            index=self.index, text=text, tokens=tokens, prompt=prompt, prompt_ids=ids, opening=opening, finish=finish
        )


def prompt_token(
    table: TokenTable,
    token_id: int,
    logprob: float | None = None,
    rank: int | None = None,
    top: tuple[TokenLogprob, ...] = (),
) -> Token:
    raw, _ = table.entry(token_id)
    return Token(token_id, table.text(token_id), logprob, token_id in table.special_ids, top, raw, rank)
