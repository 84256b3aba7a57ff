"""The folder of a prefix cache is private and named by what decides its bytes; what cannot work is refused by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.core.generation import RequestLimits
from headrace.inference.engine.config import EngineConfig
from headrace.inference.engine.loading.prefix_store import open_prefix_store
from headrace.testing.fake_runner import FakeRunner
from tests.inference.runner.native_models import load, small_spec
from tests.inference.runner.weights import random_weights

CONFIG = EngineConfig(
    dtype="auto",
    kv_dtype="auto",
    max_num_seqs=8,
    max_num_batched_tokens=64,
    enable_prefix_caching=True,
    prefix_cache_disk_bytes=1 << 20,
    max_draft_tokens=0,
    max_itl_ms=0,
    max_waiting_seqs=8,
    request_limits=RequestLimits(max_best_of=1, max_stop_sequences=1, max_top_n_tokens=1),
)


class NamedRunner(FakeRunner):
    def cache_identity(self) -> bytes:
        return bytes(range(16))


def open_in(folder: Path | None, **changes: object) -> bool:
    store = open_prefix_store(replace(CONFIG, prefix_cache_dir=folder, **changes), NamedRunner())
    if store is not None:
        store.close()
    return store is not None


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    assert not open_in(None)
    assert open_in(tmp_path / "new" / "folder")
    assert open_in(tmp_path / "new" / "folder")
    (made,) = (tmp_path / "new" / "folder").iterdir()
    assert (made.name, made.stat().st_mode & 0o777) == (bytes(range(16)).hex(), 0o700)


def in_a_file(folder: Path) -> Path:
    folder.write_text("not a folder")
    return folder


def readable_by_others(folder: Path) -> Path:
    (folder / bytes(range(16)).hex()).mkdir(parents=True)
    (folder / bytes(range(16)).hex()).chmod(0o750)
    return folder


def linked(folder: Path) -> Path:
    folder.mkdir()
    target = folder / "elsewhere"
    target.mkdir(mode=0o700)
    (folder / bytes(range(16)).hex()).symlink_to(target)
    return folder


@pytest.mark.parametrize(
    ("make", "changes", "sentence"),
    [
        (in_a_file, {}, "where no folder can be used"),
        (readable_by_others, {}, "which other users may read or write"),
        (linked, {}, "which other users may read or write"),
        (lambda folder: folder, {"enable_prefix_caching": False}, "enable_prefix_caching is false"),
        (
            lambda folder: folder,
            {"prefix_cache_disk_bytes": 100},
            "prefix_cache_disk_bytes is 100; expected at least 128",
        ),
    ],
)
def test_what_cannot_work_stops_the_start(
    make: Callable[[Path], Path], changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        open_in(make(tmp_path / "folder"), **changes)
    assert sentence in caught.value.message


def test_a_path_that_no_disk_has_room_for_stops_no_start(tmp_path: Path) -> None:
    assert not open_in(tmp_path / ("x" * 300))


def test_an_identity_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    spec = small_spec()
    weights, others = random_weights(spec), random_weights(spec, seed=1)

    def identity(folder: str = "a", own=weights, network=spec, **formats: object) -> bytes:
        return load(network, own, tmp_path / folder, **{"dtype": "w8a8", "kv_dtype": "bf16"} | formats).cache_identity()

    same = {identity(), identity(), identity("b")}  # packed, from the cache, and packed in another place
    different = [
        identity(own=others),
        identity(dtype="w8a16"),
        identity(kv_dtype="int8"),
        identity(network=replace(spec, norm_eps=1e-3)),
        identity(isa="portable"),
    ]
    assert len(same) == 1
    assert len({*same, *different}) == 6
