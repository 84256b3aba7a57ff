"""
Sampling by the rules of `headrace.inference.runner.sampling`, wherever the logits are.

A CPU uses the native sampler. A GPU uses eager torch and two Triton kernels, on the device: only tokens and logprobs
are copied to the host. All of them draw the same token from the same logits: eager torch rounds after every operation,
as the definition demands, and masses are integers: the order in which a device adds them does not matter. Letters in
shapes: `R` logit rows, `V` vocabulary, `K` alternatives.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace import _native
from headrace.inference.runner.sampling import (
    GREEDY_TEMPERATURE,
    LOWEST_EXPONENT,
    MASS_BITS,
    MAX_TEMPERATURE,
    NO_TOKEN,
    random_bits,
)
from headrace.inference.runner.step import SAMPLING_DTYPE, Bias, History, Mask, StepInput, StepOutput
from headrace.inference.runner.torch.batch import upload, uses_triton

Sampling = npt.NDArray[np.void]

_ROWS_AT_A_TIME: Final = 64
"""Bounds the memory of the intermediate numbers, 8 bytes for each logit."""
_FLOAT_BIAS: Final = 127
_FLOAT_FRACTION_BITS: Final = 23
_WORD: Final = 0xFFFFFFFF
_WORD_BITS: Final = 32


def sample(logits: Tensor, step: StepInput) -> StepOutput:
    """
    Sample a token for each row of the logits (R, V) of a step, with the parameters in `step.sampling`.

    A row of which no token can be drawn has `NO_TOKEN`, with logprob NaN. There are no hidden states.
    """
    if logits.device.type != "cpu":
        return sample_on_device(logits, step)
    token_ids, logprobs, ranks, top_ids, top_logprobs = _native.sample_rows(
        np.ascontiguousarray(logits.float().numpy()),
        step.sampling.view(np.uint8).reshape(len(step.sampling), SAMPLING_DTYPE.itemsize),
        [(item.row, item.tokens, item.num_prompt_tokens) for item in step.histories],
        [(item.row, item.ids, item.values) for item in step.biases],
        [(item.row, item.words) for item in step.masks],
    )
    return StepOutput(token_ids=token_ids, logprobs=logprobs, ranks=ranks, top_ids=top_ids, top_logprobs=top_logprobs)


class _Sampled(NamedTuple):
    """Tokens, logprobs and ranks (R,), and the best ids and their logprobs (R, K)."""

    tokens: Tensor
    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def sample_on_device(logits: Tensor, step: StepInput) -> StepOutput:
    """Sample a token for each row of logits (R, V); only the results are copied to the host."""
    num_rows = len(step.sampling)
    num_columns = max(0, int(step.sampling["num_top"].max(initial=0)))
    raw = logits.float()
    adjusted = _adjust(raw, step)
    masked = np.isin(np.arange(num_rows), [mask.row for mask in step.masks])
    pieces = []
    for first in range(0, num_rows, _ROWS_AT_A_TIME):
        rows = slice(first, first + _ROWS_AT_A_TIME)
        pieces.append(_sample(raw[rows], adjusted[rows], step.sampling[rows], masked[rows], num_columns))
    if not pieces:
        return _output(np.empty(0, np.int32), 0, num_columns)
    parts = [torch.cat(part) for part in zip(*pieces, strict=True)]
    packed = torch.cat([part.contiguous().view(torch.int32).flatten() for part in parts]).cpu().numpy()
    return _output(packed, num_rows, num_columns)


def _output(packed: npt.NDArray[np.int32], num_rows: int, num_columns: int) -> StepOutput:
    """Return tokens, logprobs, ranks, best ids and their logprobs, which are packed in this order."""
    sizes = [num_rows, num_rows, num_rows, num_rows * num_columns]
    tokens, logprobs, ranks, top_ids, top_logprobs = np.split(packed, np.cumsum(sizes))
    return StepOutput(
        token_ids=tokens,
        logprobs=logprobs.view(np.float32),
        ranks=ranks,
        top_ids=top_ids.reshape(num_rows, num_columns),
        top_logprobs=top_logprobs.view(np.float32).reshape(num_rows, num_columns),
    )


def _sample(
    raw: Tensor, adjusted: Tensor, sampling: Sampling, masked: npt.NDArray[np.bool_], num_columns: int
) -> _Sampled:
    target = upload(sampling["target"], raw.device)
    reads_allowed_only = masked & (sampling["target"] < 0) & (sampling["num_top"] < 0)
    usable = _usable(raw) | upload(reads_allowed_only, raw.device)
    drawn = torch.where(_usable(adjusted), draw(adjusted, sampling), NO_TOKEN)
    tokens = torch.where(usable, torch.where(target >= 0, target, drawn), NO_TOKEN)
    logprobs = raw.new_full((len(raw),), torch.nan)
    top_ids = torch.full((len(raw), num_columns), -1, dtype=torch.int32, device=raw.device)
    ranks = torch.zeros(len(raw), dtype=torch.int32, device=raw.device)
    sampled = _Sampled(tokens, logprobs, ranks, top_ids, raw.new_full((len(raw), num_columns), torch.nan))
    if (sampling["num_top"] >= 0).any():
        _report(raw, usable, sampling, sampled)
    return sampled


def _usable(logits: Tensor) -> Tensor:
    """Return for each row whether a token can be drawn: no NaN, no +inf, and at least one allowed token."""
    return (logits < torch.inf).all(-1) & (logits.amax(-1) > -torch.inf)


def masses(exponents: Tensor) -> Tensor:
    """Return `exp(exponents) * 2 ** MASS_BITS` rounded to integers, with the bits of `sampling.masses`."""
    x = exponents.clamp_min(LOWEST_EXPONENT)
    power = torch.round(x * 1.44269504)
    r = x - power * 0.693359375
    r = r - power * -2.12194440e-4
    p = torch.full_like(r, 1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + coefficient
    value = p * (r * r) + r + 1.0
    # ldexp of torch multiplies by a power that not every device computes exactly.
    factor = ((power.int() + (MASS_BITS + _FLOAT_BIAS)) << _FLOAT_FRACTION_BITS).view(torch.float32)
    return torch.round(value * factor).long()


def draw(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return a token (R,) int32 for each row of adjusted logits (R, V)."""
    greedy = ~(sampling["temperature"] >= GREEDY_TEMPERATURE)
    filtered = ~greedy & (
        (sampling["top_k"] > 0) | (sampling["min_p"] > 0) | (sampling["typical_p"] < 1) | (sampling["top_p"] < 1)
    )
    kinds = ((greedy, lambda rows, _: rows.argmax(-1)), (filtered, _draw_filtered), (~greedy & ~filtered, _draw_any))
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    for chosen, function in kinds:
        if chosen.all():
            return function(logits, sampling).int()
        if chosen.any():
            rows = upload(np.flatnonzero(chosen), logits.device)
            tokens[rows] = function(logits[rows], sampling[chosen]).int()
    return tokens


