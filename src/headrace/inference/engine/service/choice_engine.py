"""
The protocol between `AsyncEngine` and what computes its choices.

`AsyncEngine` handles the text on both sides (templates, tokens, grammars, stop strings) and the admission of requests;
a `ChoiceEngine` schedules the choices and produces their tokens: our own engine on its thread (`EngineThread`), or the
engine of another library.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from headrace.core.generation import EngineStats
from headrace.inference.engine.core.choice import Choice
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.service.adapters import AdapterContent


class ChoiceEngine(Protocol):
    """
    Runs choices until each has ended, and delivers their chunks to the `ChunkStream` that owns them.

    Every choice ends with exactly one chunk that has `finish`, also after an abort or a crash. The methods are called
    on the event loop of `start` unless they say otherwise, and return at once.
    """

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        ...

    @property
    def num_adapter_slots(self) -> int:
        """The number of adapters that may be loaded at the same time."""
        ...

    @property
    def delays_grammars(self) -> bool:
        """True if a grammar may begin in the middle of an answer: choices then have a `DelayedGrammar`."""
        ...

    @property
    def is_healthy(self) -> bool:
        """False once the engine cannot generate any more."""
        ...

    @property
    def crash(self) -> Exception | None:
        """The exception that ended the engine, if any."""
        ...

    def start(self) -> None:
        """Start running choices."""
        ...

    def begin_service(self, observer: EngineObserver) -> None:
        """Reset the totals after the warm-up and report to `observer` from now on."""
        ...

    def add(self, choices: list[Choice]) -> None:
        """
        Queue the choices of a request.

        Raises:
            InvalidRequest: A parameter is out of this engine's range; no choice was queued.
            Unavailable: The engine has ended.
        """
        ...

    def abort(self, choices: Iterable[Choice], *, message: str) -> None:
        """End choices soon; those that have ended already are skipped."""
        ...

    def fill_adapter_slot(self, slot: int, path: Path) -> AdapterContent:
        """
        Read an adapter into a slot that no choice uses. Called on a thread; blocks.

        Raises:
            BrokenModel, UnsupportedModel: The folder cannot be read or applied to this model.
            SettingsError: Adapters are off.
        """
        ...

    def stats(self) -> EngineStats:
        """Return the current load."""
        ...

    def stop(self) -> None:
        """Stop after the queued aborts and free the model. Called on a thread; blocks. Idempotent."""
        ...
