"""Stand-in for `transformers_neuronx.generation_utils`."""

from typing import Any

from .module import CpuModelForSampling


class HuggingFaceGenerationModelAdapter:
    """Offers `generate` of transformers over a model for sampling."""

    def __init__(self, config: Any, model: CpuModelForSampling) -> None:
        self.config = config
        self.model = model

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the model of transformers, such as `device` or `generation_config`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model.network, name)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate; takes the arguments of `transformers.GenerationMixin.generate`."""
        self.model.check_batch(args[0] if args else kwargs.get("input_ids", kwargs.get("inputs")))
        return self.model.network.generate(*args, **kwargs)

    def reset_generation(self) -> None:
        """Forget the last request. Nothing is kept between calls of `generate` here."""
