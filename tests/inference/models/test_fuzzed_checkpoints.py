"""A checkpoint with any values in its files is read, or refused by name: no crash, no hang, no unbounded memory."""

import json
import os
import re
import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.inference.models.families.registry import FAMILIES, from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.loading import load_model
from headrace.inference.models.places import folder_places, gguf_name, stored_name
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    refusal,
    write_folder,
    write_gguf,
)

KEYS = [
    *TINY_LLAMA,
    *(
        "head_dim",
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "sliding_window",
        "layer_types",
        "max_window_layers",
    ),
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"),
    *("shared_expert_intermediate_size", "mlp_only_layers", "partial_rotary_factor", "query_pre_attn_scalar"),
    *("original_max_position_embeddings", "residual_multiplier", "logits_scaling", "embedding_multiplier"),
    *("no_rope_layers", "sliding_window_pattern", "text_config", "quantization_config"),
]
TYPES = sorted({name for family in FAMILIES for name in family.model_types})
SCALARS = st.one_of(
    st.integers(-2, 9),
    st.sampled_from([10**6, 10**9, 2**31, 2**63, 10**30, 1e308, -1e308, 1e-320, float("nan"), float("inf")]),
    st.sampled_from([True, False, None, "", "llama", "full_attention", "gelu"]),
)
ROPES = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["linear", "yarn", "longrope", "llama3", "dynamic", "default", "?"])},
    optional={"factor": SCALARS, "original_max_position_embeddings": SCALARS, "short_factor": st.lists(SCALARS)},
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=5), ROPES, st.just({}), st.just({"model_type": "llama"}))


@settings(max_examples=500)
@given(
    model_type=st.sampled_from(TYPES), changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4)
)
@example("internlm2", {"hidden_size": 10**18})
@example("glm", {"head_dim": 10**30})
@example("llama", {"num_hidden_layers": 10**9})
@example("phi3", {"partial_rotary_factor": 1e308})
@example("ministral3", {"original_max_position_embeddings": 1e308})
@example("granitemoe", {"residual_multiplier": 1e308})
@example("granite", {"residual_multiplier": 1e-320})
@example("qwen3_moe", {"num_experts": 10**9})
def test_any_config_ends_in_a_network_or_in_an_error_that_names_the_file(model_type, changes):
    config = Fields(TINY_LLAMA | {"model_type": model_type} | changes, "config.json")
    text = refusal(lambda: folder_places(*from_config(config)))
    assert not text or "config.json" in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    family, spec = from_config(Fields(TINY_LLAMA, ""))
    tensors = {stored_name(name, family.tensors): values for name, values in random_weights(spec).items()}
    target = write_folder(tmp_path_factory.mktemp("fuzzed") / "m", TINY_LLAMA, tensors, shards=2)
    (target / "tokenizer.json").write_text(byte_level_tokenizer().to_str())
    return target


@pytest.fixture(scope="module")
def gguf_header(tmp_path_factory):
    """A whole file, and the length of its header."""
    _, spec = from_config(Fields(TINY_LLAMA, ""))
    tensors = {gguf_name(name): values for name, values in random_weights(spec).items()}
    metadata = gguf_metadata(spec) | gguf_vocabulary(byte_level_tokenizer())
    content = write_gguf(tmp_path_factory.mktemp("fuzzed") / "m.gguf", metadata, tensors).read_bytes()
    return Header(content, len(content) - sum(values.nbytes for values in tensors.values()))


class Header(tuple):
    """Content and length of the header."""

    __slots__ = ()

    def __new__(cls, *parts):
        return super().__new__(cls, parts)

    def __repr__(self):
        return "Header(...)"  # Hypothesis shows arguments


def load_all(path):
    model = load_model(str(path))
    for name in model.weights.names():
        model.weights.load(name)
    model.tokenizer.encode("The quick brown fox")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_a_gguf_header_ends_in_a_model_or_in_an_error(data, gguf_header, tmp_path):
    content, length = bytearray(gguf_header[0]), gguf_header[1]
    numbers = st.sampled_from([0, 1, 255, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1])
    for _ in range(data.draw(st.integers(1, 4))):
        struct.pack_into("<Q", content, data.draw(st.integers(0, length - 8)), data.draw(numbers))
        content[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    text = refusal(lambda: load_all(path))
    assert not text or "m.gguf" in text


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_a_file_of_a_folder_ends_in_a_model_or_in_an_error(data, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / data.draw(st.sampled_from(sorted(file.name for file in folder.iterdir())))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 4000) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    text = refusal(lambda: load_all(tmp_path))
    assert not text or str(tmp_path) in text


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../b.safetensors", "..", ""])
def test_an_index_does_not_lead_out_of_its_folder(name, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "names files outside its folder" in refusal(lambda: load_model(str(tmp_path)))


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json"),
        *("special_tokens_map.json", "chat_template.jinja", "chat_template.json", "processor_config.json"),
        *("model.safetensors.index.json", "modules.json", "quantize_config.json"),
    ],
)
def test_a_file_that_would_fill_the_memory_is_refused_unread(name, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with (tmp_path / name).open("wb") as opened:
        opened.truncate(1 << 34)
    assert re.search(f"{name} has 17179869184 bytes; expected at most", refusal(lambda: load_model(str(tmp_path))))


def test_a_pipe_in_place_of_a_vocabulary_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "tokenizer.json")
    assert "tokenizer.json is not a file" in refusal(lambda: load_model(str(tmp_path)))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mistral", "sliding_window": 1 << 31},
        {"max_position_embeddings": 1},
        {"model_type": "x" * 100_000},
        {"hidden_act": ["x" * 100_000]},
        {"rope_scaling": {"rope_type": "x" * 100_000}},
    ],
)
def test_a_number_or_text_at_an_extreme_is_refused_in_a_few_words(change):
    text = refusal(lambda: from_config(Fields(TINY_LLAMA | change, "config.json")))
    assert re.search(r"config.json.*(2147483648; expected at most|xxxx|embeddings is 1; .* at least 2)", text)
    assert len(text) < 4000


def test_an_index_of_many_missing_files_is_refused_in_a_few_words(tmp_path):
    names = {str(number): f"{number}.safetensors" for number in range(1000)}
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert "101.safetensors and 995 more, which model" in refusal(lambda: load_model(str(tmp_path)))
