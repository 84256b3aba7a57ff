"""Requests, generated tokens and sequences, as formatters of a rolling batch get and return them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Token:
    """A generated token, or one of the prompt."""

    id: int
    text: str
    log_prob: float | None = None
    special_token: bool | None = None
    error_msg: str | None = None
    request_id: int | None = field(default=None, init=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the token as LMI writes it."""
        shown: dict[str, Any] = {"id": self.id, "text": self.text, "log_prob": self.log_prob}
        if self.special_token:
            shown["special_token"] = self.special_token
        if self.error_msg:
            shown["error_msg"] = self.error_msg
        return shown

    def as_tgi_dict(self) -> dict[str, Any]:
        """Return the token as TGI writes it."""
        shown: dict[str, Any] = {"id": self.id, "text": self.text, "logprob": self.log_prob}
        if self.special_token:
            shown["special"] = self.special_token
        return shown


@dataclass
class Sequence:
    """The tokens of a generated sequence, which formatters read one after the other."""

    tokens: list[Token] = field(default_factory=list)
    top_tokens: list[list[Token]] = field(default_factory=list)
    cumulative_log_prob: float = 0.0
    finish_reason: str | None = None
    _last_token_index: int | None = None
    stop_reason: str | None = None
    _next_token: int = field(default=0, init=False, repr=False)
    _next_top_tokens: int = field(default=0, init=False, repr=False)

    def set_next_token(self, token: Token, is_last_token: bool = False) -> None:
        self.tokens.append(token)
        if is_last_token:
            self._last_token_index = len(self.tokens) - 1

    def set_next_top_tokens(self, top_tokens: list[Token]) -> None:
        self.top_tokens.append(top_tokens)

    def has_next_token(self) -> bool:
        return self._next_token < len(self.tokens)

    def has_next_top_tokens(self) -> bool:
        return self._next_top_tokens < len(self.top_tokens)

    def get_next_token(self) -> tuple[Token | None, int, bool, bool]:
        """Return the next token, its index, whether it is the first one, and whether it is the last one."""
        if not self.has_next_token():
            return None, 0, False, False
        index = self._next_token
        self._next_token += 1
        return self.tokens[index], index, index == 0, index == self._last_token_index

    def get_last_token(self) -> Token | None:
        return None if self._last_token_index is None else self.tokens[self._last_token_index]

    def get_next_top_tokens(self) -> list[Token] | None:
        if not self.has_next_top_tokens():
            return None
        self._next_top_tokens += 1
        return self.top_tokens[self._next_top_tokens - 1]


@dataclass
class RequestInput:
    request_id: int | None = None
    client_request_id: str | None = None
    output_formatter: Callable[..., Any] | str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """As the client gave them."""
    server_parameters: dict[str, Any] = field(default_factory=dict)
    """As the engine uses them."""
    tgi_compat: bool = False


@dataclass
class TextInput(RequestInput):
    input_text: str | list[str] | None = None
    adapters: Any = None
    tokenizer: Any = None


@dataclass
class RequestOutput:
    """The response to a request so far."""

    request_id: int
    input: RequestInput
    finished: bool = False


@dataclass
class TextGenerationOutput(RequestOutput):
    """The text that was generated so far, in one or more sequences."""

    sequences: dict[int, Sequence] = field(default_factory=dict)
    best_sequence_index: int = 0
    prompt_tokens_details: list[Token] = field(default_factory=list)
    other_sequences_indices: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequences[self.best_sequence_index] = Sequence()

    def set_next_token(
        self, token: Token, sequence_index: int = 0, is_last_token: bool = False, finish_reason: str | None = None
    ) -> None:
        sequence = self.sequences.setdefault(sequence_index, Sequence())
        sequence.set_next_token(token, is_last_token)
        if finish_reason:
            sequence.finish_reason = finish_reason

    def set_next_top_tokens(self, top_tokens: list[Token], sequence_index: int = 0) -> None:
        self.sequences[sequence_index].set_next_top_tokens(top_tokens)

    def set_best_sequence_index(self, sequence_index: int) -> None:
        self.best_sequence_index = sequence_index

    def set_finish_reason(self, finish_reason: str, sequence_index: int = 0) -> None:
        self.sequences[sequence_index].finish_reason = finish_reason

    def get_tokens_as_dict(self, sequence_index: int = 0) -> list[dict[str, Any]]:
        return self._as_dicts(self.sequences[sequence_index].tokens)

    def get_prompt_tokens_as_dict(self) -> list[dict[str, Any]]:
        return self._as_dicts(self.prompt_tokens_details)

    def get_top_tokens_as_dict(self, sequence_index: int = 0) -> list[list[dict[str, Any]]]:
        return [self._as_dicts(tokens) for tokens in self.sequences[sequence_index].top_tokens]

    def _as_dicts(self, tokens: list[Token]) -> list[dict[str, Any]]:
        return [token.as_tgi_dict() if self.input.tgi_compat else token.as_dict() for token in tokens]
