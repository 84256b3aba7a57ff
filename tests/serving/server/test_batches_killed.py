"""Server processes that are killed and stopped in the middle of a batch, and the next ones on its folder."""

import json
import signal
import time
from pathlib import Path

import openai

from tests.waiting import WAIT_S, pauses

from .test_life import Process, process

NUM_LINES = 60


def lines_of(count: int) -> bytes:
    lines = []
    for number in range(count):
        body = {"model": "echo", "messages": [{"role": "user", "content": f"word {number}"}]}
        lines.append({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    return "\n".join(map(json.dumps, lines)).encode()


def wait_for_results(folder: Path, count: int) -> int:
    """Wait until so many results are on the disk; return how many there are."""
    deadline_s = time.monotonic() + WAIT_S
    for pause_s in pauses(0.005, 0.05):
        found = sum(path.read_bytes().count(b"\n") for path in folder.rglob("output"))
        if found >= count:
            return found
        assert time.monotonic() < deadline_s, f"{found} results"
        time.sleep(pause_s)
    raise AssertionError("unreachable")


def serving(folder: Path, **script: object) -> Process:
    return process(script=script, settings={"batch_folder": str(folder), "max_concurrent_requests": 8})


def test_a_batch_survives_a_kill_and_a_stop_with_each_request_answered_once(tmp_path):
    with serving(tmp_path, delay_s=0.02) as killed:
        killed.event("server.ready")
        with openai.OpenAI(base_url=f"{killed.url}/v1", api_key="-", timeout=WAIT_S) as client:
            file = client.files.create(file=("in.jsonl", lines_of(NUM_LINES)), purpose="batch")
            batch = client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        after_kill = wait_for_results(tmp_path, 5)
        killed.signal(signal.SIGKILL)
        killed.exit_code()
    output = next(tmp_path.rglob("output"))
    output.write_bytes(output.read_bytes() + b'{"id":"half a li')

    with serving(tmp_path, delay_s=0.02) as stopped:
        wait_for_results(tmp_path, after_kill + 5)
        stopped.signal(signal.SIGTERM)
        assert stopped.exit_code() == 0

    with serving(tmp_path) as last:
        ended = last.event("batch.ended")
        with openai.OpenAI(base_url=f"{last.url}/v1", api_key="-", timeout=WAIT_S) as client:
            batch = client.batches.retrieve(batch.id)
            text = client.files.content(batch.output_file_id).text
    results = [json.loads(line) for line in text.splitlines()]
    assert (ended["status"], batch.status, batch.error_file_id) == ("completed", "completed", None)
    assert sorted(result["custom_id"] for result in results) == sorted(f"r{number}" for number in range(NUM_LINES))
    assert batch.request_counts.completed == NUM_LINES
    assert batch.usage.output_tokens == NUM_LINES * 3
