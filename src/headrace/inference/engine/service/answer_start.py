"""The beginning of a reasoning model's answer: the part that the prompt already contains, and the constraint."""

from collections.abc import Iterable

from headrace.core.answer_format.formats import CALL_MARKERS, AnswerFormat
from headrace.core.answer_format.parser import make_parser
from headrace.core.generation import ChatPrompt, GenerationRequest
from headrace.inference.engine.structured_output.compiler import GrammarCompiler
from headrace.inference.engine.structured_output.delayed import DelayedGrammar
from headrace.inference.engine.structured_output.state import Constraint
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.models.tokenizer import Tokenizer


class AnswerStart:
    """Applies a model's answer format to requests that separate the reasoning; one per engine."""

    def __init__(
        self,
        known: AnswerFormat | None,
        table: TokenTable,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        grammars: GrammarCompiler,
        *,
        delays_grammars: bool,
    ) -> None:
        self._format = known
        self._table = table
        self._eos_token_ids = eos_token_ids
        self._grammars = grammars
        self._delays_grammars = delays_grammars
        ids = _token_ids(() if known is None else known.markers, tokenizer)
        self._shown_ids = frozenset(ids.values()) & table.special_ids
        self._call_ids = frozenset(_token_ids(CALL_MARKERS, tokenizer).values()) & table.special_ids
        self._start_id = None if known is None else ids.get(known.start)

    def end_of(self, prompt: str) -> str:
        """Return the end of a rendered chat that belongs to the answer."""
        return "" if self._format is None else self._format.opening(prompt)

    def opening(self, request: GenerationRequest, end_of_prompt: str) -> str:
        """Return the end of the prompt that the answer continues; empty with a grammar from the first token on."""
        continues = self._delays_grammars or request.sampling.grammar is None
        return end_of_prompt if request.separates_reasoning and continues else ""

    def shown_ids(self, request: GenerationRequest) -> frozenset[int]:
        """Return the special tokens that the caller needs in the text."""
        calls = self._call_ids if isinstance(request.prompt, ChatPrompt) and request.prompt.tools else frozenset()
        return calls | self._shown_ids if request.separates_reasoning else calls

    async def constraint(self, request: GenerationRequest, end_of_prompt: str) -> Constraint | None:
        """
        Return the grammar of a request, which begins after the reasoning if the request separates it.

        Raises:
            InvalidRequest: The grammar is not valid.
        """
        grammar = request.sampling.grammar
        if grammar is None:
            return None
        state = await self._grammars.compile(grammar)
        if self._format is None or not request.separates_reasoning or not self._delays_grammars:
            return state
        arguments = grammar.arguments if self._format.has_channels else ()
        return DelayedGrammar(
            state,
            parser=make_parser(self._format, end_of_prompt),
            text_of=self._table.text,
            start_id=self._start_id,
            end_ids=self._eos_token_ids,
            arguments={name: await self._grammars.compile(inner) for name, inner in arguments},
        )


def _token_ids(markers: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    return {marker: token_id for marker in markers if (token_id := tokenizer.token_id(marker)) is not None}
