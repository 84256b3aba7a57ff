"""The way in which a network is run follows from facts about its code; what cannot run is refused by name."""

from dataclasses import replace

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UnsupportedModel
from headrace.inference.runner.transformers.support import NetworkFacts, Tier, choose_tier, network_facts
from tests.inference.runner.transformers.checkpoints import SHARED

PLAIN = NetworkFacts(
    architecture="SomeForCausalLM",
    has_attention_interface=True,
    takes_positions=True,
    is_stateful=False,
    layer_types=frozenset({"full_attention", "sliding_attention"}),
    has_chunks=False,
    loses_window=False,
    is_bidirectional=False,
    varying_ropes=frozenset(),
)


def test_a_network_whose_attention_gets_all_it_needs_is_paged() -> None:
    assert choose_tier(PLAIN) is Tier.PAGED


@pytest.mark.parametrize(
    "change",
    [
        {"has_attention_interface": False},
        {"takes_positions": False},
        {"has_chunks": True, "layer_types": frozenset({"chunked_attention", "full_attention"})},
        {"loses_window": True},
        {"varying_ropes": frozenset({"longrope"})},
    ],
)
def test_what_only_a_mask_knows_takes_one_call_a_sequence(change: dict[str, object]) -> None:
    assert choose_tier(replace(PLAIN, **change)) is Tier.BY_SEQUENCE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_stateful": True}, "keeps a state beside keys and values"),
        ({"layer_types": frozenset({"full_attention", "linear_attention"})}, r"a state \(layers: linear_attention\)"),
        ({"layer_types": frozenset({"conv"})}, r"layers: conv"),
        ({"is_bidirectional": True}, "attends in both directions"),
        ({"varying_ropes": frozenset({"dynamic"})}, "dynamic rotary embedding"),
    ],
)
def test_what_a_kv_cache_cannot_hold_is_refused_with_another_backend(change: dict[str, object], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"SomeForCausalLM .*{reason}.*--backend (vllm|native)"):
        choose_tier(replace(PLAIN, **change))


@given(st.sets(st.sampled_from(["full_attention", "sliding_attention", "chunked_attention", "moe", "conv", "mamba"])))
def test_only_known_kinds_of_layers_are_accepted(kinds: set[str]) -> None:
    facts = replace(PLAIN, layer_types=frozenset(kinds), has_chunks="chunked_attention" in kinds)
    if kinds & {"conv", "mamba"}:
        with pytest.raises(UnsupportedModel):
            choose_tier(facts)
    else:
        assert choose_tier(facts) is (Tier.BY_SEQUENCE if facts.has_chunks else Tier.PAGED)


def test_a_window_that_the_code_gives_to_its_mask_only_is_noticed() -> None:
    """transformers' Qwen2-MoE does not pass `sliding_window` to its attention function."""
    config = transformers.Qwen2MoeConfig(
        **SHARED,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=0,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        layer_types=["sliding_attention"] * 2,
    )
    facts = network_facts(transformers.Qwen2MoeForCausalLM(config), max_model_len=64)
    assert facts.loses_window
    assert choose_tier(facts) is Tier.BY_SEQUENCE


@pytest.mark.parametrize("architecture", ["MambaForCausalLM", "RecurrentGemmaForCausalLM", "Lfm2ForCausalLM"])
def test_networks_with_a_state_are_refused_by_name(architecture: str) -> None:
    model_class = getattr(transformers, architecture)
    sizes = {"intermediate_size": 96, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}
    sizes = sizes if architecture.startswith("Lfm2") else {}
    model = model_class(model_class.config_class(**SHARED | sizes))
    with pytest.raises(UnsupportedModel, match=rf"{architecture} keeps a state .*--backend vllm"):
        choose_tier(network_facts(model, max_model_len=64))
