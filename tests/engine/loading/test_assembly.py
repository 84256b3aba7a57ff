"""Sampling defaults from the checkpoint."""

from headrace.core.generation import RecommendedSampling
from headrace.engine.loading.assembly import recommended_sampling
from headrace.models.model import GenerationDefaults


def test_recommendations_of_the_checkpoint_override_the_usual_sampling() -> None:
    assert recommended_sampling(GenerationDefaults()) == RecommendedSampling(temperature=0.2, top_p=0.9)
    defaults = GenerationDefaults(temperature=1.0, top_k=64, top_p=0.95)
    assert recommended_sampling(defaults) == RecommendedSampling(temperature=1.0, top_k=64, top_p=0.95)
    assert recommended_sampling(GenerationDefaults(temperature=0.0)).temperature == 0
