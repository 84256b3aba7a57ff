"""
The way in which a network of transformers is run, or the reason why it cannot be: decided by facts about its code.

`Tier.PAGED`: its attention is replaced by ours, and all sequences of a step are one row of tokens. This needs a network
that passes everything its attention depends on through transformers' `AttentionInterface`: what only the mask holds
(chunks, ALiBi) would be lost silently.
`Tier.BY_SEQUENCE`: it is called once for each sequence, and its cache is a view of our blocks. It makes its own masks.
"""

import enum
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.errors import UnsupportedModel

_PAGED_LAYERS: Final = frozenset({"full_attention", "sliding_attention"})
_CHUNKED: Final = "chunked_attention"
_DYNAMIC: Final = "dynamic"
_WITHOUT_CACHE: Final = frozenset({"moe", "sparse", "dense", "mlp"})
"""Layers without attention, or old names for kinds of MLP."""
_OTHER_BACKEND: Final = "Serve it with --backend vllm."


class Tier(enum.Enum):
    """A way to call a network."""

    PAGED = "paged attention"
    BY_SEQUENCE = "one call a sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """The properties of a network's class, code and config that decide how it is run."""

    architecture: str
    has_attention_interface: bool
    takes_positions: bool
    """`forward` has `position_ids`."""
    is_stateful: bool
    layer_types: frozenset[str]
    has_chunks: bool
    """Attention ends at the borders of chunks."""
    loses_window: bool
    """There is a sliding window, and only the mask has it."""
    is_bidirectional: bool
    varying_ropes: frozenset[str]
    """Types of rotary embedding that change with the longest sequence of a call, within the context that is served."""


def choose_tier(facts: NetworkFacts) -> Tier:
    """
    Return the way to call a network.

    Raises `UnsupportedModel` if a token depends on more than the keys and values of those before it.
    """
    name = facts.architecture
    states = facts.layer_types - _PAGED_LAYERS - _WITHOUT_CACHE - {_CHUNKED}
    if facts.is_stateful or states:
        kinds = f" (layers: {', '.join(sorted(states))})" if states else ""
        raise UnsupportedModel(
            f"{name} keeps a state{kinds} beside keys and values, which blocks of a KV cache cannot hold. "
            + _OTHER_BACKEND,
            architecture=name,
        )
    if facts.is_bidirectional:
        raise UnsupportedModel(
            f"{name} attends in both directions, so it does not generate token by token. {_OTHER_BACKEND}",
            architecture=name,
        )
    if _DYNAMIC in facts.varying_ropes:
        raise UnsupportedModel(
            f"{name} has a dynamic rotary embedding, which transformers adapts to the longest sequence that it has "
            "seen: answers would depend on other requests. Lower max_model_len to the original context, or use "
            "--backend native.",
            architecture=name,
        )
    is_paged = facts.has_attention_interface and facts.takes_positions
    is_lossy = facts.has_chunks or facts.loses_window or bool(facts.varying_ropes)
    return Tier.PAGED if is_paged and not is_lossy else Tier.BY_SEQUENCE


def network_facts(model: Any, *, max_model_len: int) -> NetworkFacts:
    """Read the facts of a network that transformers has built, for contexts of `max_model_len` tokens."""
    config = model.config.get_text_config(decoder=True)
    layer_types = frozenset(getattr(config, "layer_types", None) or ())
    sources = list(_sources(model))
    return NetworkFacts(
        architecture=type(model).__name__,
        has_attention_interface=bool(model.is_backend_compatible()),
        takes_positions="position_ids" in inspect.signature(model.forward).parameters,
        is_stateful=bool(getattr(model, "_is_stateful", False)),
        layer_types=layer_types,
        has_chunks=_CHUNKED in layer_types
        or (
            getattr(config, "attention_chunk_size", None) is not None
            and any("create_chunked_causal_mask(" in source for source in sources)
        ),
        loses_window=getattr(config, "sliding_window", None) is not None
        and (not layer_types or "sliding_attention" in layer_types)
        and any(
            "create_sliding_window_causal_mask(" in source and "sliding_window=" not in source for source in sources
        ),
        # Or the code is that of an encoder that its config may turn into a decoder, as BERT's.
        is_bidirectional=getattr(config, "use_bidirectional_attention", None) in (True, "all")
        or (
            getattr(config, "is_decoder", None) is False
            and any("create_bidirectional_mask(" in source and "config.is_decoder" in source for source in sources)
        ),
        varying_ropes=frozenset(_varying_ropes(config, max_model_len)),
    )


def cache_argument(model: Any) -> str:
    """
    Return the name of the argument for the KV cache, which transformers 5.24 renamed in most networks.

    A `forward` of a checkpoint's own code may pass its keyword arguments on to the class that it extends.
    """
    for owner in type(model).__mro__:
        if forward := vars(owner).get("forward"):
            parameters = inspect.signature(forward).parameters
            if name := next((name for name in ("cache", "past_key_values") if name in parameters), None):
                return name
    return "past_key_values"


def _sources(model: Any) -> Iterable[str]:
    """Yield the code of the modules that define the network and its parts."""
    names = {type(part).__module__ for part in model.modules() if hasattr(type(part), "config_class")}
    for name in sorted(names | {type(model).__module__}):
        try:
            yield inspect.getsource(sys.modules[name])
        except (KeyError, OSError, TypeError):
            continue


def _varying_ropes(config: Any, max_model_len: int) -> Iterable[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        kind = rope.get("rope_type")
        original = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
        if kind in {_DYNAMIC, "longrope"} and max_model_len > (original or 0):
            yield kind
