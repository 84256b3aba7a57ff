"""The models that requests may name: those of the folder or file, of the caches, and of the Hub if it is allowed."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

from headrace.core.errors import SettingsError
from headrace.inference.models.aliases import ALIASES
from headrace.inference.models.hub import parse_hub_ref
from headrace.inference.models.sources import home_folder
from headrace.inference.models.store import StoredKind, list_models
from headrace.platform.cluster.many_models.presets import ModelPreset, read_presets

HubAccess = Literal["off", "cache", "any"]
_MAX_REMOTE: Final = 1000
"""Models of the Hub that requests have named and that are remembered."""
_TAG: Final = ":latest"
"""Ollama's clients add it to names."""
_HUB_PREFIX: Final = "hf.co/"
"""Begins the names of models of the Hub in Ollama."""


class Catalogue:
    """Finds a model by a name that a client sent, which never becomes a path."""

    def __init__(self, source: Path, *, hub: HubAccess, env: Mapping[str, str]) -> None:
        """Read the models. Raises `SettingsError`."""
        self._source = source
        self._hub = hub
        self._home = home_folder(env)
        self._by_name: dict[str, ModelPreset] = {}
        self._remote: OrderedDict[str, ModelPreset] = OrderedDict()
        self.presets: tuple[ModelPreset, ...] = ()
        """The models to list, each once."""
        self.refresh()

    def refresh(self) -> None:
        """Read the folder or file and the caches again; blocks. Raises `SettingsError`: then nothing has changed."""
        presets = read_presets(self._source)
        by_name: dict[str, ModelPreset] = {}
        for preset in presets:
            for name in preset.names:
                if name in by_name:
                    both = f"{by_name[name].name} and {preset.name}"
                    raise SettingsError(f"{self._source}: two models have the name {name!r}: {both}.", name="models")
                by_name[name] = preset
        cached = [preset for preset in self._cached() if preset.name not in by_name]
        self.presets = (*presets, *cached)
        self._by_name = {preset.name: preset for preset in cached} | by_name

    def find(self, name: str) -> ModelPreset | None:
        """Return the model of that name, also with Ollama's tag `latest`; None if there is none."""
        for known in (name, name.removesuffix(_TAG)):
            if known in self._by_name:
                return self._by_name[known]
        return self._find_remote(name.removesuffix(_TAG).removeprefix(_HUB_PREFIX)) if self._hub == "any" else None

    def _cached(self) -> Iterable[ModelPreset]:
        if self._hub == "off":
            return ()
        stored = list_models(self._home)
        return [ModelPreset(name=model.name, model=model.name) for model in stored if model.kind in _CACHED_KINDS]

    def _find_remote(self, name: str) -> ModelPreset | None:
        # A name that is a path here would be served from there.
        is_remote = (name in ALIASES or parse_hub_ref(name) is not None) and not Path(name).exists()
        if not is_remote:
            return None
        preset = self._remote.setdefault(name, ModelPreset(name=name, model=name))
        self._remote.move_to_end(name)
        if len(self._remote) > _MAX_REMOTE:
            self._remote.popitem(last=False)
        return preset


_CACHED_KINDS: Final = (StoredKind.ALIAS, StoredKind.HUB)
