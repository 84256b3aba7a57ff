"""
Validation of requests before they are queued.

Dialects check the fields whose errors have their own wording; all fields are checked again here.
"""

import math

from headrace.core.errors import ContextTooLong, InvalidRequest, PromptTooLong
from headrace.core.generation import PoolingInfo, PoolingParams, RepetitionDetection, RequestLimits, SamplingParams
from headrace.inference.engine.config import EngineLimits

_MIN_SEED, _MAX_SEED = -(2**63), 2**64 - 1
_MAX_FACTOR = 1e30
"""A logit times or divided by this is still a number in single precision."""
_MAX_BAD_CHARACTERS = 4096
_MAX_PATTERN_SIZE = 2048
"""Each token is compared with this many tokens before it, which takes 4 µs."""
_MAX_PATTERN_COUNT = 1_000_000


def check_sampling(params: SamplingParams, limits: EngineLimits, *, vocab_size: int) -> None:
    """Raise `InvalidRequest` for the first field that is out of range."""
    _check_numbers(params)
    _check_choices(params, limits.request)
    _check_stops(params, limits.request, vocab_size)
    _check_tokens(params, vocab_size)
    _check_repetition(params.repetition_detection)
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None:
            most = limits.request.max_top_n_tokens
            _require(0 <= count <= most, name, count, f"between 0 and {most} (max_top_n_tokens)")
    for token_id, value in params.logit_bias.items():
        _require(0 <= token_id < vocab_size, "logit_bias", token_id, f"a token id below {vocab_size}")
        _require(not math.isnan(value) and value < math.inf, "logit_bias", value, "a number")


def check_pooling(params: PoolingParams, info: PoolingInfo | None) -> None:
    """Raise `InvalidRequest` if the model does not support the requested pooling."""
    if info is None:
        raise InvalidRequest(
            "This server only generates text (task=generate). Start it with --task auto or --task embed for embeddings."
        )
    if params.task == "score" and not info.labels:
        raise InvalidRequest(
            "This model has no head for scores: it cannot rerank or classify. Serve a reranker or a classifier, or "
            "compare embeddings."
        )
    if params.task == "embed" and info.labels:
        raise InvalidRequest(
            f"This model computes {len(info.labels)} score(s) of a text, not embeddings. "
            "Use /rerank, /score or /predict."
        )
    if params.dimensions is not None:
        expected = f"between 1 and {info.size}, the size of this model's embeddings"
        _require(1 <= params.dimensions <= info.size, "dimensions", params.dimensions, expected)
    if params.max_tokens is not None:
        _require(params.max_tokens >= 1, "truncate_prompt_tokens", params.max_tokens, "1 or more")


def check_lengths(num_prompt_tokens: int, params: SamplingParams, limits: EngineLimits) -> int:
    """
    Return the number of tokens at which a sequence ends: prompt and answer together.

    Raises:
        PromptTooLong: The prompt alone is too long.
        ContextTooLong: Prompt and answer together are too long.
    """
    max_total_tokens = limits.max_model_len
    if num_prompt_tokens > limits.max_prompt_tokens:
        raise PromptTooLong(prompt_tokens=num_prompt_tokens, max_prompt_tokens=limits.max_prompt_tokens)
    if params.max_new_tokens is None and params.max_total_tokens is not None:
        expected = f"more than the {num_prompt_tokens} tokens of the prompt, which count"
        _require(params.max_total_tokens > num_prompt_tokens, "max_length", params.max_total_tokens, expected)
        return min(params.max_total_tokens, max_total_tokens)
    if params.max_new_tokens is None:
        most = params.default_max_new_tokens
        return max_total_tokens if most is None else min(num_prompt_tokens + most, max_total_tokens)
    if num_prompt_tokens + params.max_new_tokens > max_total_tokens:
        if params.is_cut_at_context:
            return max_total_tokens
        raise ContextTooLong(
            prompt_tokens=num_prompt_tokens,
            max_new_tokens=params.max_new_tokens,
            max_total_tokens=max_total_tokens,
        )
    return num_prompt_tokens + params.max_new_tokens


