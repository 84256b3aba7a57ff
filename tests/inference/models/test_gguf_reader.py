import re
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_reader import GgufWeights, read_gguf_spec
from headrace.inference.models.places import gguf_name
from headrace.inference.models.rope import inverse_frequencies, llama3_divisors
from headrace.inference.models.spec import RopeSpec
from headrace.inference.models.weights import Encoding
from tests.inference.models.model_files import TINY_LLAMA, gguf_metadata, random_weights, write_gguf

_, SPEC = from_config(Fields(TINY_LLAMA, "config.json"))
ENCODINGS = {
    Type.F32: Encoding.F32,
    Type.F16: Encoding.F16,
    Type.BF16: Encoding.BF16,
    Type.Q8_0: Encoding.Q8_0,
    Type.Q4_0: Encoding.Q4_0,
    Type.Q4_1: Encoding.Q4_1,
}


def interleaved(rows, num_heads):
    """Permute the rows of q and k as llama.cpp's converter does for Llama."""
    return rows.reshape(num_heads, 2, len(rows) // num_heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_llama(path, weights, *, kind=Type.F32, spec=SPEC, architecture="llama", extra=None, metadata=None):
    tensors, types = {}, {}
    for name, values in weights.items():
        heads = {"q": spec.num_heads, "k": spec.num_kv_heads}.get(name.rpartition(".")[2])
        tensors[gguf_name(name)] = interleaved(values, heads) if heads and architecture == "llama" else values
        if values.ndim > 1 and kind is not Type.F32:
            types[gguf_name(name)] = kind
    values = gguf_metadata(spec, architecture) | (metadata or {})
    write_gguf(path, values, tensors | (extra or {}), architecture=architecture, types=types)
    return open_gguf(path)


def as_floats(raw):
    kind = {encoding: kind for kind, encoding in ENCODINGS.items()}[raw.encoding]
    return quants.dequantize(raw.data, kind)


@pytest.mark.parametrize("kind", ENCODINGS)
def test_supported_formats_are_returned_unchanged(tmp_path, kind):
    weights = random_weights(SPEC)
    source = GgufWeights(write_llama(tmp_path / "m.gguf", weights, kind=kind), *reversed_spec(tmp_path))

    raw = source.load("layers.1.down")
    assert raw.encoding is ENCODINGS[kind]
    assert (raw.num_rows, raw.num_columns) == (SPEC.hidden_size, SPEC.intermediate_size)
    assert raw.data.tobytes() == quants.quantize(weights["layers.1.down"], kind).tobytes()
    assert source.dominant_encoding is ENCODINGS[kind]


def reversed_spec(tmp_path):
    return read_gguf_spec(open_gguf(tmp_path / "m.gguf"))


@pytest.mark.parametrize("kind", ENCODINGS)
def test_the_rotary_halves_of_llama_come_back_in_neox_order(tmp_path, kind):
    weights = random_weights(SPEC)
    source = GgufWeights(write_llama(tmp_path / "m.gguf", weights, kind=kind), *reversed_spec(tmp_path))

    for name in ("layers.0.q", "layers.1.k"):
        expected = quants.dequantize(quants.quantize(weights[name], kind), kind)
        assert np.array_equal(as_floats(source.load(name)), expected)


def test_the_rows_of_other_families_stay_where_they_are(tmp_path):
    spec = replace(SPEC, family="qwen2", qkv_bias=True)
    weights = random_weights(spec)
    file = write_llama(tmp_path / "m.gguf", weights, spec=spec, architecture="qwen2")
    family, read = read_gguf_spec(file)

    source = GgufWeights(file, family, read)
    assert replace(read, norm_eps=spec.norm_eps) == spec
    assert set(source.names()) == set(weights)
    for name, values in weights.items():
        assert np.array_equal(as_floats(source.load(name)).ravel(), values.ravel()), name


@pytest.mark.parametrize("kind", [Type.Q5_0, Type.Q5_1])
def test_other_formats_are_dequantized(tmp_path, kind):
    weights = random_weights(SPEC)
    source = GgufWeights(write_llama(tmp_path / "m.gguf", weights, kind=kind), *reversed_spec(tmp_path))

    raw = source.load("layers.0.up")
    assert raw.encoding is Encoding.F32
    expected = quants.dequantize(quants.quantize(weights["layers.0.up"], kind), kind)
    assert np.array_equal(as_floats(raw), expected)


def test_tied_embeddings_are_detected_by_the_missing_output_matrix(tmp_path):
    weights = random_weights(replace(SPEC, tie_embeddings=True))
    _, spec = read_gguf_spec(write_llama(tmp_path / "m.gguf", weights))

    assert spec.tie_embeddings


def test_a_missing_tensor_is_named(tmp_path):
    weights = random_weights(SPEC)
    del weights["layers.1.up"]
    file = write_llama(tmp_path / "m.gguf", weights)

    with pytest.raises(BrokenModel, match=r"blk\.1\.ffn_up\.weight"):
        GgufWeights(file, *read_gguf_spec(file))


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path):
    weights = random_weights(SPEC) | {"layers.0.o": np.zeros((8, 8), np.float32)}
    file = write_llama(tmp_path / "m.gguf", weights)

    with pytest.raises(BrokenModel, match=r"blk\.0\.attn_output\.weight is 8 x 8; expected 32 x 32"):
        GgufWeights(file, *read_gguf_spec(file))


