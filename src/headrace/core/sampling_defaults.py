"""Sampling values for what a request leaves open."""

from dataclasses import asdict, dataclass, fields

SMALL_MODEL_PARAMETERS = 1_000_000_000
"""Smaller models are fast in any format, lose most quality by rounding, and often repeat themselves."""
SMALL_MODEL_REPETITION_PENALTY = 1.1
"""SmolLM2-135M: 3 of 200 answers repeat themselves instead of 40, see benchmarks/first_answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """The values that a model's authors recommend; None where they name none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    source: str = ""
    """Origin of the values, such as `generation_config.json`."""

    def values(self) -> dict[str, float]:
        """Return the values that are named."""
        return {name: value for name, value in asdict(self).items() if name != "source" and value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedSampling:
    """The sampling defaults of the chat page, `headrace chat` and Ollama's API."""

    temperature: float = 0.2
    """The default values are those recommended for small instruction models such as SmolLM2."""
    top_p: float = 0.9
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


RECOMMENDED = tuple(field.name for field in fields(RecommendedSampling))
"""The fields for which a model may recommend a value."""


def recommended_sampling(defaults: SamplingDefaults, *, num_parameters: int) -> RecommendedSampling:
    """Return the model's recommendations, and the usual values for the rest."""
    values = {name: value for name, value in defaults.values().items() if name in RECOMMENDED}
    if not values and 0 < num_parameters < SMALL_MODEL_PARAMETERS:
        values["repetition_penalty"] = SMALL_MODEL_REPETITION_PENALTY
    return RecommendedSampling(**values)  # type: ignore[arg-type]  # `top_k` is a whole number


def describe_defaults(defaults: SamplingDefaults) -> str:
    """Return one line for people: the values and their source."""
    values = defaults.values()
    if not values:
        return "temperature 1, OpenAI's default: the model recommends none"
    shown = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in values.items())
    return f"{shown} ({defaults.source})"
