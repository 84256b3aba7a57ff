"""Two platforms on one PostgreSQL: both serve, one leads, and the other goes on when that one is killed."""

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import WAIT_S

from .endpoints import answered, delete_endpoint, make_endpoint
from .running import IMAGE, Running, until, up

pytestmark = pytest.mark.model

NUM_STREAMS = 8


def streamed(platform: Running, name: str, num_tokens: int) -> str:
    """The text of a stream, or the error in it."""
    body = {
        "inputs": "Once upon a time",
        "parameters": {"max_new_tokens": num_tokens, "do_sample": False},
        "stream": True,
    }
    response = platform.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps(body), ContentType="application/json"
    )
    return b"".join(event["PayloadPart"]["Bytes"] for event in response["Body"]).decode()


def test_one_platform_is_killed_under_streams_of_the_other(
    tmp_path: Path, new_database: Callable[[], str], smollm2_path: Path
) -> None:
    database = new_database()
    first = up(tmp_path / "a", "--database", database)
    second = up(tmp_path / "b", "--database", database)
    try:
        check_takeover(first, second, {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    finally:
        for platform in (first, second):
            if platform.process.poll() is None:
                assert platform.stop() == 0, platform.log()


def test_a_platform_waits_for_a_server_that_starts_after_it(tmp_path: Path, new_database: Callable[[], str]) -> None:
    url, _, server = new_database().partition("?host=")
    link = tmp_path / "link"

    def start_server() -> None:
        until(lambda: any("store.unreachable" in log.read_text() for log in tmp_path.glob("a-*.log")), "it waits")
        link.symlink_to(server)

    starting = threading.Thread(target=start_server)
    starting.start()
    platform = up(tmp_path / "a", "--database", f"{url}?host={link}")
    starting.join()
    assert platform.stop() == 0, platform.log()


def leads(platform: Running) -> bool:
    """Return whether the last thing that a platform said of the lease is that it leads."""
    log = platform.log()
    return log.count('"platform.leads"') > log.count('"platform.leads_no_more"')


def processes_of(folder: Path) -> list[str]:
    """The command lines of the running processes that name a folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                found.append((process / "cmdline").read_text(errors="replace").replace("\0", " "))
    return [line for line in found if str(folder) in line]


def check_takeover(older: Running, newer: Running, container: dict[str, Any]) -> None:
    make_endpoint(newer, "shared", container)
    older.until_in_service("shared")
    until(
        lambda: leads(older) != leads(newer), "one of them leads"
    )  # perhaps not the older: a slow one loses its lease
    first, second = (older, newer) if leads(older) else (newer, older)
    expected = streamed(second, "shared", 200)
    assert streamed(first, "shared", 200) == expected
    answers: list[str] = []
    streams = [
        threading.Thread(target=lambda: answers.append(streamed(second, "shared", 200))) for _ in range(NUM_STREAMS)
    ]
    for stream in streams:
        stream.start()
    first.kill()
    until(lambda: leads(second), "the other platform leads")
    for stream in streams:
        stream.join()
    assert answers == [expected] * NUM_STREAMS
    second.client("s3").create_bucket(Bucket="bucket")
    make_endpoint(second, "later", container)
    second.until_in_service("later", "shared")
    assert answered(second, "later")
    workers = second.client("sagemaker").describe_endpoint(EndpointName="shared")["ProductionVariants"]
    assert workers[0]["CurrentInstanceCount"] == 1
    delete_endpoint(second, "shared")


def test_a_platform_that_another_machine_took_over_while_it_was_away_stops_with_its_workers(
    tmp_path: Path, new_database: Callable[[], str], smollm2_path: Path
) -> None:
    import psycopg

    database = new_database()
    platform = up(tmp_path / "a", "--database", database, "--keep-workers")
    try:
        make_endpoint(platform, "small", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
        platform.until_in_service("small")
        with contextlib.closing(psycopg.connect(database, autocommit=True)) as connection:
            connection.execute("UPDATE headrace_leader SET home_host = 'other', home_dir = '/there', member = 'other'")
        assert platform.process.wait(WAIT_S) == 1
        assert "its folder is /there on another machine" in platform.log()
        assert not processes_of(tmp_path / "a"), "nothing routes to its workers any more"
        with contextlib.closing(psycopg.connect(database)) as connection:
            rows = connection.execute("SELECT deleting_s FROM headrace_records WHERE kind = 'worker'").fetchall()
        assert rows == [(None,)], "the records are the other platform's"
    finally:
        if platform.process.poll() is None:
            platform.kill()
        platform.close()
