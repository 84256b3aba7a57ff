"""A platform on two machines, which here are two addresses of this one: each loses its turn."""

import json
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from headrace.core.processes import processes_with_argument, send_signal
from tests import plain_http
from tests.serving.http.test_tls import write_certificate

from .endpoints import delete_endpoint, invoke, make_endpoint
from .running import IMAGE, Running, until, up
from .test_two_platforms import leads

pytestmark = pytest.mark.model

KEYS = {"AWS_ACCESS_KEY_ID": "of-s3", "AWS_SECRET_ACCESS_KEY": "of-s3"}


def machine(folder: Path, number: int, database: str) -> Running:
    """Start a platform with TLS on a machine; its S3 server is never asked."""
    host = f"127.0.0.{number}"
    flags = ("--advertise", host, "--database", database, "--s3-endpoint", "http://127.0.0.1:9", "--no-supervised")
    trust = {"SSL_CERT_FILE": str(folder / "cert.pem")}
    files = (folder / "cert.pem", folder / "key.pem")
    return up(folder / host, *flags, host=host, env={**KEYS, **trust}, certificate=files[0], key=files[1])


def cut_power(platform: Running) -> None:
    """Kill all processes of a machine."""
    platform.kill()
    for worker in (platform.folder / "workers").iterdir():
        for process in processes_with_argument(str(worker / "worker.json")):
            send_signal(process, signal.SIGKILL)


def ready_workers(database: str) -> dict[str, str]:
    """Return the hosts of the workers that are ready, by their URLs."""
    import psycopg

    with closing(psycopg.connect(database)) as connection:
        rows = connection.execute("SELECT status FROM headrace_records WHERE kind = 'worker'").fetchall()
    ready: list[dict[str, Any]] = [status for row in rows if (status := json.loads(row[0]))["phase"] == "ready"]
    return {status["handle"]["url"]: urlsplit(status["handle"]["url"]).hostname or "" for status in ready}


def machines_seen(platform: Running) -> list[str | None]:
    """Return the hosts of the machines that a platform knows."""
    home = plain_http.get(f"{platform.url}/console/api/home", headers=platform.bearer).json()
    return [urlsplit(f"//{seen['name']}").hostname for seen in home["machines"]]


def test_the_power_of_the_machine_that_leads_is_cut_and_the_other_goes_on(
    tmp_path: Path, new_database: Callable[[], str], smollm2_path: Path
) -> None:
    database, authority = new_database(), trustme.CA()
    write_certificate(tmp_path, authority, "127.0.0.1", "127.0.0.2")
    authority.cert_pem.write_to_path(tmp_path / "cert.pem", append=True)
    platforms = [machine(tmp_path, number, database) for number in (1, 2)]
    try:
        for platform in platforms:  # the one that leads places the workers on the machines that it knows
            until(lambda of=platform: machines_seen(of) == ["127.0.0.1", "127.0.0.2"], "it knows the other machine")
        container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}}
        make_endpoint(platforms[1], "shared", container, InitialInstanceCount=2)
        platforms[0].until_in_service("shared")
        workers = ready_workers(database)
        assert sorted(workers.values()) == ["127.0.0.1", "127.0.0.2"]
        assert {url.partition(":")[0] for url in workers} == {"http", "https"}  # no other machine reaches 127.0.0.1
        assert {plain_http.get(f"{url.partition('#')[0]}/metrics").status_code for url in workers} == {401}
        until(lambda: leads(platforms[0]) != leads(platforms[1]), "one of them leads")
        lost, left = sorted(platforms, key=leads, reverse=True)
        expected, answers, is_over = invoke(left, "shared"), list[Any](), threading.Event()

        def ask() -> None:
            while not is_over.is_set():
                answers.append(invoke(left, "shared"))

        clients = [threading.Thread(target=ask) for _ in range(2)]
        for client in clients:
            client.start()
        cut_power(lost)
        host = urlsplit(left.url).hostname
        until(lambda: [*ready_workers(database).values()] == [host, host], "its worker is replaced")
        is_over.set()
        for client in clients:
            client.join()
        assert answers == [expected] * len(answers)
        assert leads(left)
        delete_endpoint(left, "shared")
    finally:
        for platform in platforms:
            if platform.process.poll() is None:
                assert platform.stop() == 0, platform.log()
