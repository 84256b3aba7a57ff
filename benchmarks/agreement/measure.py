"""Agreement of the logits of two programs with those of transformers, and a table of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.harness import results

from headrace.inference.runner.step import Float32

GENERATED = 24
"""Greedy tokens after the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A network as transformers, llama.cpp and Headrace compute it; errors are shares of the largest logit."""

    network: str
    architecture: str
    why: str
    failure: str = ""
    """Why llama.cpp did not run; the rest is empty then."""
    llamacpp_error: float = 0.0
    """Of llama.cpp, to transformers."""
    headrace_error: float = 0.0
    """Of Headrace's reference, to transformers."""
    difference: float = 0.0
    """Of Headrace's reference, to llama.cpp."""
    same_text: int = 0
    """Greedy tokens of the reference before the first that llama.cpp does not choose."""
    num_tokens: int = 0
    """Of prompt and answer."""
    native_same: int = 0
    """Tokens among prompt and answer after which native kernels (bf16) choose the same as llama.cpp."""
    native_gap: float = 0.0
    """The largest lead in llama.cpp of a token that native kernels did not choose, as a share of the largest logit."""


def measured(row: Agreement, expected: Float32, theirs: Float32, reference: Float32, native: Float32) -> Agreement:
    scale = float(np.abs(expected).max())
    best = theirs.argmax(axis=1)
    text = (reference.argmax(axis=1) == best)[-GENERATED - 1 : -1]
    chosen = native.argmax(axis=1)
    rows = np.arange(len(theirs))
    return replace(
        row,
        num_tokens=len(theirs),
        llamacpp_error=float(np.abs(theirs - expected).max()) / scale,
        headrace_error=float(np.abs(reference - expected).max()) / scale,
        difference=float(np.abs(reference - theirs).max()) / scale,
        same_text=GENERATED if text.all() else int(text.argmin()),
        native_same=int((chosen == best).sum()),
        native_gap=float((theirs[rows, best] - theirs[rows, chosen]).max()) / scale,
    )


def page(rows: Sequence[Agreement], description: str) -> str:
    """Return a title, the versions, a table and notes; a row of a network that llama.cpp refused has no numbers."""
    measures = ("llama.cpp", "Headrace", "greedy tokens", "same in bf16", "largest lead")
    cells = []
    for row in rows:
        errors = [f"{error:.0e}" for error in (row.llamacpp_error, row.headrace_error)]
        same = [f"{row.same_text} of {GENERATED}", f"{row.native_same} of {row.num_tokens}"]
        lead = f"{row.native_gap:.0e}" if row.native_gap else "0"
        numbers = ["-"] * len(measures) if row.failure else [*errors, *same, lead]
        cells.append([row.network, f"`{row.architecture}`", *numbers])
    table = results.table(("network", "architecture", *measures), cells, text_columns=2)
    notes = [f"- **{row.network}**: {'; '.join(filter(None, (row.failure, row.why)))}." for row in rows]
    known = [note for note, row in zip(notes, rows, strict=True) if row.failure or row.why]
    title = "# Agreement with llama.cpp"
    return "\n\n".join((title, description, table, "What llama.cpp does or reads:", "\n".join(known))) + "\n"
