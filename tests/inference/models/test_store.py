import json

import pytest

from headrace.core.errors import ModelNotFound
from headrace.inference.models.store import StoredKind, list_models, remove_model
from tests.inference.models.test_sources import hub_home, run_offline

__all__ = ["hub_home"]

LIST_AND_REMOVE = """
import json, pathlib
from headrace.inference.models.store import list_models, remove_model
home = pathlib.Path("nowhere")
names = [(model.name, model.kind) for model in list_models(home)]
freed = remove_model("org/tiny", home=home)
print(json.dumps([names, freed, [model.name for model in list_models(home)]]))
"""


@pytest.fixture(autouse=True)
def no_hub_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "no-hub"))


@pytest.fixture
def home(tmp_path):
    model = tmp_path / "home" / "models" / "smollm2" / "model.gguf"
    packed = tmp_path / "home" / "packed" / "smollm2-w4a8.bin"
    for path, size in ((model, 100), (packed, 30)):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    (model.parent.parent / ".download-unfinished").mkdir()
    return tmp_path / "home"


def test_models_and_packed_weights_are_listed_with_their_sizes(home):
    listed = [(model.name, model.kind, model.num_bytes) for model in list_models(home)]

    assert listed == [("smollm2", StoredKind.ALIAS, 100), ("smollm2-w4a8.bin", StoredKind.PACKED, 30)]


def test_a_model_is_removed_by_name_and_its_size_returned(home):
    assert remove_model("smollm2", home=home) == 100
    assert [model.kind for model in list_models(home)] == [StoredKind.PACKED]


def test_packed_weights_are_removed_one_by_one_or_all_together(home):
    assert remove_model("smollm2-w4a8.bin", home=home) == 30
    (home / "packed" / "other.bin").write_bytes(b"x" * 7)
    assert remove_model("packed", home=home) == 7


def test_downloads_of_sandboxed_code_are_listed_and_removed_without_following_their_links(home, tmp_path):
    downloads = tmp_path / "no-hub" / "headrace-code" / "0123"
    downloads.mkdir(parents=True)
    (downloads / "weights").write_bytes(b"x" * 50)
    (downloads / "link").symlink_to(home / "models")
    (downloads / "file").symlink_to(home / "models" / "smollm2" / "model.gguf")
    assert [(model.name, model.num_bytes) for model in list_models(home) if model.kind is StoredKind.CODE] == [
        ("headrace-code", 50)
    ]
    assert remove_model("headrace-code", home=home) == 50
    assert not downloads.exists()
    assert [model.name for model in list_models(home)] == ["smollm2", "smollm2-w4a8.bin"]


@pytest.mark.parametrize("name", ["unknown", "../models", "/", "", "."])
def test_removing_an_unknown_model_is_refused(home, name):
    with pytest.raises(ModelNotFound, match="stored here"):
        remove_model(name, home=home)

    assert len(list_models(home)) == 2


def test_an_empty_home_has_no_models(tmp_path):
    assert list_models(tmp_path / "nothing") == []


def test_models_of_the_hub_are_listed_and_removed(hub_home):
    names, freed, left = json.loads(run_offline(LIST_AND_REMOVE, hub_home))

    assert names == [["org/tiny", "hub"]]
    assert freed > 0
    assert left == []
    assert not (hub_home / "hub" / "models--org--tiny").exists()
