import random
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.gguf_file import open_all_parts, open_gguf, split_parts
from tests.inference.models.model_files import write_gguf

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


TENSORS = {f"t{index}": np.full((2, 32), index, np.float32) for index in range(5)}


def write_parts(folder, *, stem="model", max_tensors=2):
    """Split by the `gguf` package itself, with small parts."""
    writer = gguf.GGUFWriter(folder / f"{stem}.gguf", "llama", split_max_tensors=max_tensors)
    writer.add_uint32("llama.block_count", 2)
    for name, tensor in TENSORS.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


@pytest.mark.parametrize("given_part", [0, 1, 2])
def test_every_part_opens_the_whole_file(tmp_path, given_part):
    paths = write_parts(tmp_path)
    assert len(paths) == 3
    assert split_parts(paths[1]) == paths

    file = open_all_parts(paths[given_part])
    assert file.metadata["llama.block_count"] == 2
    assert file.tensors.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        assert np.array_equal(file.tensors[name].rows.view("<f4"), expected)


def test_the_fingerprint_covers_every_part(tmp_path):
    paths = write_parts(tmp_path)
    before = open_all_parts(paths[0]).fingerprint
    paths[2].touch()

    assert open_all_parts(paths[0]).fingerprint != before


def test_a_missing_part_is_named(tmp_path):
    paths = write_parts(tmp_path)
    paths[1].unlink()

    with pytest.raises(BrokenModel, match=r"1 of 3 parts .* model-00002-of-00003\.gguf"):
        open_all_parts(paths[0])


def test_a_renamed_part_says_which_name_is_expected(tmp_path):
    renamed = write_parts(tmp_path)[0].rename(tmp_path / "renamed.gguf")

    with pytest.raises(BrokenModel, match=r"ends in -00001-of-00003\.gguf"):
        open_all_parts(renamed)


def test_parts_in_the_wrong_order_are_named(tmp_path):
    first, second, _ = write_parts(tmp_path)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)

    with pytest.raises(BrokenModel, match="is part 1 of 3; expected part 0"):
        open_all_parts(first)


def test_a_tensor_in_two_parts_is_named(tmp_path):
    first = {"split.no": 0, "split.count": 2}
    write_gguf(tmp_path / "m-00001-of-00002.gguf", first, {"t": TENSORS["t1"]})
    write_gguf(tmp_path / "m-00002-of-00002.gguf", first | {"split.no": 1}, {"t": TENSORS["t1"]})

    with pytest.raises(BrokenModel, match="has the tensor t, which another part has too"):
        open_all_parts(tmp_path / "m-00001-of-00002.gguf")


def test_a_file_that_is_not_split_opens_alone(tmp_path):
    path = write_gguf(tmp_path / "m-00001-of-00002.gguf", {}, {"t": TENSORS["t1"]})

    assert open_all_parts(path).fingerprint == open_gguf(path).fingerprint


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.one_of(st.integers(-1, 5), st.sampled_from([65535, 2**31]), st.text(max_size=2), st.booleans()))
def test_any_count_of_parts_ends_in_a_file_or_in_a_named_error(tmp_path, count):
    value = count if isinstance(count, int) and count >= 0 else str(count)
    path = write_gguf(tmp_path / "m-00001-of-00002.gguf", {"split.count": value, "split.no": 0}, {"t": TENSORS["t1"]})
    with suppress(BrokenModel, UnsupportedModel):
        assert open_all_parts(path).tensors.keys() == {"t"}


@pytest.mark.parametrize("name", ["split.count", "split.no", "split.tensors.count"])
@pytest.mark.parametrize("value", [[2, 2], "2", 1.5])
def test_a_number_of_another_type_is_named(tmp_path, name, value):
    right = {"split.count": 2, "split.no": 0}
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", right | {name: value}, {"t": TENSORS["t1"]})
    write_gguf(tmp_path / "m-00002-of-00002.gguf", right | {"split.no": 1}, {"u": TENSORS["t1"]})
    with pytest.raises(BrokenModel, match=f"{name} is .*; expected a whole number"):
        open_all_parts(first)
