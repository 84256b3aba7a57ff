"""Files of torch.save give the tensors that torch reads; hostile pickles end in errors and run nothing."""

import json
import os
import pickle
import struct
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.llama import LLAMA
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_hf_weights
from headrace.inference.models.pickle_file import run_pickle
from headrace.inference.models.places import stored_name
from headrace.inference.models.weight_files import open_folder
from tests.inference.models.model_files import TINY_LLAMA, random_weights

_, SPEC = from_config(Fields(TINY_LLAMA, "config.json"))
WEIGHTS = random_weights(SPEC)
TENSORS = {stored_name(name, LLAMA.tensors): torch.from_numpy(values) for name, values in WEIGHTS.items()}
BIN = "pytorch_model.bin"


def write_config(folder):
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))


def write_bin(folder, state, name=BIN):
    write_config(folder)
    torch.save(state, folder / name)
    return folder / name


def write_archive(folder, program, *, compression=zipfile.ZIP_STORED, entries=()):
    write_config(folder)
    with zipfile.ZipFile(folder / BIN, "w", compression) as archive:
        archive.writestr("archive/data.pkl", program)
        for name, content in entries:
            archive.writestr(f"archive/{name}", content)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_type_has_the_values_that_were_saved(tmp_path, dtype):
    write_bin(tmp_path, {name: tensor.to(dtype) for name, tensor in TENSORS.items()})

    weights = read_hf_weights(tmp_path)
    for name, tensor in WEIGHTS.items():
        expected = torch.from_numpy(tensor).to(dtype).float().numpy()
        assert np.array_equal(decode(weights.load(name)).ravel(), expected.ravel())


def test_what_modules_and_trainers_save_is_read(tmp_path):
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

    state = Holder().state_dict()
    state.update({name: torch.nn.Parameter(tensor) for name, tensor in TENSORS.items()})
    write_bin(tmp_path, {"state_dict": state, "epoch": 3, "lr": [0.1, None, True]})

    assert np.array_equal(decode(read_hf_weights(tmp_path).load("layers.1.up")), WEIGHTS["layers.1.up"])


def test_views_of_one_storage_are_read_at_their_offsets(tmp_path):
    both = torch.cat([TENSORS["model.layers.0.mlp.gate_proj.weight"], TENSORS["model.layers.0.mlp.up_proj.weight"]])
    views = {"model.layers.0.mlp.gate_proj.weight": both[:64], "model.layers.0.mlp.up_proj.weight": both[64:]}
    write_bin(tmp_path, TENSORS | views)

    assert np.array_equal(decode(read_hf_weights(tmp_path).load("layers.0.up")), WEIGHTS["layers.0.up"])


def test_shards_with_an_index_are_read(tmp_path):
    names = sorted(TENSORS)
    parts = {f"pytorch_model-0000{n + 1}-of-00002.bin": names[n::2] for n in range(2)}
    for file, part in parts.items():
        write_bin(tmp_path, {name: TENSORS[name] for name in part}, file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))

    weights = read_hf_weights(tmp_path)
    assert all(np.array_equal(decode(weights.load(name)).ravel(), WEIGHTS[name].ravel()) for name in WEIGHTS)


def write_split(folder, tensors, names=None):
    split = folder / BIN
    split.mkdir()
    names = names or {name: f"p{index}.{name}" for index, name in enumerate(tensors)}
    (split / "key_to_filename.json").write_text(json.dumps(names))
    for name, tensor in tensors.items():
        torch.save(tensor, split / f"p{list(tensors).index(name)}.{name}")


def test_a_folder_with_a_file_for_each_tensor_is_read(tmp_path):
    tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    write_split(tmp_path, tensors)

    found, fingerprint = open_folder(tmp_path)

    assert {name: stored.floats().ravel().tolist() for name, stored in found.items()} == {
        name: tensor.float().ravel().tolist() for name, tensor in tensors.items()
    }
    torch.save(torch.zeros(2, 3), tmp_path / BIN / "p0.a.weight")
    assert open_folder(tmp_path)[1] != fingerprint


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"a": "../x"}, "names files outside its folder"),
        ({"a": "missing"}, "has no missing, which key_to_filename.json lists"),
        ({"a": 1}, "names files outside its folder"),
        ([1], "is not a valid list"),
    ],
)
def test_a_malformed_list_of_files_is_a_broken_model(tmp_path, names, said):
    write_split(tmp_path, {"a": torch.ones(2)}, names)
    with pytest.raises(BrokenModel, match=said):
        open_folder(tmp_path)


def test_a_file_with_more_than_its_tensor_is_refused(tmp_path):
    write_split(tmp_path, {"a": {"x": torch.ones(2)}})
    with pytest.raises(UnsupportedModel, match="holds a dict; expected the tensor a"):
        open_folder(tmp_path)


