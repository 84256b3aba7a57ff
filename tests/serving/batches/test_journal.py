"""Results on disk: each once, after a kill at any byte."""

import io
import json

import pytest

from headrace.serving.batches.journal import Journal
from headrace.serving.batches.store import ERRORS, OUTPUT
from headrace.serving.wire.batches import Counts, render_result, render_unanswered


def result(custom_id: str, status: int = 200) -> bytes:
    body = json.dumps({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}).encode()
    return render_result(custom_id, request_id="r", status=status, body=body)


async def write(folder, *lines: bytes) -> None:
    journal = Journal.open(folder)
    for line in lines:
        await journal.add(line)
    await journal.close()


async def test_results_go_to_their_files_and_are_counted_again_after_a_restart(tmp_path):
    gone = render_unanswered("d", "batch_cancelled", request_id="r")
    await write(tmp_path, result("a"), result("b", 400), gone)
    journal = Journal.open(tmp_path)
    await journal.add_all(iter([render_unanswered("e", "batch_expired", request_id="r")]))
    await journal.close()

    again = Journal.open(tmp_path)
    await again.close()

    assert again.done == journal.done == {"a", "b", "d", "e"}
    assert again.counts == journal.counts == Counts(completed=1, failed=1, expired=1, cancelled=1)
    assert (again.usage.input_tokens, again.usage.output_tokens) == (2, 4)
    assert (tmp_path / OUTPUT).read_bytes() == result("a")


async def test_an_end_that_was_cut_at_any_byte_is_removed_and_written_again(tmp_path):
    first, second = result("a"), result("b")
    for end in range(len(second)):
        (tmp_path / OUTPUT).write_bytes(first + second[:end])
        (tmp_path / ERRORS).write_bytes(b"")

        journal = Journal.open(tmp_path)
        assert journal.done == {"a"}
        await journal.add(second)
        await journal.close()

        assert (tmp_path / OUTPUT).read_bytes() == first + second


@pytest.mark.parametrize("damage", [b"\0" * 512 + b"\n", b'{"custom_id": 3}\n', b"\xff\n", b"[" * 5000 + b"\n"])
async def test_nothing_after_a_damaged_line_counts(tmp_path, damage):
    (tmp_path / OUTPUT).write_bytes(result("a") + damage + result("b"))
    (tmp_path / ERRORS).write_bytes(b"")
    await write(tmp_path, result("b"))
    assert (tmp_path / OUTPUT).read_bytes() == result("a") + result("b")


async def test_a_disk_that_is_full_is_reported_and_leaves_no_half_line(tmp_path):
    journal = Journal.open(tmp_path)
    await journal.add(result("a"))
    whole = journal._files[OUTPUT]
    journal._files[OUTPUT] = (tmp_path / OUTPUT).open("rb", buffering=0)  # refuses writes, as a full disk does
    with pytest.raises(io.UnsupportedOperation):
        await journal.add(result("b"))
    whole.close()
    await journal.close()
    assert journal.done == {"a"}
