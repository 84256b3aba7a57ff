"""Settings of a server with many models (`headrace serve --models`)."""

from dataclasses import dataclass

from headrace.serving.settings import rules
from headrace.serving.settings.rules import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyModelsSettings:
    """The settings that a server for one model does not have."""

    models: str | None = setting(rules.text("a folder of models, or a .yaml or .json file", "PATH"), None)
    """
    Serve many models, which requests choose by `model`: a folder of models, or a file with settings for each, see
    [many models](many-models.md). `model` is then the name of the one for requests that name none. Default: one model.
    """

    models_max: int | None = setting(rules.integer(1), None)
    """
    With `models`: most models in memory at the same time. Default: limited by `max_memory_bytes` only, which then is
    the memory of all models together.
    """

    models_hub: str = setting(rules.choice("off", "cache", "any"), "off")
    """
    With `models`: models that requests may name besides those. `cache`: what `headrace models ls` lists; `any`: all of
    the Hub too, which the server downloads. Off, because with `any` clients decide what is downloaded.
    """

    model_ttl_s: float | None = setting(rules.number(0, "seconds"), None)
    """
    With `models`: idle time after which a model is unloaded; 0: after its last request. Default: when another model
    needs its memory.
    """
