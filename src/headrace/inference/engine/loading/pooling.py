"""The use of a model: generation, embeddings or scores, by its files and the settings."""

from dataclasses import dataclass, replace
from typing import Final, Literal, cast

from headrace.core.errors import SettingsError
from headrace.core.generation import PoolingInfo, PoolingMethod
from headrace.inference.models.decoding import decode
from headrace.inference.models.model import Model
from headrace.inference.models.pooling import DenseLayer, Pooler
from headrace.inference.models.weights import cut_tensor

_QWEN3_PAIR: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
_GEMMA_PAIR: Final = (
    "<bos>A: {query}\nB: {document}\nGiven a query A and a passage B, determine whether the passage contains an answer "
    "to the query by providing a prediction of either 'Yes' or 'No'."
)
_RERANKERS: Final = {"qwen3": (_QWEN3_PAIR, "yes", "no"), "gemma": (_GEMMA_PAIR, "Yes", None)}
"""
Family → template of a pair, and the tokens whose logits are the score: the difference, or the first one alone.
Source: the model cards of Qwen3-Reranker and bge-reranker-v2-gemma.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The use of a model, resolved."""

    generates: bool
    pooler: Pooler | None
    """None: it only generates."""


def resolve_use(model: Model, *, task: str, pooling: str) -> Use:
    """Resolve the use of a model from its files and these settings; raise `SettingsError` if it does not support it."""
    if task == "generate":
        if not model.generates:
            raise SettingsError(
                f"task is generate, but {model.name} has no LM head: it is an embedding model, a reranker or a "
                "classifier. Use --task auto.",
                name="task",
            )
        return Use(generates=True, pooler=None)
    pooler = _scorer(model) if task == "score" else model.pooler
    if task in {"embed", "features"} and pooler is not None and pooler.labels:
        raise SettingsError(f"task is {task}, but {model.name} computes scores, not embeddings. Use --task score.")
    method = cast("PoolingMethod", pooling)
    if pooler is None:
        default: Literal["last", "mean"] = "last" if model.spec.is_causal else "mean"
        pooler = Pooler(method=default if pooling == "auto" else method)
    elif pooling != "auto":
        pooler = replace(pooler, method=method)
    pooler = replace(pooler, has_token_types=model.spec.token_types > 1)
    return Use(generates=task == "auto" and model.generates and model.pooler is None, pooler=pooler)


def pooling_info(use: Use, *, hidden_size: int, max_tokens: int) -> PoolingInfo | None:
    """Describe the pooling of a model, of inputs of up to `max_tokens`."""
    pooler = use.pooler
    if pooler is None:
        return None
    return PoolingInfo(
        method=pooler.method,
        size=pooler.size(hidden_size),
        max_tokens=min(max_tokens, pooler.max_tokens or max_tokens),
        normalizes=pooler.normalizes,
        labels=pooler.labels,
        problem_type=pooler.problem_type,
        prompts=pooler.prompts,
        default_prompt=pooler.default_prompt,
    )


def _scorer(model: Model) -> Pooler:
    """Return the head of a model, or the one that a reranker with answers "yes" and "no" has in its LM head."""
    if model.pooler is not None and model.pooler.labels:
        return model.pooler
    found = _RERANKERS.get(model.spec.family)
    ids = [] if found is None else [model.tokenizer.token_id(word) for word in found[1:] if word is not None]
    if found is None or None in ids or not model.generates:
        known = ", ".join(_RERANKERS)
        raise SettingsError(
            f"task is score, but {model.name} has no classification head. Expected a checkpoint with one "
            f"(...ForSequenceClassification), or a reranker of the families {known} that answers yes or no.",
            name="task",
        )
    name = "embed" if model.spec.tie_embeddings else "lm_head"
    matrix = model.weights.load(name)
    rows = [decode(cut_tensor(matrix, range(index, index + 1), None)) for index in ids if index is not None]
    weight = rows[0] if len(rows) == 1 else rows[0] - rows[1]
    return Pooler(
        method="last",
        layers=(DenseLayer(weight=weight),),
        normalizes=False,
        labels=(found[1],),
        pair_template=found[0],
    )