def check_token_ids(token_ids: tuple[int, ...], *, vocab_size: int, param: str = "prompt") -> None:
    """Raise `InvalidRequest` if token ids are empty or have an id that the model does not know."""
    _require(len(token_ids) > 0, param, "", "at least one token")
    low, high = min(token_ids), max(token_ids)
    _require(low >= 0, param, low, "token ids of 0 or more")
    _require(high < vocab_size, param, high, f"token ids below {vocab_size}")


def _check_numbers(params: SamplingParams) -> None:
    _require(
        math.isfinite(params.temperature) and params.temperature >= 0, "temperature", params.temperature, "0 or more"
    )
    _require(params.top_k >= 0, "top_k", params.top_k, "0 (off) or more")
    for name in ("top_p", "typical_p"):
        value = getattr(params, name)
        _require(0 < value <= 1, name, value, "above 0 and at most 1")
    _require(0 <= params.min_p <= 1, "min_p", params.min_p, "between 0 and 1")
    penalty = params.repetition_penalty
    _require(math.isfinite(penalty) and penalty > 0, "repetition_penalty", penalty, "a number above 0")
    _require(params.temperature <= _MAX_FACTOR, "temperature", params.temperature, f"at most {_MAX_FACTOR:g}")
    expected = f"between {1 / _MAX_FACTOR:g} and {_MAX_FACTOR:g}"
    _require(1 / _MAX_FACTOR <= penalty <= _MAX_FACTOR, "repetition_penalty", penalty, expected)
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        _require(-2 <= value <= 2, name, value, "between -2 and 2")
    if params.seed is not None:
        _require(_MIN_SEED <= params.seed <= _MAX_SEED, "seed", params.seed, "a 64-bit integer")
    least, most = params.min_new_tokens, params.max_new_tokens
    if most is not None:
        _require(most >= 0, "max_new_tokens", most, "0 or more")
        _require(least <= most, "min_new_tokens", least, f"at most max_new_tokens ({most})")
    _require(least >= 0, "min_new_tokens", least, "0 or more")


def _check_choices(params: SamplingParams, limits: RequestLimits) -> None:
    most = limits.max_best_of
    _require(1 <= params.n <= most, "n", params.n, f"between 1 and {most} (max_best_of)")
    if params.best_of is not None:
        expected = f"between n ({params.n}) and {most} (max_best_of)"
        _require(params.n <= params.best_of <= most, "best_of", params.best_of, expected)


def _check_stops(params: SamplingParams, limits: RequestLimits, vocab_size: int) -> None:
    most = limits.max_stop_sequences
    _require(len(params.stop) <= most, "stop", len(params.stop), f"at most {most} strings (max_stop_sequences)")
    _require(all(params.stop), "stop", "", "strings that are not empty")
    if params.stop_token_ids:
        check_token_ids(params.stop_token_ids, vocab_size=vocab_size, param="stop_token_ids")


def _check_tokens(params: SamplingParams, vocab_size: int) -> None:
    if params.allowed_token_ids:
        check_token_ids(params.allowed_token_ids, vocab_size=vocab_size, param="allowed_token_ids")
    num_characters = sum(map(len, params.bad_words))
    expected = f"at most {_MAX_BAD_CHARACTERS} characters in all"
    _require(num_characters <= _MAX_BAD_CHARACTERS, "bad_words", num_characters, expected)
    _require(all(word.strip() for word in params.bad_words), "bad_words", "", "strings that are not empty")


def _check_repetition(rule: RepetitionDetection | None) -> None:
    if rule is None:
        return
    most = _MAX_PATTERN_SIZE
    for name, low, high in (
        ("max_pattern_size", 1, most),
        ("min_pattern_size", 1, rule.max_pattern_size),
        ("min_count", 2, _MAX_PATTERN_COUNT),
    ):
        value = getattr(rule, name)
        _require(low <= value <= high, f"repetition_detection.{name}", value, f"between {low} and {high}")


def _require(is_met: bool, name: str, value: object, expected: str) -> None:
    if not is_met:
        raise InvalidRequest(f"`{name}` is {value!r}; expected {expected}.", param=name, value=value)
