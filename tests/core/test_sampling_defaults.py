from functools import partial

from headrace.core.sampling_defaults import (
    RecommendedSampling,
    SamplingDefaults,
    describe_defaults,
    recommended_sampling,
)


def test_recommendations_of_the_checkpoint_override_the_usual_sampling() -> None:
    large = partial(recommended_sampling, num_parameters=8_000_000_000)
    assert large(SamplingDefaults()) == RecommendedSampling(temperature=0.2, top_p=0.9)
    defaults = SamplingDefaults(temperature=1.0, top_k=64, top_p=0.95)
    assert large(defaults) == RecommendedSampling(temperature=1.0, top_k=64, top_p=0.95)
    assert large(SamplingDefaults(temperature=0.0)).temperature == 0


def test_a_small_model_without_recommendations_is_kept_from_repeating_itself() -> None:
    small = partial(recommended_sampling, num_parameters=134_000_000)
    assert small(SamplingDefaults()) == RecommendedSampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1)
    assert small(SamplingDefaults(temperature=0.7)) == RecommendedSampling(temperature=0.7)


def test_a_cap_of_the_answer_is_no_recommended_sampling() -> None:
    defaults = SamplingDefaults(min_p=0.05, max_new_tokens=2048, source="generation_config.json")
    assert recommended_sampling(defaults, num_parameters=0) == RecommendedSampling(min_p=0.05)


def test_the_values_are_shown_with_their_source() -> None:
    defaults = SamplingDefaults(temperature=0.2, top_p=0.9, max_new_tokens=64, source="SmolLM2's model card")
    assert describe_defaults(defaults) == "temperature 0.2, top p 0.9, max new tokens 64 (SmolLM2's model card)"
    assert describe_defaults(SamplingDefaults(source="generation_config.json")).startswith("temperature 1, OpenAI's")
