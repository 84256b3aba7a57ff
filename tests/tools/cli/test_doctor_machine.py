"""The checks of `headrace doctor` of the machine."""

import socket
from pathlib import Path

import pytest

from headrace.core.gpus import Gpu
from headrace.tools.cli.doctor_machine import (
    judge_bandwidth,
    judge_disk,
    judge_gpus,
    judge_memory,
    judge_port,
    judge_settings,
)


@pytest.mark.parametrize(
    ("gib", "status", "largest"),
    [(0.25, "failed", ""), (1, "warning", "1.4 B"), (4, "ok", "5.5 B"), (512, "ok", "704")],
)
def test_memory_is_judged_by_what_is_available(gib: float, status: str, largest: str) -> None:
    finding = judge_memory(int(gib * 2**30))
    assert status == finding.status
    assert bool(finding.advice) == (status != "ok")
    assert largest in finding.headline


def test_a_bandwidth_names_the_load_of_a_busy_machine() -> None:
    idle, busy = (judge_bandwidth(20e9, num_threads=2, load=load) for load in (None, 7.25))
    assert "20.0 GB/s" in idle.found
    assert idle.headline == "an 8 B model decodes at most 4.0 tokens/s"
    assert idle.advice == ""
    assert "load of 7.2" in busy.advice


def test_the_ports_of_the_settings_are_checked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"HEADRACE_PORT": str(port), "HEADRACE_UP_PORT": "0", "HEADRACE_UP_DATA_DIR": str(tmp_path)}
        serve, up = judge_settings(env)
    assert (serve.status, up.status) == ("warning", "ok")
    assert serve.found.startswith(f"port {port} on 127.0.0.1 cannot be opened: Address already in use")
    assert "headrace serve --port 0" in serve.advice
    assert "any free port" in up.found


def test_an_invalid_setting_is_a_warning() -> None:
    (finding,) = judge_settings({"HEADRACE_PORT": "many"})
    assert finding.status == "warning"
    assert "HEADRACE_PORT is 'many'" in finding.found


def test_an_address_that_this_machine_does_not_have_is_a_warning() -> None:
    assert judge_port("headrace serve", "192.0.2.1", 8080).status == "warning"


def test_a_store_that_does_not_exist_yet_is_judged_by_the_disk_below(tmp_path: Path) -> None:
    assert str(tmp_path) in judge_disk(tmp_path / "not" / "yet").found


def test_gpus_are_listed() -> None:
    gpus = (Gpu(index=0, name="NVIDIA L4", memory_bytes=24 << 30), Gpu(index=1))
    assert judge_gpus(gpus).found == "0: NVIDIA L4, 24 GiB; 1: NVIDIA GPU"
    assert "run on the CPU" in judge_gpus(()).found