def _draw_any(logits: Tensor, sampling: Sampling) -> Tensor:
    if uses_triton(logits):
        from headrace.inference.runner.torch.kernels.sampling import draw_any

        return draw_any(logits, _inverse_temperatures(logits, sampling)[:, 0], _random_bits(logits, sampling)[:, 0])
    return _pick(masses(_exponents(logits, sampling)), sampling)


def _draw_filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Draw from the tokens that pass top-k, min-p, typical-p and top-p, applied in sequence."""
    exponents = _exponents(logits, sampling)
    mass = masses(exponents)
    by_logit = _by_logit(logits)
    top_k = upload(np.where(sampling["top_k"] > 0, sampling["top_k"], logits.shape[-1]), logits.device)[:, None]
    ranks = torch.empty_like(by_logit).scatter_(-1, by_logit, _positions(logits).expand_as(by_logit))
    kept = ranks < top_k
    if (sampling["min_p"] > 0).any():
        least = np.rint(np.minimum(sampling["min_p"], np.float32(1)).astype(np.float64) * float(1 << MASS_BITS))
        least = np.where(sampling["min_p"] > 0, np.maximum(least, 1), 0)
        kept &= mass >= upload(least.astype(np.int64), logits.device)[:, None]
    if (sampling["typical_p"] < 1).any():
        kept &= _typical(exponents, mass * kept, kept, sampling)
    mass = mass * kept
    if (sampling["top_p"] < 1).any():
        mass = mass * _prefix(mass, by_logit, _column(logits, sampling["top_p"]))
    return _pick(mass, sampling)


def _typical(exponents: Tensor, mass: Tensor, kept: Tensor, sampling: Sampling) -> Tensor:
    """Return which of the kept tokens typical-p keeps: those whose surprise is nearest to the mean."""
    surprise = -exponents.double()
    weighed = torch.round(mass.double() * surprise).long().sum(-1, keepdim=True).double()
    mean = weighed / mass.sum(-1, keepdim=True).double()
    distance = (surprise - mean).abs().masked_fill(~kept, torch.inf)
    share = _column(exponents, sampling["typical_p"])
    return _prefix(mass, distance.sort(dim=-1, stable=True).indices, share)


def _prefix(mass: Tensor, order: Tensor, shares: Tensor) -> Tensor:
    """Return which tokens (R, V) are in the shortest prefix of an order that has its share (R, 1) of the whole mass."""
    cumulative = mass.gather(-1, order).cumsum(-1)
    least = torch.round(shares.double() * cumulative[:, -1:].double()).long().clamp_min(1)
    last = torch.searchsorted(cumulative, least)
    inside = (_positions(mass) <= last) | (shares >= 1)
    return torch.zeros_like(inside).scatter_(-1, order, inside)


def _pick(mass: Tensor, sampling: Sampling) -> Tensor:
    """Return the token at a random point of each row's mass (R, V), in order of token id."""
    cumulative = mass.cumsum(-1)
    point = multiply_high(_random_bits(mass, sampling), cumulative[:, -1:])
    return torch.searchsorted(cumulative, point, right=True)[:, 0].clamp_max(mass.shape[-1] - 1)


