"""Masks, biases and penalties of logits on a device, in the order of `headrace.inference.runner.sampling.adjust`."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.inference.runner.step import Bias, History, Mask, StepInput
from headrace.inference.runner.torch.batch import upload

_WORD_BITS = 32


def adjust(raw: Tensor, step: StepInput) -> Tensor:
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