def test_a_transposed_tensor_is_refused_by_name(tmp_path):
    name = "model.layers.0.self_attn.q_proj.weight"
    write_bin(tmp_path, TENSORS | {name: TENSORS[name].T})

    with pytest.raises(UnsupportedModel, match=r"q_proj\.weight has strides"):
        read_hf_weights(tmp_path)


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, print, getattr, __import__])
def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(tmp_path, function, protocol):
    marker = tmp_path / "ran"
    program = pickle.dumps({"a": Attack(function, f"touch {marker}")}, protocol)
    write_archive(tmp_path, program)

    with pytest.raises(UnsupportedModel, match=BIN):
        read_hf_weights(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", r"os\.system"),
        (b"\x80\x02ctorch\nload\n.", r"torch\.load"),
        (b"\x80\x02ctorch.FloatStorage.__init__\n__globals__\n.", "__globals__"),
        (b"\x80\x02ios\nsystem\n.", "INST"),
        (b"\x80\x04\x95\x01\x00\x00\x00\x00\x00\x00\x00N.", "PROTO 4"),
        (b"(lp0\n.", "LIST"),
        (b"\x80\x02]2.", "DUP"),
        (b"\x80\x02\x8f.", "EMPTY_SET"),
    ],
)
def test_names_and_opcodes_beyond_tensors_are_refused_by_name(program, named):
    with pytest.raises(UnsupportedModel, match=named):
        run_pickle(program, "model.bin")


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02N",
        b"\x80\x02R.",
        b"\x80\x02t.",
        b"\x80\x02h\x05.",
        b"\x80\x02NNs.",
        b"\x80\x02}]Ns.",
        b"\x80\x02}(Nu.",
        b"\x80\x02NQ.",
        b"\x80\x02X\xff\xff\xff\xffabc.",
        b"\x80\x02ccollections\nOrderedDict\nN\x85R.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    ],
)
def test_a_malformed_program_is_a_broken_model(program):
    with pytest.raises(BrokenModel, match=r"model\.bin"):
        run_pickle(program, "model.bin")


def test_a_huge_memo_index_takes_no_memory():
    assert run_pickle(b"\x80\x02Nr\xff\xff\xff\x7f.", "model.bin") is None


def test_deep_nesting_is_neither_hashed_nor_recursed_into():
    nested = b"\x80\x02}" + b")" + b"\x85" * 500_000
    with pytest.raises(BrokenModel, match="a key of type tuple"):
        run_pickle(nested + b"Ns.", "model.bin")
    assert isinstance(run_pickle(b"\x80\x02)" + b"\x85" * 500_000 + b".", "model.bin"), tuple)


def test_an_endless_program_is_cut_off():
    with pytest.raises(UnsupportedModel, match="more than 2000000 opcodes"):
        run_pickle(b"\x80\x02" + b"N" * 2_100_000 + b".", "model.bin")


def test_compressed_entries_are_refused(tmp_path):
    write_archive(tmp_path, b"\x80\x02}.", compression=zipfile.ZIP_DEFLATED)

    with pytest.raises(UnsupportedModel, match="compressed or encrypted"):
        read_hf_weights(tmp_path)


def tensor_program(*, key="0", numel=4, offset=0, size=(2, 2), stride=(2, 1)):
    """A state dict of one tensor `t`, with numbers that torch would not write."""

    def number(value):
        return b"J" + struct.pack("<i", value)

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(numel) + b"tQ"
    shape = b"(" + b"".join(map(number, size)) + b"t(" + b"".join(map(number, stride)) + b"t"
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    view = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + shape + hooks + b"tR"
    return b"\x80\x02}" + text("t") + view + b"s."


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1},
        {"size": (3, 2)},
        {"size": (2**30, 2**30)},
        {"size": (-1, 2)},
        {"offset": -4},
        {"size": (2,)},
        {"key": "1"},
        {"key": "../../data.pkl"},
    ],
)
def test_a_tensor_outside_its_storage_is_a_broken_model(tmp_path, changes):
    write_archive(tmp_path, tensor_program(**changes), entries=[("data/0", bytes(16))])

    with pytest.raises(BrokenModel, match=BIN):
        read_hf_weights(tmp_path)


def test_the_format_from_before_archives_is_refused(tmp_path):
    write_config(tmp_path)
    torch.save(TENSORS, tmp_path / BIN, _use_new_zipfile_serialization=False)

    with pytest.raises(UnsupportedModel, match=r"since PyTorch 1\.6"):
        read_hf_weights(tmp_path)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_any_bytes_changed_ends_in_weights_or_in_a_named_error(tmp_path, data):
    content = bytearray(write_bin(tmp_path, TENSORS).read_bytes())
    tail = len(content) - 4096
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.one_of(st.integers(0, 4095), st.integers(tail, len(content) - 1)))
        content[place] = data.draw(st.integers(0, 255))
    (tmp_path / BIN).write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2, tail + 2000]))])

    try:
        weights = read_hf_weights(tmp_path)
        for name in weights.names():
            weights.load(name)
    except (BrokenModel, UnsupportedModel):
        pass


@settings(deadline=None, max_examples=500)
@given(program=st.binary(max_size=200))
def test_any_program_ends_in_a_value_or_in_an_error(program):
    with suppress(BrokenModel, UnsupportedModel):
        run_pickle(b"\x80\x02" + program, "model.bin")
