"""
The reference sampler in numpy: from a row of logits to a token. The C++ sampler must agree bit for bit.

Both return the same token for the same row on any CPU: the mass of a token (its unnormalised probability) is an
integer, so sums do not depend on their order, and `exp` is a single-precision polynomial with every operation written
out. The random number is a function of seed and position only.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace.inference.runner.step import SAMPLING_DTYPE, Bias, Float32, History, Mask, StepInput, StepOutput

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

GREEDY_TEMPERATURE = 1e-5
"""A lower temperature means greedy: dividing by it would only overflow."""
MAX_TEMPERATURE = 1e30
MASS_BITS = 40
"""The best token has mass `2 ** MASS_BITS`; tokens less than half of `2 ** -MASS_BITS` as likely are never drawn."""
LOWEST_EXPONENT = -60.0
"""The mass of this exponent, and of any below it, is 0."""

NO_TOKEN = -1
"""
Reported where no token can be drawn: a logit is NaN or +inf, or everything is forbidden.

The logits of forbidden tokens matter only if a logprob is requested: a runner need not compute them otherwise.
"""


def sample_rows(logits: Float32, step: StepInput) -> StepOutput:
    """
    Sample a token for each row of logits (R, V), of which row i belongs to `step.rows[i]`.

    `NO_TOKEN` (with logprob NaN) stands where none can be drawn.
    """
    num_rows = len(step.sampling)
    num_columns = max(0, int(step.sampling["num_top"].max())) if num_rows else 0
    output = StepOutput(
        token_ids=np.full(num_rows, NO_TOKEN, np.int32),
        logprobs=np.full(num_rows, np.nan, np.float32),
        ranks=np.zeros(num_rows, np.int32),
        top_ids=np.full((num_rows, num_columns), -1, np.int32),
        top_logprobs=np.full((num_rows, num_columns), np.nan, np.float32),
    )
    histories = {item.row: item for item in step.histories}
    biases = {item.row: item for item in step.biases}
    masks = {item.row: item for item in step.masks}
    for index in range(num_rows):
        row, raw, mask = step.sampling[index], logits[index], masks.get(index)
        reads_allowed_only = mask is not None and row["target"] < 0 and row["num_top"] < 0
        if not reads_allowed_only and not _is_usable(raw):
            continue
        token: int = row["target"].item()
        if token < 0:
            adjusted = adjust(raw, row, histories.get(index), biases.get(index), mask)
            token = _draw(adjusted, row) if _is_usable(adjusted) else NO_TOKEN
        output.token_ids[index] = token
        if row["num_top"] >= 0:
            _report(raw, token, int(row["num_top"]), index, output)
    return output


def stack_sampling(rows: Sequence[Mapping[str, float]]) -> npt.NDArray[np.void]:
    """Return rows of `SAMPLING_DTYPE`; each mapping holds the fields that differ from greedy without logprobs."""
    stacked = np.zeros(len(rows), SAMPLING_DTYPE)
    for name, off in (("top_p", 1), ("typical_p", 1), ("repetition_penalty", 1), ("num_top", -1), ("target", -1)):
        stacked[name] = off
    for index, fields in enumerate(rows):
        for name, value in fields.items():
            stacked[name][index] = value
    return stacked


def adjust(raw: Float32, row: np.void, history: History | None, bias: Bias | None, mask: Mask | None) -> Float32:
    """Return a copy of the logits after mask, biases and penalties, in this order."""
    logits = raw.copy()
    if mask is not None:
        allowed = np.unpackbits(mask.words.view(np.uint8), bitorder="little")[: len(raw)]
        logits[allowed == 0] = -np.inf
    if bias is not None:
        np.add.at(logits, bias.ids, bias.values)
    if history is not None:
        _penalise(logits, row, history)
    return logits


def _penalise(logits: Float32, row: np.void, history: History) -> None:
    """Apply in place: repetition penalty over prompt and answer, frequency and presence penalty over the answer."""
    seen = np.unique(history.tokens)
    values = logits[seen]
    penalty = row["repetition_penalty"]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    answered, counts = np.unique(history.tokens[history.num_prompt_tokens :], return_counts=True)
    logits[answered] -= counts.astype(np.float32) * row["frequency_penalty"]
    logits[answered] -= row["presence_penalty"]


def _is_usable(logits: Float32) -> bool:
    """Return whether a token can be drawn: no NaN, no +inf, and at least one allowed token."""
    return bool((logits < np.inf).all() and logits.max() > -np.inf)


def _report(raw: Float32, token: int, num_top: int, index: int, output: StepOutput) -> None:
    relative = raw - raw.max()
    log_total = math.log(int(masses(relative).sum()) / 2**MASS_BITS)
    logprobs = (relative.astype(np.float64) - log_total).astype(np.float32)
    best = _by_logit(raw)[:num_top]
    if token != NO_TOKEN:
        output.logprobs[index] = logprobs[token]
        output.ranks[index] = 1 + int((raw > raw[token]).sum())
    output.top_ids[index, : len(best)] = best
    output.top_logprobs[index, : len(best)] = logprobs[best]


def _draw(logits: Float32, row: np.void) -> int:
    """Return the best token if greedy, else a random one of those that pass the filters."""
    if not row["temperature"] >= GREEDY_TEMPERATURE:
        return int(np.argmax(logits))
    inverse_temperature = np.float32(1) / min(row["temperature"], np.float32(MAX_TEMPERATURE))
    exponents = np.maximum((logits - logits.max()) * inverse_temperature, np.float32(LOWEST_EXPONENT))
    mass = masses(exponents)
    kept = np.sort(_filter(logits, exponents, mass, row))  # the cumulative mass is taken in order of token id
    cumulative = np.cumsum(mass[kept])
    point = (random_bits(int(row["seed"]), int(row["position"])) * int(cumulative[-1])) >> 64
    return int(kept[np.searchsorted(cumulative, np.uint64(point), side="right")])


def _filter(logits: Float32, exponents: Float32, mass: UInt64, row: np.void) -> Int64:
    """Return the ids that pass min-p, top-k, typical-p and top-p, applied in sequence; best first."""
    kept = _by_logit(logits)
    if row["top_k"] > 0:
        kept = kept[: row["top_k"]]
    if row["min_p"] > 0:  # may be applied after top-k: both keep a prefix of the same order
        kept = kept[mass[kept] >= _share(min(row["min_p"], np.float32(1)), 1 << MASS_BITS)]
    if row["typical_p"] < 1:
        surprise = -exponents[kept].astype(np.float64)
        mean = np.rint(mass[kept].astype(np.float64) * surprise).astype(np.uint64).sum().astype(np.float64)
        mean /= mass[kept].sum().astype(np.float64)
        by_id = np.argsort(kept)
        kept = kept[by_id[np.argsort(np.abs(surprise - mean)[by_id], kind="stable")]]
        kept = kept[: _prefix(mass[kept], row["typical_p"])]
        kept = kept[np.lexsort((kept, -logits[kept]))]
    if row["top_p"] < 1:
        kept = kept[: _prefix(mass[kept], row["top_p"])]
    return kept


def _by_logit(logits: Float32) -> Int64:
    """Return token ids in descending order of logit; ties go to the lowest id."""
    return np.argsort(-logits, kind="stable")


def _prefix(mass: UInt64, share: np.float32) -> int:
    """Return the length of the shortest prefix that has `share` of the whole mass, at least 1."""
    cumulative = np.cumsum(mass)
    return int(np.searchsorted(cumulative, _share(share, int(cumulative[-1])), side="left")) + 1


def _share(share: np.float32, total: int) -> np.uint64:
    return np.uint64(max(1, round(float(share) * float(total))))


def masses(exponents: Float32) -> UInt64:
    """
    Return `exp(exponents) * 2 ** MASS_BITS` rounded to integers; exponents are at most 0.

    The polynomial is that of Cephes `expf`; relative error below 2e-7.
    """
    x: Float32 = np.maximum(exponents, np.float32(LOWEST_EXPONENT))
    power: Float32 = np.rint(x * np.float32(1.44269504))  # C++ rounds by adding and subtracting 1.5 * 2 ** 23: the same
    r: Float32 = x - power * np.float32(0.693359375)
    r = r - power * np.float32(-2.12194440e-4)
    p: Float32 = np.full_like(r, 1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + np.float32(coefficient)
    value = p * (r * r) + r + np.float32(1)
    scaled: Float32 = np.ldexp(value, power.astype(np.int32) + MASS_BITS)
    mass: UInt64 = np.rint(scaled.astype(np.float64)).astype(np.uint64)
    return mass


def random_bits(seed: int, position: int) -> int:
    """
    Return 64 random bits for a seed and a position: the first half of Philox4x32-10.

    Paper: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    word = 0xFFFFFFFF
    c0, c1, c2, c3 = position & word, position >> 32, 0, 0
    k0, k1 = seed & word, seed >> 32
    for _ in range(10):
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & word, (low >> 32) ^ c3 ^ k1, low & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return c0 | c1 << 32
