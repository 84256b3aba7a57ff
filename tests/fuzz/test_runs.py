"""Runs by hand: hangs and findings are reported, and counts are added up."""

import argparse
import json
import time
from pathlib import Path

import pytest

from tests.fuzz.campaign import Report
from tests.fuzz.libfuzzer import grow
from tests.fuzz.records import record
from tests.fuzz.supervision import supervise
from tests.fuzz.target import Target, read_grown
from tests.fuzz.targets import TARGETS


def run(name: str, check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, limit_s: float = 2.0) -> bool:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.fuzz.target.CORPUS", tmp_path / "corpus")
    monkeypatch.setitem(TARGETS, name, Target(name, check, limit_s=limit_s))
    return supervise(name, argparse.Namespace(seed=1, first=0, cases=3, seconds=None, record=tmp_path / "fuzz.json"))


def test_an_input_that_breaks_the_property_is_kept(tmp_path, monkeypatch, capfd) -> None:
    def check(data: bytes) -> None:
        raise KeyError(data)

    assert not run("broken", check, tmp_path, monkeypatch)
    assert [file.name[:6] for file in (tmp_path / "corpus/broken").iterdir()] == ["found-"]
    assert json.loads((tmp_path / "fuzz.json").read_text())["broken"]["findings"] == 1


def test_an_input_that_hangs_without_python_is_named_and_kept(tmp_path, monkeypatch, capfd) -> None:
    def check(data: bytes) -> None:
        if data:  # all but the only seed
            time.sleep(3600)

    assert not run("hung", check, tmp_path, monkeypatch, limit_s=0.05)
    assert "of seed 1 ended the process: status 1" in capfd.readouterr().out
    assert list((tmp_path / "corpus/hung").iterdir())


def test_counts_of_runs_are_added_up_and_begin_again_at_a_finding(tmp_path) -> None:
    path = tmp_path / "fuzz.json"
    record(path, "tar", Report(num_cases=10, num_accepted=4, cpu_s=1.0, slowest_s=0.2))
    record(path, "tar", Report(), is_finding=True)
    record(path, "tar", Report(num_cases=5, num_accepted=5, cpu_s=0.5, slowest_s=0.1))
    assert json.loads(path.read_text())["tar"] == {
        "inputs": 15,
        "accepted": 9,
        "inputs_since_finding": 5,
        "findings": 1,
        "cpu_s": 1.5,
        "slowest_ms": 200,
    }


def test_a_guided_run_keeps_the_inputs_that_reach_edges_which_no_seed_and_no_smaller_one_does(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.fuzz.target._GROWN", tmp_path / "grown")
    edges = {b"seed": {1, 2}, b"a": {1, 3}, b"bb": {3}, b"ccc": {4, 5}}

    def launch(flags, log) -> int:
        """Do as libFuzzer: a run adds files to its first folder, a merge tells the edges that no file before has."""
        log.write_text("stat::number_of_executed_units: 7\n")
        if not flags[0].startswith("-merge"):
            for data in edges.keys() - {b"seed"}:
                (Path(flags[-2]) / data.decode()).write_bytes(data)
            return 0
        control, seen = Path(flags[1].partition("=")[2]), set()
        with control.open("a") as told:
            for index, name in enumerate(control.read_text().splitlines()[2:]):
                new = edges[Path(name).read_bytes()] - seen
                seen |= new
                told.write(f"STARTED {index} 1\nFT {index} 9\nCOV {index} {' '.join(map(str, new))}\n")
        return 0

    growth = grow("usual", [b"seed"], launch, seconds=1)
    assert (growth.status, growth.num_runs, growth.num_seed_edges, growth.num_edges) == (0, 7, 2, 5)
    assert sorted(read_grown("usual").values()) == [b"a", b"ccc"]