def test_the_rope_scaling_of_llama_3_is_found_from_its_divisors(tmp_path):
    rope = RopeSpec(
        theta=500000.0,
        kind="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=8192,
    )
    plain = replace(rope, kind="default")
    divisors = llama3_divisors(rope, inverse_frequencies(plain, SPEC.head_dim, 512)).astype(np.float32)
    spec = replace(SPEC, ropes=(plain,))
    file = write_llama(tmp_path / "m.gguf", random_weights(SPEC), spec=spec, extra={"rope_freqs.weight": divisors})

    _, read = read_gguf_spec(file)
    assert read.ropes == (rope,)


def test_other_rope_divisors_are_refused(tmp_path):
    divisors = np.linspace(1, 5, SPEC.head_dim // 2, dtype=np.float32)
    file = write_llama(tmp_path / "m.gguf", random_weights(SPEC), extra={"rope_freqs.weight": divisors})

    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        read_gguf_spec(file)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.rope.scaling.type": "ntk"}, "ntk"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"llama.attention.value_length": 4}, "value heads"),
    ],
)
def test_an_unsupported_part_is_named(tmp_path, metadata, named):
    file = write_llama(tmp_path / "m.gguf", random_weights(SPEC), metadata=metadata)

    with pytest.raises(UnsupportedModel, match=named):
        read_gguf_spec(file)


def test_an_unknown_architecture_is_named_with_those_that_are_known(tmp_path):
    file = write_llama(tmp_path / "m.gguf", random_weights(SPEC), architecture="mamba")

    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama, qwen2"):
        read_gguf_spec(file)


def test_gemma_3_alternates_local_and_global_layers(tmp_path):
    spec = replace(SPEC, num_layers=6, tie_embeddings=True, qk_norm="head", norms="both")
    file = write_llama(
        tmp_path / "m.gguf",
        random_weights(spec),
        spec=replace(spec, ropes=(RopeSpec(theta=1e6),)),
        architecture="gemma3",
        metadata={"gemma3.attention.sliding_window": 16},
    )

    _, read = read_gguf_spec(file)
    assert read.windows == (16, 16, 16, 16, 16, 0)
    assert [rope.theta for rope in read.ropes] == [1e6, 1e4]
    assert read.rope_of_layer == (1, 1, 1, 1, 1, 0)
    assert (read.activation, read.qk_norm, read.norms) == ("gelu_tanh", "head", "both")
    assert read.embedding_scale == spec.hidden_size**0.5
    assert read.scale(0) == spec.head_dim**-0.5


def test_the_real_file_gives_the_spec_of_smollm2(smollm2_path):
    file = open_gguf(smollm2_path)
    family, spec = read_gguf_spec(file)
    source = GgufWeights(file, family, spec)

    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (30, 576, 9, 3)
    assert spec.tie_embeddings
    assert source.dominant_encoding is Encoding.Q4_1
    assert source.load("embed").encoding is Encoding.Q8_0


MOE = {
    "llama": (
        SPEC,
        MoeSpec(num_experts=5, top_k=2, expert_size=64, renormalize=True),
        {"expert_count": 5, "expert_used_count": 2},
    ),
    "qwen2moe": (
        replace(SPEC, qkv_bias=True),
        MoeSpec(num_experts=4, top_k=3, expert_size=32, layers=(False, True), shared_size=96, has_shared_router=True),
        {"expert_count": 4, "expert_used_count": 3, "expert_feed_forward_length": 32},
    ),
    "qwen3moe": (
        replace(SPEC, qk_norm="head"),
        MoeSpec(num_experts=3, top_k=1, expert_size=32, renormalize=True),
        {"expert_count": 3, "expert_used_count": 1, "expert_feed_forward_length": 32},
    ),
}


def stacked(weights, moe):
    """Stack the experts of each layer, as converters do."""
    stacks = {name: values for name, values in weights.items() if ".experts." not in name}
    for name in [name for name in weights if ".experts.0." in name]:
        experts = [name.replace(".experts.0.", f".experts.{expert}.") for expert in range(moe.num_experts)]
        stacks[name] = np.stack([weights[expert] for expert in experts])
    return stacks


@pytest.mark.parametrize("kind", [Type.F32, Type.Q4_1, Type.Q8_0])
@pytest.mark.parametrize("architecture", MOE)
def test_stacked_experts_are_read_one_by_one(architecture, kind, tmp_path):
    base, moe, keys = MOE[architecture]
    spec = replace(base, moe=moe)
    weights = random_weights(spec)
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    file = write_llama(
        tmp_path / "m.gguf", stacked(weights, moe), kind=kind, spec=spec, architecture=architecture, metadata=metadata
    )
    family, read = read_gguf_spec(file)
    source = GgufWeights(file, family, read)

    assert read.moe == moe
    for name in ("layers.1.experts.2.down", "layers.1.experts.0.gate", "layers.1.router"):
        expected = quants.dequantize(quants.quantize(weights[name], kind), kind)
        np.testing.assert_array_equal(as_floats(source.load(name)), expected)


def test_experts_of_old_files_lie_in_tensors_of_their_own(tmp_path):
    base, moe, keys = MOE["llama"]
    spec = replace(base, moe=moe)
    weights = random_weights(spec)
    names = {name: re.sub(r"layers.(\d+).experts.(\d+).(\w+)", r"blk.\1.ffn_\3.\2.weight", name) for name in weights}
    experts = {names[name]: weights[name] for name in weights if ".experts." in name}
    others = {name: values for name, values in weights.items() if ".experts." not in name}
    metadata = {f"llama.{key}": value for key, value in keys.items()}
    file = write_llama(tmp_path / "m.gguf", others, spec=spec, extra=experts, metadata=metadata)
    source = GgufWeights(file, *read_gguf_spec(file))

    for name in ("layers.1.experts.2.down", "layers.0.experts.4.gate", "layers.1.router"):
        np.testing.assert_array_equal(as_floats(source.load(name)), weights[name])
