"""Files that desktops leave in folders, prefixes and archives are nowhere taken for a model, an adapter or code."""

import io
import json
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from headrace.core.progress import no_progress
from headrace.inference.engine.loading.source import start_adapters
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_templates
from headrace.inference.models.snapshots import choose_files
from headrace.inference.models.sources import locate
from headrace.inference.models.weight_files import open_folder
from headrace.serving.artifacts.archives import unpack
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.artifacts.fetch_bounds import Deadline, Guard
from headrace.serving.handlers.assembly import unpack_model
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.torchserve_store import holds_models
from headrace.serving.settings.model_folder import read_model_folder
from headrace_handler.stray_files import is_hidden, is_stray, listed
from tests.inference.models.model_files import TINY_LLAMA, write_folder
from tests.serving.artifacts.archive_maker import archive, file

TWIN = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(100)
STRAYS = ("._{}", ".{}", "__MACOSX/._{}", ".DS_Store", "Thumbs.db", "desktop.ini", ".ipynb_checkpoints/{}")


def write(folder: Path, *names: str) -> Path:
    """Write files, each beside all kinds of stray ones."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        for stray in STRAYS:
            other = path.parent / stray.format(path.name)
            other.parent.mkdir(exist_ok=True)
            other.write_bytes(TWIN)
    return folder


@pytest.mark.parametrize(
    ("name", "stray", "hidden"),
    [
        ("._model.gguf", True, True),
        ("a/__MACOSX/b", True, True),
        (".DS_Store", True, True),
        ("Thumbs.db", True, True),
        ("code/desktop.ini", True, True),
        (".model.gguf", False, True),
        ("__pycache__", False, True),
        ("__init__.py", False, False),
        ("model._gguf", False, False),
        ("_model.gguf", False, False),
    ],
)
def test_which_names_are_stray_and_which_are_no_candidates(name, stray, hidden) -> None:
    assert (is_stray(name), is_hidden(name)) == (stray, hidden)


def test_a_folder_is_listed_in_the_order_of_patterns_and_names(tmp_path) -> None:
    write(tmp_path, "b.mar", "a.mar", "c.whl")
    assert [path.name for path in listed(tmp_path, ["*.whl", "*.mar"])] == ["c.whl", "a.mar", "b.mar"]
    assert listed(tmp_path / "missing") == []


@pytest.mark.parametrize("names", [["m.gguf"], ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]])
def test_a_gguf_file_is_found_among_stray_files(tmp_path, names) -> None:
    write(tmp_path, *names)
    assert locate(str(tmp_path), revision=None, home=tmp_path, progress=no_progress).path == tmp_path / names[0]
    assert choose_files([path.name for path in tmp_path.iterdir()], "s3://b/m") == names
    assert read_model_folder(write(tmp_path / "packed", "inner/m.gguf")).root == tmp_path / "packed" / "inner"


def test_stray_files_of_a_prefix_with_a_folder_are_not_chosen() -> None:
    names = ["config.json", "model.safetensors", "._config.json", ".model.safetensors", "__MACOSX/._config.json"]
    assert choose_files(names, "s3://b/m") == names[:2]


def test_stray_files_are_neither_weights_nor_templates_nor_adapters(tmp_path) -> None:
    tensors = open_folder(write_folder(tmp_path / "plain", TINY_LLAMA, {}))[0]
    folder = write(tmp_path / "m", "model-1.safetensors", "additional_chat_templates/a.jinja", "adapters/l/x")
    write_folder(folder, TINY_LLAMA, {})
    (folder / "model-1.safetensors").unlink()
    write(folder / "adapters", "l/adapter_config.json", "._l/adapter_config.json", ".copy/adapter_config.json")
    (folder / "chat_template.jinja").write_text("t")

    assert open_folder(folder)[0].keys() == tensors.keys()
    assert read_templates(folder, Fields({}, "")) == {"default": "t", "a": "x"}
    assert list(start_adapters([], folder)) == ["l"]


def test_stray_members_of_archives_are_not_unpacked(tmp_path) -> None:
    members = [file(name, TWIN) for name in ("._m", "m/._config.json", "__MACOSX/m/x", "m/.DS_Store", "m/Thumbs.db")]
    packed = archive([*members, file("m/config.json", b"{}"), file("m/.env", b"kept")])
    unpack(io.BytesIO(packed).read, tmp_path, Guard(folder=tmp_path, deadline=Deadline(60)), name="m.tar.gz")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "m",
        "m/.env",
        "m/config.json",
    ]


def test_stray_files_are_neither_archives_nor_code(tmp_path) -> None:
    store = write(tmp_path / "store", "a.mar")
    with zipfile.ZipFile(store / "a.mar", "w") as mar:
        mar.writestr("a/MAR-INF/MANIFEST.json", json.dumps({"model": {"handler": "h.py"}}))
        mar.writestr("a/h.py", "")
        mar.writestr("a/._h.py", TWIN)
        mar.writestr("__MACOSX/a/._h.py", TWIN)

    assert holds_models(store)
    with closing(ContentCache(tmp_path / "cache")) as cache:
        assert find_model(unpack_model(store, cache), model_name="a", env={}).files == {
            "MAR-INF/MANIFEST.json",
            "h.py",
        }
    assert find_model(write(tmp_path / "code", "m/code/inference.py"), model_name="m", env={}).files == {
        "code/inference.py"
    }
