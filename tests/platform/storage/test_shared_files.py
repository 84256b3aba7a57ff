"""Files that machines share: what one keeps others find, and batches go on when machines are lost at any change."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from headrace.core.errors import NotFound, Unavailable
from headrace.core.files import Files
from headrace.platform.account.image_store import ImageStore, digest_of
from headrace.platform.jobs import spool
from headrace.platform.jobs.inputs import InputFile
from headrace.platform.jobs.spool import JobFolder
from headrace.serving.batches.store import BatchStore, Paging
from tests.serving.batches.conftest import lines_of
from tests.serving.batches.runs import OWNER, Clock, answer, make_batch, results, run_batches

from .machines import Killed, World

INPUT = InputFile(uri="s3://b/k", output_uri="s3://b/o", num_bytes=1, etag="e")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_what_one_machine_keeps_others_find(world: World) -> None:
    first, second = world.machine(), world.machine()
    for files in (first, Files(first.root / "local")):
        other = second if files is first else files
        folder, there = files.folder(files.root / "a" / "b"), other.root / "a" / "b"
        assert other.read(there / "small") is None
        files.write(folder / "small", b"1")
        files.write(folder / "below" / "small", b"2")
        assert other.read_many([there / "small", there / "none"]) == {there / "small": b"1"}
        (folder / "content").write_bytes(b"content")
        files.keep(folder / "content")
        assert set(other.names(there)) - {"content"} == {"small", "below"}
        assert "a" in other.names(other.root)
        assert other.names(there / "none") == []
        assert other.fetch(there / "content").read_bytes() == b"content"
        assert "content" in other.contents(there)
        other.discard(there / "content")
        other.remove(there / "small")
        other.remove(there / "small")
        assert files.read(folder / "small") is None
        with pytest.raises(FileNotFoundError):
            other.fetch(there / "content")
        with pytest.raises(FileNotFoundError):
            other.fetch(there / "never")


def test_platforms_of_other_databases_use_other_prefixes(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    other.s3 = world.s3
    for number, files in enumerate((world.machine(), world.machine(), other.machine())):
        path = files.folder(files.root) / f"{number}"
        path.write_bytes(b"x" * number)
        files.keep(path)
    assert [files.num_bytes() for files in (world.machine(), other.machine())] == [1, 2]
    other.close()


def test_a_bucket_out_of_reach_is_unavailable_and_leaves_no_half_content(world: World) -> None:
    first, second = world.machine(), world.machine()
    path = first.folder(first.root) / "content"
    path.write_bytes(b"content")
    first.keep(path)
    world.s3.failure = EndpointConnectionError(endpoint_url="http://s3")
    for use in (lambda: first.keep(path), lambda: second.fetch(second.root / "content"), second.num_bytes):
        with pytest.raises(Unavailable, match="bucket own"):
            use()
    assert list(second.root.iterdir()) == []


def test_copies_that_are_not_used_are_removed_and_fetched_again(world: World) -> None:
    first, second = world.machine(), world.machine()
    for name in ("used", "unused"):
        path = first.folder(first.root) / name
        path.write_bytes(b"content")
        first.keep(path)
        os.utime(second.fetch(second.root / name), (0, 0))
    second.fetch(second.root / "used")
    second.sweep()
    assert [path.name for path in second.root.iterdir()] == ["used"]
    assert second.fetch(second.root / "unused").read_bytes() == b"content"


async def test_a_batch_goes_on_when_machines_are_lost_at_each_of_their_changes(world: World) -> None:
    """The n-th machine is lost at its n-th change; one whose loss comes too late ends the batch."""
    clock = Clock()
    accepting = BatchStore(world.machine(), max_bytes=1 << 30, clock=clock)
    batch = make_batch(accepting, lines_of(9), clock)
    num_lost = 0
    while accepting.open_batches():
        machine = world.machine(changes_left=num_lost)
        await run_batches(BatchStore(machine, max_bytes=1 << 30, clock=clock), answer, clock)
        num_lost += 1
    ended = accepting.batch(OWNER, batch.id)
    assert num_lost > 5
    assert (ended.status, ended.counts.completed) == ("completed", 9)
    for store in (accepting, BatchStore(world.machine(), max_bytes=1 << 30, clock=clock)):
        assert sorted(results(store, ended.output_file_id)) == sorted(f"r{number}" for number in range(9))
        files, _ = store.files(OWNER, Paging(limit=10), purpose="batch_output")
        assert [file.id for file in files] == [ended.output_file_id]
    clock.now_s = 4e9
    accepting.sweep()
    assert [key for objects in world.s3.buckets.values() for key in objects] == []
    assert accepting.files(OWNER, Paging(limit=10)) == ([], False)


async def test_what_is_accepted_before_the_loss_of_a_machine_is_run_and_what_is_not_leaves_nothing(
    world: World,
) -> None:
    clock = Clock()
    for changes_left in range(6):
        store = BatchStore(world.machine(changes_left=changes_left), max_bytes=1 << 30, clock=clock)
        try:
            make_batch(store, lines_of(1), clock)
        except Killed:
            continue
        break
    else:
        raise AssertionError("it was never accepted")
    other = BatchStore(world.machine(), max_bytes=1 << 30, clock=clock)
    leader = await run_batches_once(other, clock)
    assert leader == 1


async def run_batches_once(store: BatchStore, clock: Clock) -> int:
    """Run the batches that were accepted; return how many have completed."""
    accepted = []
    for key in store.open_batches():
        try:
            accepted.append(store.batch(key.owner, key.batch_id))
        except NotFound:  # its machine was lost before it was accepted
            store.close(key.owner, key.batch_id)
    await run_batches(store, answer, clock)
    return sum(store.batch(OWNER, batch.id).status == "completed" for batch in accepted)


def test_answers_of_a_job_are_found_by_another_machine_up_to_the_last_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = [world.machine() for _ in range(3)]
    folders = [JobFolder(files, files.root / "job") for files in machines]
    folders[0].write_inputs([INPUT])
    monkeypatch.setattr(spool, "_LOG_S", 0.0)
    first = folders[0].spool(0)
    first.add(2, b"two")
    first.add(0, b"")
    monkeypatch.setattr(spool, "_LOG_S", 1e9)
    first.add(1, b"lost")

    assert folders[1].read_inputs() == [INPUT]
    second = folders[1].spool(0)
    assert [request in second for request in range(3)] == [True, False, True]
    second.add(1, b"x" * spool._BUFFER_BYTES)
    first.add(1, b"y" * spool._BUFFER_BYTES)  # it does not know yet that it no longer leads
    with folders[2].spool(0).assembled(by_line=True) as output:
        output.seek(0)
        assert output.read() == b"\n" + b"x" * spool._BUFFER_BYTES + b"\ntwo\n"
    with folders[0].spool(0).assembled(by_line=False) as output:
        output.seek(0)
        assert output.read(2) == b"xx", "what this machine had alone is not used"
    second.end("why")
    assert [folder.ended() for folder in folders] == [{0: "why"}] * 3
    assert 2 not in folders[2].spool(0)
    folders[2].remove()
    assert [folder.read_inputs() for folder in folders] == [None] * 3


def test_progress_that_cannot_be_logged_is_logged_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_LOG_S", 0.0)
    files = world.machine()
    answers = JobFolder(files, files.root / "job").spool(0)
    with monkeypatch.context() as patch:
        patch.setattr(files, "append", refuse)
        answers.add(0, b"zero")
    answers.add(1, b"one")
    other = world.machine()
    assert 0 in JobFolder(other, other.root / "job").spool(0)


def test_an_image_that_was_pushed_to_one_machine_is_pulled_from_another(world: World) -> None:
    first, second = (ImageStore(world.machine(), now_s=lambda: time.time() + 2 * 86_400) for _ in range(2))
    layer, unused = b"layer", b"unused"
    for content in (layer, unused):
        upload = first.begin_upload()
        first.append(upload, content)
        first.finish_upload(upload, digest_of(content))
    manifest = json.dumps({"layers": [{"digest": digest_of(layer), "size": len(layer)}]}).encode()
    assert (second.has_blob(digest_of(layer)), second.has_blob(digest_of(b"none"))) == (True, False)
    digest = second.put_manifest("team/server", "v1", "type", manifest)
    assert first.tags("team/server") == {"v1": digest}
    assert list(first.manifests("team/server")) == [digest]
    blob = second.blob(digest_of(layer))
    assert blob is not None
    assert blob.read_bytes() == layer
    assert second.blob(digest_of(b"none")) is None
    assert first.put_manifest("other", "v1", "type", manifest) == digest
    assert first.delete("other", digest)
    assert [second.has_blob(digest_of(content)) for content in (layer, unused)] == [True, False]
    second.delete_repository("team/server")
    assert first.manifest("team/server", "v1") is None
    assert not first.has_blob(digest_of(layer))


def refuse(_path: Path, _entry: bytes) -> None:
    raise Unavailable("The store failed.")
