"""Small networks of every kind for the native runtime, and how to load them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from headrace import _native
from headrace.inference.models.attention import AttentionShape
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.mixers import ConvSpec, DeltaSpec, SsdSpec
from headrace.inference.models.spec import ModelSpec, RopeSpec
from headrace.inference.models.weights import BLOCKS, STORED_BITS, Encoding, RawTensor, WeightSource
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.native import NativeRunner, load_native_runner
from headrace.inference.runner.packing import layer_formats_of
from headrace.inference.runner.plan import plan_runner
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.step import Float32, RunnerLimits, StepInput
from tests.inference.runner.weights import ArrayWeights

ALL_ISAS = tuple(_native.available_isas())
ISAS = tuple(isa for isa in ALL_ISAS if isa != "avx_vnni_evex")
"""
Those whose networks are tested: the first is this CPU's best.

Kernels of AVX-VNNI are those of AVX2 but for products of integers, which `test_products` and
`test_products_of_vnni_change_no_bit_of_avx2` compare.
"""
FORMATS = [(dtype, kv_dtype) for dtype in ("bf16", "w8a8", "w4a8") for kv_dtype in ("bf16", "int8")]
FORMATS += [("w8a16", "bf16"), ("w4a16", "bf16")]


Format = TypeVar("Format")
NO_OTHERS: Mapping[str, Encoding] = {}


def spread(formats: Mapping[str, Sequence[Format]]) -> list[tuple[str, Format, str]]:
    """
    Return networks with all formats on the best ISA, and with one on each other ISA, the next for the next network.

    Only products know formats: over the networks, every format meets every ISA and every network meets every ISA.
    """
    cases = []
    for number, (name, own) in enumerate(formats.items()):
        cases += [(name, chosen, ISAS[0]) for chosen in own]
        cases += [(name, own[(number + place) % len(own)], isa) for place, isa in enumerate(ISAS[1:])]
    return cases


LIMITS = RunnerLimits(
    num_blocks=48,
    block_tokens=32,
    max_step_tokens=400,
    max_step_sequences=8,
    max_step_rows=400,
    max_context_tokens=512,
)


def small_spec(**changes) -> ModelSpec:
    """Return a spec of two layers with odd sizes; `changes` override its fields."""
    fields = {
        "family": "test",
        "num_layers": 2,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "vocab_size": 333,
        "max_positions": 512,
        "norm_eps": 1e-5,
        "tie_embeddings": True,
    }
    return ModelSpec(**(fields | changes))


SPECS: Mapping[str, ModelSpec] = {
    "llama": small_spec(),
    "one head a group": small_spec(head_dim=16, num_heads=6, num_kv_heads=6, hidden_size=80, vocab_size=65),
    "eight heads a group, biases, own LM head": small_spec(
        head_dim=80, num_heads=8, num_kv_heads=1, tie_embeddings=False, qkv_bias=True, o_bias=True, hidden_size=200
    ),
    "seven heads a group, llama 3 rope": small_spec(
        head_dim=64,
        num_heads=7,
        num_kv_heads=1,
        ropes=(RopeSpec(theta=5e5, kind="llama3", factor=8.0, original_max_positions=64),),
    ),
    "gemma 3": small_spec(
        head_dim=256,
        num_heads=2,
        num_kv_heads=1,
        qk_norm="head",
        norms="both",
        activation="gelu_tanh",
        windows=(40, 0),
        ropes=(RopeSpec(kind="linear", factor=8.0), RopeSpec(theta=1e3)),
        rope_of_layer=(1, 0),
        embedding_scale=96**0.5,
        attention_scale=0.05,
    ),
    "qwen 3, wide heads": small_spec(head_dim=128, num_heads=3, num_kv_heads=1, qk_norm="head", intermediate_size=96),
    "a third of each head turns, one layer without positions": small_spec(
        head_dim=48,
        num_layers=3,
        ropes=(
            RopeSpec(rotary_dim=16, kind="yarn", factor=4.0, original_max_positions=128, attention_factor=1.25),
            RopeSpec(rotary_dim=16, kind="longrope", original_max_positions=64, long_factors=(1, 2, 3, 4, 5, 6, 7, 8)),
        ),
        rope_of_layer=(1, -1, 0),
    ),
    "experts, one layer dense": small_spec(
        moe=MoeSpec(num_experts=7, top_k=2, expert_size=96, layers=(True, False), renormalize=True)
    ),
    "experts, shared one of another size": small_spec(
        moe=MoeSpec(num_experts=19, top_k=4, expert_size=32, shared_size=80, has_shared_router=True)
    ),
    "experts with biases and clamped gates, attention sinks": small_spec(
        moe=MoeSpec(num_experts=7, top_k=3, expert_size=80, renormalize=True, router_bias=True, expert_bias=True),
        sinks=True,
        activation="clamped_swiglu",
        swiglu_limit=1.0,
        windows=(40, 0),
        qkv_bias=True,
        o_bias=True,
    ),
    "experts with a softmax each, layer norms": small_spec(
        moe=MoeSpec(num_experts=6, top_k=2, expert_size=64, tolerance=0.02), norm="layer", norm_bias=True
    ),
    "experts in groups, chosen by sigmoids and biases": small_spec(
        moe=MoeSpec(
            num_experts=12,
            top_k=3,
            expert_size=48,
            layers=(False, True),
            scoring="sigmoid",
            choice_bias=True,
            num_groups=4,
            top_groups=2,
            renormalize=True,
            sum_floor=1e-20,
            factor_scale=1.8,
            shared_size=96,
        ),
        qk_norm="rotated",
    ),
    "experts chosen by biased softmax shares of capped logits": small_spec(
        moe=MoeSpec(
            num_experts=10,
            top_k=3,
            expert_size=32,
            choice_bias=True,
            logit_softcap=2.0,
            group_score="best",
            num_groups=2,
        )
    ),
    "gates after attention, one a number": small_spec(attention_gate="element", qk_norm="head", head_dim=48),
    "gates after attention, one a head, of which layers have more or fewer": small_spec(
        attention_gate="head",
        gate_activation="softplus",
        num_layers=3,
        num_heads=7,
        num_kv_heads=1,
        attention_shapes=tuple(AttentionShape(num_heads=heads, num_kv_heads=1, head_dim=32) for heads in (5, 7, 2)),
        ropes=(RopeSpec(rotary_dim=16), RopeSpec(theta=1e3)),
        rope_of_layer=(0, 1, 0),
        windows=(0, 40, 0),
    ),
    "plain experts": small_spec(
        moe=MoeSpec(num_experts=9, top_k=3, expert_size=48, layers=(True, False), shared_size=80),
        mlp="plain",
        activation="relu2",
    ),
    "plain experts with a latent input": small_spec(
        moe=MoeSpec(
            num_experts=9, top_k=3, expert_size=48, latent_size=40, shared_size=80, scoring="sigmoid", choice_bias=True
        ),
        mlp="plain",
        activation="relu2",
    ),
    "experts with a norm after them": small_spec(
        moe=MoeSpec(num_experts=7, top_k=2, expert_size=48, layers=(False, True), scoring="sigmoid", shared_size=48),
        norms="both",
        post_norm_eps=1e-8,
        hidden_size=80,
    ),
    "experts with a latent input, nothing shared": small_spec(
        moe=MoeSpec(num_experts=6, top_k=2, expert_size=32, latent_size=72, renormalize=True, layers=(False, True))
    ),
    "scores by distance": small_spec(
        rope_of_layer=(-1, -1), distance_slopes=(0.5, 0.25, 0.125, 0.0625, 0.03, 0.01), windows=(40, 0), norm="layer"
    ),
    "an activation with numbers of each layer": small_spec(mlp="plain", activation="xielu", qk_norm="head"),
    "softcaps, norms on both sides": small_spec(
        norm_eps=0.1,
        post_norm_eps=1e-8,
        head_dim=64,
        num_heads=3,
        num_kv_heads=1,
        norms="both",
        windows=(40, 0),
        attention_softcap=4.0,
        logit_softcap=20.0,
        embedding_scale=96**0.5,
        activation="gelu_tanh",
    ),
    "norms after attention and MLP, one for all heads": small_spec(
        norms="post", qk_norm="full", hidden_size=80, qkv_clip=1.5
    ),
    "layer norms, learned positions, plain MLP, biases": small_spec(
        norm="layer",
        norm_bias=True,
        mlp="plain",
        activation="gelu_erf",
        learned_positions=512,
        rope_of_layer=(-1, -1),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        hidden_size=100,
        intermediate_size=100,
    ),
    "parallel MLP with a norm of its own, gated with biases": small_spec(
        norm="layer", norm_bias=True, parallel="two", mlp_bias=True, activation="relu", head_dim=80, num_layers=3
    ),
    "parallel MLP with the norm of attention": small_spec(
        norm="layer",
        parallel="one",
        mlp="plain",
        activation="relu2",
        qk_norm="layer",
        head_bias=True,
        tie_embeddings=False,
        head_dim=48,
        logit_softcap=3.0,
    ),
    "heads by layer": small_spec(
        num_layers=5,
        hidden_size=80,
        attention_shapes=tuple(
            AttentionShape(num_heads=heads, num_kv_heads=kv_heads, head_dim=size, keys_as_values=size == 512)
            for heads, kv_heads, size in ((4, 2, 48), (4, 1, 512), (6, 2, 48), (2, 1, 512), (4, 2, 48))
        ),
        kv_sources=(0, 1, 2, 1, 2),
        ropes=(RopeSpec(), RopeSpec(theta=1e5, kind="proportional", rotary_dim=128)),
        rope_of_layer=(0, 1, -1, 1, 0),
        windows=(40, 0, 40, 0, 40),
        qk_norm="head",
        qkv_bias=True,
        sinks=True,
    ),
    "latent attention of odd sizes, whose queries grow": small_spec(
        num_heads=5,
        num_kv_heads=1,
        head_dim=64,
        mla=MlaSpec(kv_rank=48, query_rank=80, key_dim=24, rope_dim=16, value_dim=40, norm_eps=1e-3),
        ropes=(RopeSpec(kind="yarn", factor=4.0, original_max_positions=128, attention_factor=1.25),),
        attention_scale=0.2,
        query_growth=0.1,
        growth_period=50,
        qkv_bias=True,
        o_bias=True,
        sinks=True,
    ),
    "latent attention of the largest size, with experts": small_spec(
        num_heads=3,
        num_kv_heads=1,
        head_dim=576,
        mla=MlaSpec(kv_rank=512, key_dim=64, rope_dim=64, value_dim=32),
        rope_of_layer=(0, -1),
        attention_scale=128**-0.5,
        moe=MoeSpec(num_experts=7, top_k=2, expert_size=32, layers=(False, True), scoring="sigmoid", shared_size=32),
    ),
    "inputs of layers, shared keys, wider MLPs": small_spec(
        num_layers=5,
        attention_shapes=tuple(
            AttentionShape(num_heads=4, num_kv_heads=2 if size == 32 else 1, head_dim=size, keys_as_values=size == 64)
            for size in (32, 64, 32, 32, 64)
        ),
        kv_sources=(0, 1, 2, 2, 1),
        intermediate_sizes=(160, 160, 160, 288, 288),
        windows=(40, 0, 40, 40, 0),
        norms="both",
        qk_norm="head",
        value_norm=True,
        activation="gelu_tanh",
        embedding_scale=96**0.5,
        attention_scale=1.0,
        layer_input_size=96,
        layer_scales=True,
    ),
    "experts beside an MLP, each with its norms": small_spec(
        norms="both",
        qk_norm="head",
        value_norm=True,
        activation="gelu_tanh",
        layer_scales=True,
        moe=MoeSpec(num_experts=20, top_k=3, expert_size=48, shared_size=160, renormalize=True, own_norms=True),
    ),
    "KV heads and MLPs by layer, or none": small_spec(
        num_layers=4,
        mixers=("attention", "none", "attention", "attention"),
        mlps=(True, True, False, True),
        attention_shapes=tuple(AttentionShape(num_heads=6, num_kv_heads=count, head_dim=32) for count in (6, 2, 2, 1)),
        intermediate_sizes=(160, 96, 160, 288),
    ),
    "dynamic rope": small_spec(head_dim=96, ropes=(RopeSpec(kind="dynamic", factor=2.0, original_max_positions=128),)),
}

WITHOUT_TORCH = {
    "scores by distance",
    "gates after attention, one a number",
    "gates after attention, one a head, of which layers have more or fewer",
    "heads by layer",
    "an activation with numbers of each layer",
    "latent attention of odd sizes, whose queries grow",
    "latent attention of the largest size, with experts",
    "inputs of layers, shared keys, wider MLPs",
    "KV heads and MLPs by layer, or none",
    "experts beside an MLP, each with its norms",
}
"""Networks that the torch backend refuses."""


STATE_SPECS: Mapping[str, ModelSpec] = {
    "short convolutions": small_spec(
        num_layers=4, mixers=("conv", "attention", "conv", "conv"), conv=ConvSpec(taps=3), qk_norm="head"
    ),
    "long convolutions alone, norms on both sides": small_spec(
        mixers=("conv", "conv"), conv=ConvSpec(taps=7), norms="both", hidden_size=200
    ),
    "the delta rule, beside gated attention": small_spec(
        num_layers=3,
        mixers=("delta", "attention", "delta"),
        delta=DeltaSpec(key_heads=2, value_heads=6, key_dim=32, value_dim=48, taps=4, norm_eps=1e-6, is_tiled=True),
        attention_gate="element",
        qk_norm="head",
    ),
    "the delta rule alone, value heads by key head, experts": small_spec(
        mixers=("delta", "delta"),
        delta=DeltaSpec(key_heads=3, value_heads=6, key_dim=16, value_dim=64, taps=3, norm_eps=1e-5, beta_scale=2.0),
        moe=MoeSpec(num_experts=7, top_k=2, expert_size=32, layers=(False, True), renormalize=True),
    ),
    "the delta rule by channel, beside latent attention without positions": small_spec(
        num_layers=3,
        mixers=("delta", "attention", "delta"),
        delta=DeltaSpec(key_heads=4, value_heads=4, key_dim=48, value_dim=48, taps=4, norm_eps=1e-5, by_channel=True),
        mla=MlaSpec(kv_rank=64, key_dim=32, rope_dim=16, value_dim=48),
        head_dim=80,
        num_kv_heads=1,
        attention_scale=48**-0.5,
        rope_of_layer=(-1, -1, -1),
        moe=MoeSpec(num_experts=7, top_k=2, expert_size=32, layers=(False, True, True), scoring="sigmoid"),
    ),
    "the delta rule by channel, two value heads a key head": small_spec(
        mixers=("delta", "delta"),
        delta=DeltaSpec(
            key_heads=2, value_heads=4, key_dim=16, value_dim=32, taps=3, norm_eps=1e-5, beta_scale=2.0, by_channel=True
        ),
    ),
    "convolutions beside experts": small_spec(
        num_layers=3,
        mixers=("conv", "attention", "conv"),
        conv=ConvSpec(taps=4),
        hidden_size=80,
        moe=MoeSpec(num_experts=7, top_k=2, expert_size=32, layers=(False, True, True), scoring="sigmoid"),
    ),
    "state space models": small_spec(
        num_layers=3,
        mixers=("ssd", "attention", "ssd"),
        ssd=SsdSpec(heads=12, head_dim=16, state_size=32, groups=3, taps=4, norm_eps=1e-5),
        rope_of_layer=(-1, -1, -1),
    ),
    "state space models of one group without norm, alone": small_spec(
        mixers=("ssd", "ssd"),
        mlps=(False, False),
        hidden_size=80,
        ssd=SsdSpec(heads=4, head_dim=80, state_size=16, groups=1, taps=3, norm_eps=1e-5, conv_bias=False, norm=None),
    ),
    "state space models beside attention": small_spec(
        mixers=("ssd", "ssd"),
        attention_beside=True,
        ssd=SsdSpec(heads=8, head_dim=16, state_size=32, groups=1, taps=4, norm_eps=1e-5),
        num_heads=5,
        num_kv_heads=1,
        head_dim=48,
    ),
    "layers of one part": small_spec(
        num_layers=6,
        mixers=("ssd", "none", "attention", "none", "ssd", "none"),
        mlps=(False, True, False, True, False, True),
        ssd=SsdSpec(heads=6, head_dim=32, state_size=48, groups=2, taps=4, norm_eps=1e-5),
        mlp="plain",
        activation="relu2",
        moe=MoeSpec(
            num_experts=7,
            top_k=2,
            expert_size=32,
            layers=(False, True, False, False, False, True),
            scoring="sigmoid",
            choice_bias=True,
            latent_size=40,
            shared_size=48,
        ),
    ),
}
"""Networks with state layers."""
STATE_LIMITS = replace(LIMITS, num_state_slots=9, max_draft_tokens=4)


WIDE = small_spec(hidden_size=256, num_heads=8, intermediate_size=512)
"""A network with whole blocks of 256 inputs, as weights of 2 and 3 bits need."""


class BlockWeights(ArrayWeights):
    """
    A `WeightSource` with random layer matrices in blocks or I8, and everything else in float32.

    `others` has the encodings of some matrices by the last part of their name.
    """

    def __init__(self, arrays, encoding: Encoding, others: Mapping[str, Encoding] = NO_OTHERS) -> None:
        super().__init__(arrays)
        self._encoding, self._others = encoding, others

    def encoding(self, name: str) -> Encoding:
        own = self._others.get(name.rpartition(".")[2], self._encoding)
        return own if self._has_blocks(name) else Encoding.F32

    def stored_bits(self, name: str) -> int:
        return STORED_BITS[self.encoding(name)]

    def _has_blocks(self, name: str) -> bool:
        return name.startswith("layers.") and len(self.arrays[name]) > 1

    def load(self, name: str) -> RawTensor:
        tensor = super().load(name)
        if not self._has_blocks(name):
            return tensor
        rng = np.random.default_rng(len(name) + tensor.num_rows)
        encoding = self.encoding(name)
        num_blocks = tensor.num_columns // max(32, BLOCKS[encoding][0])
        scales = (rng.uniform(0.5, 1.5, (tensor.num_rows, num_blocks, 1)) * tensor.num_columns**-0.5 / 8).astype("<f2")
        codes = rng.integers(0, 256, (tensor.num_rows, num_blocks, 108), np.uint8)
        parts = {
            Encoding.TERNARY: [codes[..., :32], scales * 5],
            Encoding.Q2_K: [codes[..., :80], scales / 3, scales / 2],
            Encoding.Q3_K: [codes, scales / 8],
            Encoding.Q4_0: [scales, rng.integers(0, 256, (tensor.num_rows, num_blocks, 16), np.uint8)],
            Encoding.FP4: [scales * 2, rng.integers(0, 256, (tensor.num_rows, num_blocks, 16), np.uint8)],
            Encoding.Q4_1: [scales, -8 * scales, rng.integers(0, 256, (tensor.num_rows, num_blocks, 16), np.uint8)],
            Encoding.Q8_0: [scales / 16, rng.integers(0, 256, (tensor.num_rows, num_blocks, 32), np.uint8)],
            Encoding.I8: [
                (scales[:, :1] / 16).astype("<f4"),
                rng.integers(-127, 128, (tensor.num_rows, 1, tensor.num_columns), np.int8),
            ],
        }[encoding]
        data = np.concatenate([part.astype(part.dtype).view(np.uint8) for part in parts], axis=-1)
        return RawTensor(
            encoding, tensor.num_rows, tensor.num_columns, np.ascontiguousarray(data.reshape(tensor.num_rows, -1))
        )


def load(
    spec: ModelSpec,
    weights: WeightSource,
    cache_dir: Path,
    *,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    threads: int = 1,
    isa: str | None = None,
    limits: RunnerLimits = LIMITS,
) -> NativeRunner:
    """Load a network; tests of invariance prove that the number of threads changes no bit."""
    plan = plan_runner(
        spec,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_tokens=limits.block_tokens,
        max_model_len=limits.max_context_tokens,
        max_num_seqs=limits.max_step_sequences,
        max_num_batched_tokens=limits.max_step_tokens,
        budget=MemoryBudget(available_bytes=1 << 34),
        threads=threads,
        layer_formats=layer_formats_of(spec, weights),
    )
    return load_native_runner(spec, weights, replace(plan, limits=limits), isa=isa, cache_dir=cache_dir)


class GuidedReference:
    """
    The reference network, whose experts are chosen by the router scores of a native runner in the same step.

    Rounding changes the choice where scores nearly tie, and so the logits of that row and of all that attend to it.
    With the same scores, choice and factors must be the same, and all rows must agree. The scores themselves are held
    against those of the reference.
    """

    def __init__(
        self, runner: NativeRunner, weights: WeightSource, tolerance: float, *, limits: RunnerLimits = LIMITS
    ) -> None:
        self._runner = runner
        self._tolerance = tolerance
        self._scores: Float32 = np.zeros((0, 0, 0), np.float32)
        self._reference = ReferenceRunner(runner.spec, weights, limits, rescore=self._rescore)

    def logits(self, step: StepInput) -> Float32:
        self._read_scores(step)
        return self._reference.logits(step)

    def hidden(self, step: StepInput) -> Float32:
        """Return the hidden states of `hidden_rows`."""
        self._read_scores(step)
        hidden = self._reference.execute(step).hidden
        assert hidden is not None
        return hidden

    def _read_scores(self, step: StepInput) -> None:
        if self._runner.spec.moe is not None:
            self._scores = self._runner.router_scores(step)

    def _rescore(self, layer: int, scores: Float32) -> Float32:
        assert relative_error(self._scores[layer], scores) < self._tolerance
        return self._scores[layer]


def relative_error(actual, expected) -> float:
    """Return the root mean square error relative to the root mean square of the expected values."""
    return float(np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)))
