import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.gguf_file import open_gguf
from tests.models.model_files import write_gguf

ROWS = np.arange(64, dtype=np.float32).reshape(4, 16)
METADATA = {
    "a.whole": 7,
    "a.number": 0.5,
    "a.flag": True,
    "a.text": "Grüße",
    "a.texts": ["x", "", "ünï"],
    "a.numbers": [1, 2, 3],
}


@pytest.fixture(scope="module")
def small_file(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", METADATA, {"one": ROWS, "two": ROWS[0].copy()})


def test_metadata_and_tensors_come_back_as_they_were_written(small_file):
    file = open_gguf(small_file)

    values = file.metadata
    assert (values["a.whole"], values["a.number"], values["a.flag"], values["a.text"]) == (7, 0.5, True, "Grüße")
    assert [text.decode() for text in values["a.texts"]] == ["x", "", "ünï"]
    assert values["a.numbers"].tolist() == [1, 2, 3]
    assert np.array_equal(file.tensors["one"].rows.view("<f4"), ROWS)
    assert (file.tensors["two"].num_rows, file.tensors["two"].num_columns) == (1, 16)


def test_the_real_file_has_its_vocabulary_and_tensors(smollm2_path):
    file = open_gguf(smollm2_path)

    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(file.tensors) == 272
    assert file.tensors["token_embd.weight"].rows.shape == (49152, 576 // 32 * 34)


def test_the_fingerprint_changes_with_the_content(tmp_path):
    first = open_gguf(write_gguf(tmp_path / "one.gguf", {"a": 1}, {"t": ROWS}))
    second = open_gguf(write_gguf(tmp_path / "two.gguf", {"a": 2}, {"t": ROWS}))

    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == open_gguf(tmp_path / "one.gguf").fingerprint


def test_every_truncated_file_is_a_broken_model(small_file, tmp_path):
    content = small_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    end_of_data = len(content.rstrip(b"\0"))
    for length in range(end_of_data):
        cut.write_bytes(content[:length])
        with pytest.raises(BrokenModel, match=r"cut\.gguf"):
            open_gguf(cut)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_corrupt_header_raises_only_headrace_errors(small_file, tmp_path, data):
    content = bytearray(small_file.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    corrupt = tmp_path / "corrupt.gguf"
    corrupt.write_bytes(content)

    try:
        file = open_gguf(corrupt)
    except (BrokenModel, UnsupportedModel):
        return
    for tensor in file.tensors.values():
        assert tensor.rows.shape[0] == tensor.num_rows


def test_the_real_file_cut_anywhere_is_a_broken_model(smollm2_path, tmp_path):
    rng = random.Random(7)
    with smollm2_path.open("rb") as file:
        content = file.read(4_000_000)
    cut = tmp_path / "cut.gguf"
    for _ in range(5):
        cut.write_bytes(content[: rng.randrange(len(content))])
        with pytest.raises(BrokenModel, match=r"cut\.gguf"):
            open_gguf(cut)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04 something else"])
def test_a_file_that_is_not_gguf_is_refused(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)

    with pytest.raises(BrokenModel, match="not a GGUF file"):
        open_gguf(path)


def test_a_file_that_cannot_be_opened_is_reported_with_the_reason(tmp_path):
    with pytest.raises(BrokenModel, match="cannot be read: Is a directory"):
        open_gguf(tmp_path)


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_an_unknown_version_is_named(small_file, tmp_path, version):
    content = bytearray(small_file.read_bytes())
    content[4:8] = version.to_bytes(4, "little")
    path = tmp_path / "version.gguf"
    path.write_bytes(content)

    with pytest.raises(UnsupportedModel, match=f"version {version}"):
        open_gguf(path)


def test_the_message_names_the_tensor_that_was_cut_off(small_file, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(small_file.read_bytes()[:-40])

    with pytest.raises(BrokenModel, match=r"tensor two ends at byte \d+, the file has \d+"):
        open_gguf(path)
