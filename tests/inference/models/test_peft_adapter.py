"""Reading of LoRA folders: scales, ranks and rows, and refusals by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.fields import Fields
from headrace.inference.models.peft_adapter import read_peft_adapter, read_peft_config
from headrace.inference.models.spec import ModelSpec
from tests.inference.models.adapter_files import CONFIG, random_tensors, write_adapter

SPEC = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=32,
    max_positions=64,
    norm_eps=1e-5,
)
ALL = ("q", "k", "v", "o", "gate", "up", "down")
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def read(folder, spec=SPEC, max_rank=16):
    return read_peft_adapter(folder, spec, max_rank=max_rank)


def test_every_matrix_of_attention_and_mlp_is_read_with_its_scale(tmp_path):
    tensors = random_tensors(SPEC, parts=ALL)
    adapter = read(write_adapter(tmp_path, tensors))
    assert set(adapter.matrices) == {f"layers.{layer}.{part}" for layer in range(2) for part in ALL}
    matrix = adapter.matrices["layers.0.q"]
    np.testing.assert_array_equal(matrix.shrink, tensors[f"{Q}.lora_A.weight"])
    np.testing.assert_array_equal(matrix.expand, tensors[f"{Q}.lora_B.weight"] * np.float32(2))
    assert adapter.rank == 4


def test_rslora_divides_alpha_by_the_root_of_the_rank(tmp_path):
    tensors = random_tensors(SPEC)
    adapter = read(write_adapter(tmp_path, tensors, {"use_rslora": True}))
    expected = tensors[f"{Q}.lora_B.weight"] * np.float32(4)
    np.testing.assert_array_equal(adapter.matrices["layers.0.q"].expand, expected)


@pytest.mark.parametrize("pattern", ["q_proj", "layers.0.self_attn.q_proj", r"model\.layers\.\d\.self_attn\.q_proj"])
def test_patterns_give_modules_a_rank_and_a_scale_of_their_own(pattern, tmp_path):
    tensors = random_tensors(SPEC)
    for kind, shape in (("A", (8, 64)), ("B", (64, 8))):
        for layer in (0,) if "0" in pattern else (0, 1):
            tensors[Q.replace("layers.0", f"layers.{layer}") + f".lora_{kind}.weight"] = np.ones(shape, np.float32)
    config = {"rank_pattern": {pattern: 8}, "alpha_pattern": {pattern: 24}}
    adapter = read(write_adapter(tmp_path, tensors, config))
    assert adapter.matrices["layers.0.q"].shrink.shape == (8, 64)
    assert adapter.matrices["layers.0.q"].expand[0, 0] == 3
    assert adapter.matrices["layers.0.v"].shrink.shape == (4, 64)


def test_a_fused_matrix_gives_each_part_its_rows(tmp_path):
    spec = ModelSpec(**{field: getattr(SPEC, field) for field in SPEC.__slots__} | {"family": "phi3"})
    tensors = random_tensors(spec, parts=ALL)
    adapter = read(write_adapter(tmp_path, tensors), spec)
    fused = tensors[Q.replace("q_proj", "qkv_proj") + ".lora_B.weight"] * np.float32(2)
    parts = [adapter.matrices[f"layers.0.{part}"].expand for part in "qkv"]
    np.testing.assert_array_equal(np.concatenate(parts), fused)
    assert [len(part) for part in parts] == [64, 32, 32]


def test_the_identity_is_that_of_the_content(tmp_path):
    first, second = random_tensors(SPEC), random_tensors(SPEC, seed=1)
    identity = read(write_adapter(tmp_path / "a", first)).identity
    assert identity == read(write_adapter(tmp_path / "b", first)).identity
    assert identity != read(write_adapter(tmp_path / "c", second)).identity
    assert identity != read(write_adapter(tmp_path / "d", first, {"lora_alpha": 9})).identity


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa_niter_16"),
        ({"init_lora_weights": "olora"}, "olora"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "experts"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "replicating"),
        ({"rank_pattern": {"(a+)+b": 8}}, "pattern"),
        ({"rank_pattern": {".*.*.*.*x": 8}}, "pattern"),
        ({"rank_pattern": {".?" * 40 + "Z": 8}}, "pattern"),
    ],
)
def test_what_is_not_plain_lora_is_refused_by_name(change, text, tmp_path):
    with pytest.raises(UnsupportedModel, match=text.replace("(", r"\(")):
        read(write_adapter(tmp_path, random_tensors(SPEC), change))


@pytest.mark.parametrize("change", [{"r": 0}, {"r": "8"}, {"lora_alpha": None}, {"rank_pattern": {"[": 8}}, {"r": 8}])
def test_values_that_are_wrong_are_named(change, tmp_path):
    with pytest.raises(BrokenModel):
        read(write_adapter(tmp_path, random_tensors(SPEC), change))


@pytest.mark.parametrize(
    "name",
    [
        f"{Q}.lora_magnitude_vector",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_A.weight",
        f"{Q}.weight",
    ],
)
def test_tensors_that_cannot_be_applied_are_refused_by_name(name, tmp_path):
    tensors = random_tensors(SPEC) | {name: np.ones((4, 64), np.float32)}
    with pytest.raises(UnsupportedModel, match=name.rpartition("lora")[2].replace(".", r"\.") or "weight"):
        read(write_adapter(tmp_path, tensors))


def test_the_experts_of_a_layer_cannot_be_adapted_but_its_attention_can(tmp_path):
    moe = {"family": "mixtral", "moe": MoeSpec(num_experts=2, top_k=1, expert_size=32)}
    spec = ModelSpec(**{field: getattr(SPEC, field) for field in SPEC.__slots__} | moe)
    adapter = read(write_adapter(tmp_path, random_tensors(spec, parts=ALL)), spec)
    assert {name.rpartition(".")[2] for name in adapter.matrices} == set("qkvo")


@pytest.mark.parametrize("missing", ["lora_A", "lora_B"])
def test_half_a_pair_is_refused(missing, tmp_path):
    tensors = random_tensors(SPEC)
    del tensors[f"{Q}.{missing}.weight"]
    with pytest.raises(BrokenModel, match="only"):
        read(write_adapter(tmp_path, tensors))


def test_an_adapter_of_another_network_is_refused_with_both_shapes(tmp_path):
    other = ModelSpec(**{field: getattr(SPEC, field) for field in SPEC.__slots__} | {"hidden_size": 80})
    with pytest.raises(BrokenModel, match=r"\[4, 80\]; expected \[4, 64\]"):
        read(write_adapter(tmp_path, random_tensors(other)))


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    tensors = random_tensors(SPEC)
    tensors[f"{Q}.lora_B.weight"][0, 0] = np.nan
    with pytest.raises(BrokenModel, match="not finite"):
        read(write_adapter(tmp_path, tensors))


def test_more_rank_than_the_server_takes_is_refused_with_the_setting(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"rank 4; expected at most 2\. Raise max_lora_rank"):
        read(write_adapter(tmp_path, random_tensors(SPEC)), max_rank=2)


@pytest.mark.parametrize("content", [None, b"[1]", b"{", b"[" * 100_000])
def test_a_folder_without_a_config_is_an_error(content, tmp_path):
    write_adapter(tmp_path, random_tensors(SPEC))
    (tmp_path / "adapter_config.json").unlink()
    if content is not None:
        (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(BrokenModel, match="adapter_config"):
        read(tmp_path)


def test_a_folder_without_weights_is_an_error(tmp_path):
    write_adapter(tmp_path, random_tensors(SPEC))
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(BrokenModel, match="adapter_model"):
        read(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*CONFIG, "rank_pattern", "use_dora", "init_lora_weights"]), _JSON))
def test_any_config_is_read_or_refused(values):
    try:
        config = read_peft_config(Fields({**CONFIG, **values}, "adapter_config.json"))
    except (BrokenModel, UnsupportedModel):
        return
    assert config.rank >= 1
    config.scale_of("model.layers.0.self_attn.q_proj")
