"""GGUF files in parts are read as the file that they were split from; parts that do not belong together are named."""

from contextlib import suppress

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.gguf_file import open_gguf
from headrace.models.gguf_split import open_all_parts, split_parts
from tests.models.model_files import write_gguf

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
