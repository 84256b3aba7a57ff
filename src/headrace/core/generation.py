"""
Requests to generate text and the chunks that come back, independent of any dialect.

`wire` parses bytes into a `GenerationRequest` and renders `Chunk`s; `engine` runs the request. The two packages share
nothing but these types.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.model_kinds import PoolingTask, ToolSupport
from headrace.core.sampling_defaults import RecommendedSampling, SamplingDefaults
from headrace.core.session import Session


class FinishReason(StrEnum):
    """The reason why a choice ended."""

    LENGTH = "length"
    """`max_new_tokens` were generated, or the context is full."""
    EOS = "eos_token"
    """The model generated an end-of-sequence token (or one of `stop_token_ids`)."""
    STOP = "stop_sequence"
    """A stop string appeared; the text ends before it."""
    ABORT = "abort"
    """The client went away, or the server shut down before the end."""
    ERROR = "error"
    """The engine failed in the middle of the answer."""
    REPETITION = "repetition"
    """The answer repeated itself, see `RepetitionDetection`."""
    POOLED = "pooled"
    """The hidden states of the prompt were pooled; nothing was generated."""


GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the answer, whichever field the client used."""

    kind: GrammarKind
    text: str = ""
    """
    JSON for `json_schema` (a schema), `choice` (a list of strings) and `structural_tag` (vLLM's object); the expression
    for `regex`; the grammar for `lark` and `ebnf` (GBNF, as llama.cpp and xgrammar read it); empty for `json_object`.
    """
    whitespace_pattern: str | None = field(default=None, kw_only=True)
    """JSON only: a regular expression for the white space between tokens. None: a space, or a newline and indent."""
    param: str = field(default="grammar", kw_only=True, compare=False)
    """The client's name for the field, for error messages."""
    arguments: tuple[tuple[str, "Grammar"], ...] = field(default=(), kw_only=True)
    """Grammars of the arguments by function, which apply instead where the answer's format names the function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetection:
    """The rule that ends an answer once it has repeated a pattern of tokens: vLLM's `repetition_detection`."""

    max_pattern_size: int = 256
    min_pattern_size: int = 24
    """A short cycle is also a pattern of each multiple of its length: at least this times `min_count` tokens repeat."""
    min_count: int = 3
    """Occurrences in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """
    Sampling parameters. The dialect checks their ranges with its own error texts, and the engine checks them again.

    Order of application: logprobs come from the raw logits; then grammar mask, min_new_tokens, logit bias, penalties,
    temperature, min-p, top-k, typical-p, top-p.
    """

    max_new_tokens: int | None = None
    """None: until the context is full, or `default_max_new_tokens`."""
    is_cut_at_context: bool = False
    """`max_new_tokens` may exceed the context: the answer ends where it is full (Anthropic, Ollama)."""
    default_max_new_tokens: int | None = None  # without `max_new_tokens`; it may exceed the context
    max_total_tokens: int | None = None
    """The cap of prompt and answer without `max_new_tokens`: transformers' `max_length`."""
    min_new_tokens: int = 0  # no end-of-sequence token before
    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over prompt and answer (Keskar et al. 2019)
    presence_penalty: float = 0.0  # over the answer (OpenAI), as the next one
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens of the answer; empty: all."""
    bad_words: tuple[str, ...] = ()
    """Texts that the answer does not have where their tokens begin it or follow a space."""
    seed: int | None = None
    """None: a random seed is drawn and reported in `Finish.seed`."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # keep the stop string at the end of the text
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    """Leave special tokens out of the text, except those that `GenerationRequest.separates_reasoning` needs."""
    n: int = 1  # choices to return
    best_of: int | None = None
    """Candidates to generate, of which the `n` with the best mean logprob are returned; not while streaming."""
    logprobs: int | None = None
    """None: no logprobs. 0: of the sampled token. k: also of the k most likely tokens."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt."""
    returns_prompt_ids: bool = False
    grammar: Grammar | None = None
    repetition_detection: RepetitionDetection | None = None
    """None: repetition does not end the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Upper bounds on what one request may ask for, shared by the dialects and the engine."""

    max_best_of: int
    """Candidates of one prompt: `n` and `best_of`."""
    max_stop_sequences: int
    max_top_n_tokens: int
    """Alternatives per token: `top_n_tokens`, `logprobs`, `top_logprobs` and `prompt_logprobs`."""
    reasoning_end_message: str = ""
    """The text that an answer gets to read when its reasoning is at its budget, in front of the separator."""
    grammar_timeout_s: float = 10.0
    """Longest compilation of a JSON schema or another grammar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Messages for the chat template, as JSON values in OpenAI's form; the answer may continue the final one."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    add_generation_prompt: bool = True
    continues_final_message: bool = False
    template_values: Mapping[str, object] = field(default_factory=dict)  # `chat_template_kwargs`


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillPrompt:
    """The text around a gap, which the answer fills (fill-in-the-middle)."""

    prefix: str
    suffix: str
    files: Sequence[tuple[str, str]] = ()
    """Other files of the project as path and text, the most useful last; the first are left out if they do not fit."""


Prompt = str | tuple[int, ...] | ChatPrompt | InfillPrompt
"""Text (the tokenizer adds special tokens), token ids (used unchanged), a chat, or the text around a gap."""


PoolingMethod = Literal["last", "mean", "cls", "all"]
"""The hidden state of the last token, the mean of all, that of the first token, or all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """The result to compute from an input instead of generated text."""

    task: PoolingTask = "embed"
    normalize: bool = True
    """Divide vectors by their length."""
    dimensions: int | None = None
    """Keep only the first numbers of a vector, before it is normalised. None: all."""
    truncate: Literal["left", "right"] | None = None
    """The side on which an input that is too long is cut. None: it is refused."""
    max_tokens: int | None = None
    """Longest input, special tokens included. None: what the engine accepts."""
    document: str | None = None
    """A second text, scored together with the prompt, which is the query."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """The vector of an input, or the vectors of its tokens one after the other."""

    data: bytes
    """Single precision, little-endian."""
    size: int
    """Length of a vector."""

    def vectors(self) -> list[list[float]]:
        """Return the vectors as numbers."""
        numbers = array("f", self.data)
        if sys.byteorder == "big":
            numbers.byteswap()
        values = numbers.tolist()
        return [values[start : start + self.size] for start in range(0, len(values), self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request to generate text, or with `pooling` to pool the hidden states of a prompt; of any dialect."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    pooling: PoolingParams | None = None
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens at the end of the prompt."""
    cache_salt: str = ""
    """Requests with different salts never share prefix-cache blocks (tenants)."""
    adapter: str | None = None
    """Name of the adapter to generate with; None: the base model."""
    session: Session | None = None
    """The engine evicts the KV of its last request after that of requests without one."""
    max_reasoning_tokens: int | None = None
    """The budget of the reasoning if it is separated: after so many tokens it is ended. None: no budget."""
    separates_reasoning: bool = False
    """The caller separates the reasoning of a chat: its separators stay in the text, the grammar applies after it."""
    is_background: bool = False  # all other requests go first: no client waits for it


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The logprob of one alternative at one position."""

    id: int
    text: str
    logprob: float
    special: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """
    One token of an answer or of a prompt.

    `text` is what this token adds to the visible text: joined over the tokens of an answer (without special tokens
    under `skip_special_tokens`) it is exactly the answer's text. It is empty while a character is incomplete; the
    token that completes the character has the whole character. A special token's `text` is its name (`</s>`).
    """

    id: int
    text: str
    logprob: float | None = None
    """Natural logarithm, from the raw logits; None when not requested, and for the first token of a prompt."""
    special: bool = False
    top: tuple[TokenLogprob, ...] = ()
    """The most likely alternatives, most likely first."""
    raw: bytes = b""
    """The bytes of the token, even if they are part of a character."""
    rank: int | None = None
    """Of a prompt with logprobs: its place among all tokens, 1 for the most likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of one choice: its reason and token counts."""

    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""
    seed: int | None = None
    """The seed that was used; None for greedy sampling."""
    queue_s: float | None = field(default=None, compare=False)
    """Time from arrival to the first step; None if there was none, or it is not known. Equal ends may differ in it."""
    stop: str | int | None = None
    """The stop string or stop token that ended the answer."""
    message: str | None = None
    """What went wrong, when `reason` is ERROR or ABORT."""
    param: str | None = None
    """The request field that caused an ERROR; None: the engine caused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """
    One streamed piece of one choice.

    Joined over a choice, `text` is the answer. A chunk has one or more tokens: several when text was held back because
    it could have become a stop string. The last chunk of a choice has `finish`.
    """

    index: int = 0
    """Index of the choice, below `n`."""
    text: str = ""
    tokens: tuple[Token, ...] = ()
    prompt: tuple[Token, ...] | None = None
    """The prompt's tokens, in the first chunk of choice 0, if `prompt_logprobs` was requested."""
    prompt_ids: tuple[int, ...] | None = None
    """The token ids of the prompt, in the first chunk of each choice, if they were requested."""
    opening: str = ""
    """The end of the prompt that the answer continues, such as `<think>`, in the first chunk of a choice."""
    finish: Finish | None = None
    pooled: Pooled | None = None
    """The result of a request with `pooling`, in its only chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """A token of a tokenized text: its id and the characters `start:stop` that it covers."""

    id: int
    text: str
    start: int
    stop: int
    piece: str
    """Its spelling in the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInfo:
    """The pooling that a model is served with."""

    method: PoolingMethod
    size: int
    """Length of an embedding, or number of scores."""
    max_tokens: int
    """Longest input."""
    normalizes: bool = True
    labels: tuple[str, ...] = ()
    """The names of the scores of a classifier or reranker; empty for embeddings."""
    problem_type: str = ""
    """What the scores mean, in transformers' names, such as `multi_label_classification`; empty: not said."""
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Prompts that precede a text, by name."""
    default_prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """A description of a loaded adapter."""

    name: str
    path: str
    """The folder it was read from."""
    rank: int
    created_s: int
    """Time of loading, seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A description of the model that is served."""

    name: str
    """The name that clients use (`model` in OpenAI requests)."""
    revision: str | None
    family: str
    dtype: str
    """Format of weights and activations: bf16, w8a16, w8a8, w4a16 or w4a8."""
    kv_dtype: str
    device: str
    """cpu or cuda, with the kernels chosen, e.g. `cpu (avx512)`."""
    max_model_len: int
    """Prompt + answer, in tokens."""
    max_prompt_tokens: int
    max_num_seqs: int
    vocab_size: int
    num_parameters: int
    has_chat_template: bool
    created_s: int
    """Time of loading, seconds since 1970."""
    answer_format: AnswerFormat | None = None
    """The separators of reasoning in chats; None: the model has none."""
    tool_support: ToolSupport | None = None  # None without a chat template
    has_effort_levels: bool = False
    """The chat template tells the model how much to reason (`reasoning_effort`)."""
    can_infill: bool = False
    """The model has tokens for fill-in-the-middle."""
    rope: str = ""
    """The rotary embedding in use, with its scaling."""
    format_reason: str = ""
    """Why these formats were chosen."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    recommended: RecommendedSampling = field(default_factory=RecommendedSampling)
    max_batch_tokens: int = 0
    """Tokens of one step."""
    generates: bool = True
    """False for a model that is served for embeddings or scores only."""
    is_encoder_decoder: bool = False
    has_states: bool = False
    """True if the model has state layers: a prefix is reused up to a checkpoint of its state."""
    pooling: PoolingInfo | None = None
    """None: served for generation only."""
    backend: str = "native"
    """native, torch, transformers or vllm."""
    backend_reason: str = ""
    """Why this backend serves, in one line."""
    is_batch_invariant: bool = False
    """The bits of an answer do not depend on what else is in the batch."""

    @property
    def is_base(self) -> bool:
        """True for a model that continues text and was given no template for chats."""
        return self.generates and not self.has_chat_template and not self.is_encoder_decoder
