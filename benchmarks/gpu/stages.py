"""The stages of a measurement, the most important first, and the sizes of their steps."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One process, which measures one way to run the model."""

    name: str
    dtype: str
    is_invariant: bool = False
    limit_s: float = 150.0
    """Seconds after which it is killed, so that a stage that hangs leaves time to the others."""


@dataclass(frozen=True)
class Sizes:
    """The numbers of tokens and steps of a measurement."""

    context: int
    """Tokens before the decoded ones."""
    prompt: int
    """Tokens of the prefill."""
    steps: int
    """Decode steps of a run; the median of them counts."""
    batches: tuple[int, ...]
    """Sequences of the decode steps."""


STAGES = (
    Stage("bf16", "bf16", limit_s=240.0),
    Stage("bf16, batch-invariant", "bf16", is_invariant=True),
    Stage("fp8", "fp8"),
    Stage("w4a16", "w4a16"),
)
SIZES = {
    "tiny": Sizes(context=40, prompt=64, steps=3, batches=(1, 2, 5)),
    "8b": Sizes(context=512, prompt=2048, steps=64, batches=(1, 8, 64)),
}