def multiply_high(bits: Tensor, total: Tensor) -> Tensor:
    """Return the upper 64 bits of the product of 64 bits, taken as an unsigned number, and a total below 2 ** 62."""
    bits_low, bits_high = bits & _WORD, (bits >> 32) & _WORD
    total_low, total_high = total & _WORD, total >> 32
    first_high, first_low = _multiply_words(bits_high, total_low)
    second_high, second_low = _multiply_words(bits_low, total_high)
    carry = (first_low + second_low + _multiply_words(bits_low, total_low)[0]) >> 32
    return bits_high * total_high + first_high + second_high + carry


def _multiply_words(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and lower 32 bits of the product of two numbers of 32 bits, without a sign."""
    low = a * (b & 0xFFFF)
    middle = a * (b >> 16) + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def _report(raw: Tensor, usable: Tensor, sampling: Sampling, sampled: _Sampled) -> None:
    """Write the logprobs of the tokens and of the best alternatives of the rows that request them."""
    num_top = upload(sampling["num_top"], raw.device)
    reported = usable & (num_top >= 0)
    relative = raw - raw.amax(-1, keepdim=True)
    log_total = torch.log(masses(relative).sum(-1, keepdim=True).double() / 2.0**MASS_BITS)
    logprobs = (relative.double() - log_total).float()
    own = logprobs.gather(-1, sampled.tokens.long().clamp_min(0)[:, None])[:, 0]
    is_told = reported & (sampled.tokens != NO_TOKEN)
    sampled.logprobs.copy_(torch.where(is_told, own, torch.nan))
    logits = raw.gather(-1, sampled.tokens.long().clamp_min(0)[:, None])
    sampled.ranks.copy_(torch.where(is_told, 1 + (raw > logits).sum(-1), 0))
    num_columns = min(sampled.top_ids.shape[-1], raw.shape[-1])
    if num_columns:
        best = _by_logit(raw)[:, :num_columns]
        shown = reported[:, None] & (_positions(best) < num_top[:, None])
        sampled.top_ids[:, :num_columns] = torch.where(shown, best, -1).int()
        sampled.top_logprobs[:, :num_columns] = torch.where(shown, logprobs.gather(-1, best), torch.nan)


def _by_logit(logits: Tensor) -> Tensor:
    return (logits + 0.0).sort(dim=-1, descending=True, stable=True).indices  # the sum turns -0 into 0: a tie


def _exponents(logits: Tensor, sampling: Sampling) -> Tensor:
    scaled = (logits - logits.amax(-1, keepdim=True)) * _inverse_temperatures(logits, sampling)
    return scaled.clamp_min(LOWEST_EXPONENT)


def _inverse_temperatures(like: Tensor, sampling: Sampling) -> Tensor:
    return _column(like, np.float32(1) / np.minimum(sampling["temperature"], np.float32(MAX_TEMPERATURE)))


def _random_bits(like: Tensor, sampling: Sampling) -> Tensor:
    bits = [random_bits(int(row["seed"]), int(row["position"])) for row in sampling]
    return _column(like, np.array(bits, np.uint64).view(np.int64))


def _positions(like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device)


def _column(like: Tensor, numbers: npt.NDArray[np.generic]) -> Tensor:
    return upload(numbers, like.device)[:, None]


def _adjust(raw: Tensor, step: StepInput) -> Tensor:
    """Return the logits (R, V) after masks, biases and penalties; `raw` itself if the step has none."""
    if not (step.masks or step.biases or step.histories):
        return raw
    logits = raw.clone()
    if step.masks:
        _forbid(logits, step.masks)
    for rows, ids, values in _unique_biases(step.biases):
        logits[upload(rows, raw.device), upload(ids, raw.device)] += upload(values, raw.device)
    if step.histories:
        _penalise(logits, step.histories, step.sampling)
    return logits


def _forbid(logits: Tensor, masks: Sequence[Mask]) -> None:
    rows = upload(np.array([mask.row for mask in masks]), logits.device)
    words = upload(np.stack([mask.words for mask in masks]).view(np.int32), logits.device)
    bits = torch.arange(_WORD_BITS, dtype=torch.int32, device=logits.device)
    allowed = ((words[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]]
    logits[rows] = logits[rows].masked_fill(allowed == 0, -torch.inf)


def _unique_biases(biases: Sequence[Bias]) -> Iterator[tuple[npt.NDArray[np.generic], ...]]:
    """Yield rows, ids and values of the biases such that no logit is in a group twice: a sum depends on its order."""
    if not biases:
        return
    rows = np.repeat([bias.row for bias in biases], [len(bias.ids) for bias in biases])
    ids = np.concatenate([bias.ids for bias in biases]).astype(np.int64)
    values = np.concatenate([bias.values for bias in biases])
    while len(ids):
        _, first = np.unique(np.stack([rows, ids]), axis=1, return_index=True)
        yield rows[first], ids[first], values[first]
        rows, ids, values = (np.delete(array, first) for array in (rows, ids, values))


def _penalise(logits: Tensor, histories: Sequence[History], sampling: npt.NDArray[np.void]) -> None:
    """Apply in place: repetition penalty over prompt and answer, frequency and presence penalty over the answer."""
    index = np.array([history.row for history in histories])
    rows = upload(index, logits.device)
    seen = _counts(logits, [history.tokens for history in histories])
    answered = _counts(logits, [history.tokens[history.num_prompt_tokens :] for history in histories])
    repetition, frequency, presence = (
        upload(sampling[f"{name}_penalty"][index], logits.device)[:, None]
        for name in ("repetition", "frequency", "presence")
    )
    values = logits[rows]
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(seen > 0, repeated, values)
    lowered = values - answered.float() * frequency
    logits[rows] = torch.where(answered > 0, lowered - presence, values)


def _counts(logits: Tensor, texts: Sequence[npt.NDArray[np.int32]]) -> Tensor:
    """Return how often each text has each token, (texts, V) int32."""
    counts = torch.zeros((len(texts), logits.shape[1]), dtype=torch.int32, device=logits.device)
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    places = upload(rows * logits.shape[1] + np.concatenate(texts), logits.device)
    counts.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))
    return counts
